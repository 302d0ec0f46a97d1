//! Tells a run that turns in circles from one that is only long.
//!
//! A run goes on while clients get tokens and requests arrive or end: of these there are only so many. Between two of
//! them only so much can happen, and what that is follows from the work there is. Nothing here is a number of events that
//! a larger cluster, a longer output or a slower link could exceed.

/// Events between two looks.
pub(super) const EVENTS_PER_LOOK: u64 = 1 << 12;
/// How often the same work is at most done again for one request: attempts, evictions, destinations in turn.
const LAPS: u64 = 64;
/// Events of one instant for each request and machine, at most.
const EVENTS_AT_ONCE: u64 = 1 << 10;

/// What has happened since clients last got anything.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// A time in which every limit and every absence has run out several times over.
    patience_ns: u64,
    passes: u64,
    transfers: u64,
    /// Whether anything was computed, moved, given or ended since the last look.
    is_alive: bool,
    /// When it last was.
    alive_ns: u64,
    looked_ns: u64,
    looks_at_once: u64,
}

/// How the world stands when it is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) now_ns: u64,
    /// A pass or a transfer is under way, and will end.
    pub(super) is_busy: bool,
    /// Requests that have arrived and not ended.
    pub(super) pending: u64,
    pub(super) machines: u64,
}

impl Watchdog {
    /// For a run whose limits, delays and absences add up to `longest_ns`.
    pub(super) fn new(longest_ns: u64) -> Self {
        Self {
            patience_ns: longest_ns.saturating_mul(LAPS),
            passes: 0,
            transfers: 0,
            is_alive: true,
            alive_ns: 0,
            looked_ns: 0,
            looks_at_once: 0,
        }
    }

    /// A client has got a token, or a request has arrived or ended.
    pub(super) fn go_on(&mut self) {
        self.is_alive = true;
        self.passes = 0;
        self.transfers = 0;
    }

    /// A pass has ended.
    pub(super) fn pass(&mut self) {
        self.is_alive = true;
        self.passes += 1;
    }

    /// A transfer has begun.
    pub(super) fn transfer(&mut self) {
        self.is_alive = true;
        self.transfers += 1;
    }

