//! The thread that sleeps for all connections, and tells what has happened on them.

use std::sync::Arc;
use std::time::Duration;

use splitcore_transport::{Incarnation, Link, Overdue, PeerState};

use super::books::{Books, LinkState, Shared};

/// Without anything to be in time for.
const LONG: Duration = Duration::from_secs(3600);

/// Until the mover is dropped.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut arrivals = Vec::new();
    loop {
        // First of all: what happens from here on ends the sleep below.
        shared.landing.poll(&mut arrivals);
        let mut books = shared.books();
        if books.over {
            return;
        }
        for arrival in arrivals.drain(..) {
            if let Some(doubtful) = shared.hear_arrival(&mut books, arrival) {
                shared.doubt(&mut books, doubtful, None);
            }
        }
        shared.hear_links(&mut books);
        shared.look_at_the_time(&mut books);
        let due = books.outcomes.next_due();
        drop(books);
        let sleep = due.map_or(LONG, |due| due.saturating_sub(shared.now()).min(LONG));
        shared.landing.wait(sleep);
    }
}

impl Shared {
    fn hear_links(self: &Arc<Self>, books: &mut Books) {
        let up = books.peers.iter().filter_map(|(&of, other)| match &other.state {
            LinkState::Up(link) => Some((of, Arc::clone(link))),
            LinkState::None | LinkState::Connecting(_) | LinkState::Closing(_) => None,
        });
        let up: Vec<(Incarnation, Arc<dyn Link>)> = up.collect();
        let mut ended = Vec::new();
        for (of, link) in up {
            // Asked before: when it is lost, all ends are there.
            let lost = link.peer() == PeerState::Lost;
            link.poll(&mut ended);
            for end in ended.drain(..) {
                if let Some(outcome) = books.outcomes.hear(of, end) {
                    self.finish(books, outcome);
                }
            }
            if lost {
                if let Some(other) = books.peers.get_mut(&of) {
                    other.state = LinkState::None;
                }
                self.doubt(books, of, Some(link));
            }
        }
    }

    fn look_at_the_time(self: &Arc<Self>, books: &mut Books) {
        for overdue in books.outcomes.overdue(self.now()) {
            match overdue {
                Overdue::Close(receiver) => self.shut(books, receiver),
                // What was not stopped is never due.
                Overdue::Stop(..) => {}
            }
        }
    }
}