    /// Looks after [`EVENTS_PER_LOOK`] events. Returns in which way the run goes in circles, if it does. What the pending
    /// requests are to get is counted only where it matters.
    pub(super) fn look(&mut self, at: Standing, pending_tokens: impl FnOnce() -> u64) -> Option<String> {
        if std::mem::take(&mut self.is_alive) || at.is_busy || at.pending == 0 {
            self.alive_ns = at.now_ns;
        }
        self.looks_at_once = if at.now_ns == self.looked_ns { self.looks_at_once + 1 } else { 0 };
        self.looked_ns = at.now_ns;
        if at.pending == 0 {
            return None;
        }
        let still_ns = at.now_ns - self.alive_ns;
        let at_once = self.looks_at_once * EVENTS_PER_LOOK;
        if still_ns > self.patience_ns {
            Some(format!("nothing has been computed or sent for {:.0} s", still_ns as f64 / 1e9))
        } else if self.passes > LAPS * at.pending && self.passes > LAPS * (at.pending + pending_tokens()) {
            Some(format!("{} passes have given no client a token", self.passes))
        } else if self.transfers > LAPS * (at.pending + at.machines) {
            Some(format!("{} transfers have given no client a token", self.transfers))
        } else if at_once > EVENTS_AT_ONCE * (at.pending + at.machines) {
            Some(format!("{at_once} events have taken no time"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Event, World};
    use super::*;
    use crate::Options;
    use crate::faults::Recovery;
    use crate::setup::Setup;

    const AT: Standing = Standing { now_ns: 0, is_busy: false, pending: 2, machines: 3 };
    const PENDING_TOKENS: u64 = 1000;
    const LONGEST_NS: u64 = 1000;

    fn looks(each: impl Fn(&mut Watchdog, u64) -> Standing, count: u64) -> Option<(u64, String)> {
        let mut dog = Watchdog::new(LONGEST_NS);
        (0..count).find_map(|look| {
            let at = each(&mut dog, look);
            dog.look(at, || PENDING_TOKENS).map(|why| (look, why))
        })
    }

    #[test]
    fn a_long_wait_for_a_pass_or_a_transfer_is_no_circle() {
        assert_eq!(looks(|_, look| Standing { now_ns: look * 1_000_000, is_busy: true, ..AT }, 10_000), None);
    }

    #[test]
    fn a_long_output_is_no_circle() {
        let tokens = |dog: &mut Watchdog, look| {
            (0..10_000).for_each(|_| dog.pass());
            dog.go_on();
            Standing { now_ns: look, is_busy: true, ..AT }
        };
        assert_eq!(looks(tokens, 10_000), None);
    }

    #[test]
    fn a_standstill_is_told_when_every_limit_has_run_out() {
        let (look, why) = looks(|_, look| Standing { now_ns: look * LONGEST_NS, ..AT }, 1000).unwrap();
        assert_eq!((look, why.contains("computed or sent")), (LAPS + 1, true), "{why}");
        let idle = |_: &mut Watchdog, look| Standing { now_ns: look * LONGEST_NS, pending: 0, ..AT };
        assert_eq!(looks(idle, 1000), None, "nobody waits");
    }

    #[test]
    fn work_that_gives_nobody_anything_is_told() {
        let passes = |dog: &mut Watchdog, look| {
            (0..1000).for_each(|_| dog.pass());
            Standing { now_ns: look, is_busy: true, ..AT }
        };
        let (look, why) = looks(passes, 1000).unwrap();
        assert_eq!((look, why.contains("passes")), (LAPS * 1002 / 1000, true), "{why}");
        let transfers = |dog: &mut Watchdog, look| {
            dog.transfer();
            Standing { now_ns: look, is_busy: true, ..AT }
        };
        let (look, why) = looks(transfers, 1000).unwrap();
        assert_eq!((look, why.contains("transfers")), (LAPS * 5, true), "{why}");
    }

    #[test]
    fn an_instant_without_end_is_told() {
        let (look, why) = looks(|_, _| Standing { is_busy: true, ..AT }, 1000).unwrap();
        assert!(why.contains("no time") && look < 10, "{look}: {why}");
    }

    proptest! {
        /// What is allowed grows with the work, so that twice the work is never told where half of it was not.
        #[test]
        fn more_work_has_more_patience(passes in 0_u64..200_000, pending in 1_u64..50, tokens in 0_u64..2000) {
            let told = |pending, tokens| {
                let mut dog = Watchdog::new(LONGEST_NS);
                (0..passes).for_each(|_| dog.pass());
                dog.look(Standing { now_ns: 1, is_busy: true, pending, ..AT }, || tokens).is_some()
            };
            prop_assert!(told(pending, tokens) || !told(2 * pending, 2 * tokens));
        }
    }

    /// Machines that wait for a word that is lost: their clocks go on for ever, and nothing else does.
    #[test]
    fn a_run_that_has_lost_its_messages_is_told_with_a_request_and_where_it_is() {
        let options = Options {
            prompt: Some("1xdgx-h100".into()),
            token: Some("1xdgx-h100".into()),
            rate: Some(2.0),
            requests: Some(5),
            message_delay_s: 0.01,
            ..Options::default()
        };
        let setup = Setup::new(&options).unwrap();
        let mut world = World::new(&setup, Recovery::Resume, ()).unwrap();
        let circle = loop {
            assert!(world.step().unwrap(), "the clocks go on");
            world.queue.retain(|event| !matches!(event, Event::Message(_)));
            if let Some(circle) = world.circle() {
                break circle;
            }
        };
        assert!(circle.contains("nothing has been computed"), "{circle}");
        let (request, state) = world.stuck();
        assert_eq!((world.pending(), request, state.as_str()), (5, 0, "on no machine"));
    }
}
