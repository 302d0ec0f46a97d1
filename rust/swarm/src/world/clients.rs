//! Clients, and the gateway that stands between them and the machines.

use splitcore_core::event::{Arrival, ClusterEvent, Outcome};
use splitcore_core::id::{LegKey, MachineId, RequestId};
use splitcore_core::leg::Notice;

use super::hosts::Live;
use super::{Event, World};
use crate::setup::Client;

/// What a client knows of its request.
#[derive(Debug, Clone)]
pub(super) struct Submitted {
    pub(super) client: Client,
    pub(super) accepted: bool,
    pub(super) delivered: u32,
    pub(super) ended: Option<Outcome>,
    /// Times it was turned away.
    turned_away: u32,
}

/// A client that is turned away comes again, so many times.
const TRIES_MAX: u32 = 6;

impl Submitted {
    pub(super) fn new(client: Client) -> Self {
        Self { client, accepted: false, delivered: 0, ended: None, turned_away: 0 }
    }
}

impl World {
    pub(super) fn arrive(&mut self, index: usize) {
        let client = self.submitted[index].client.clone();
        let request = RequestId(client.id);
        let Some(host) = self.serving else {
            self.out.counters.sent += 1;
            return self.turn_away(index);
        };
        if self.hosts[host].live.contains_key(&request) || self.is_left_over(request) {
            return;
        }
        self.out.counters.sent += 1;
        self.hosts[host].live.insert(request, Live::new(index));
        let arrival = Arrival {
            class: client.class,
            priority: client.priority,
            resumable: client.resumable,
            pin_token: client.pin_token.filter(|&pin| pin < self.hosts[host].cluster.machines_len()),
            ..Arrival::new(client.id, client.prompt_tokens, client.max_new_tokens)
        };
        self.tell_cluster(host, &ClusterEvent::Arrive(arrival));
        let accepted = self.hosts[host].live.get(&request).is_some_and(|live| live.owner == index);
        self.submitted[index].accepted = accepted;
        self.out.counters.accepted += u64::from(accepted);
        if let Some(after) = client.cancel_after_ns.filter(|_| accepted) {
            self.push(self.now + after, Event::Cancel(index));
        }
    }

    /// Where sessions break, a name comes again only when nothing of it is left: no record of a machine, no message on
    /// its way. Otherwise an end that is told twice could be taken for one of the next request of that name. Where
    /// sessions hold, the core sees to that itself.
    fn is_left_over(&self, request: RequestId) -> bool {
        let used = |other: &Submitted| other.client.id == request.0 && other.accepted;
        if self.setup.sessions_hold() || !self.submitted.iter().any(used) {
            return false;
        }
        let machines = self.places.iter().filter_map(|place| place.machine.as_ref());
        let held = machines.flat_map(splitcore_core::machine::Machine::claims);
        let on_its_way = self.wires.values().flatten().any(|message| message.is_about(request));
        let old = self.hosts.iter().filter(|host| host.alive).count() > 1;
        old || on_its_way || held.into_iter().any(|claim| claim.key.request == request)
    }

    pub(super) fn cancel(&mut self, index: usize) {
        let request = RequestId(self.submitted[index].client.id);
        if self.submitted[index].ended.is_some() {
            return;
        }
        let host = self.serving;
        let live = host.and_then(|host| self.hosts[host].live.get(&request));
        if let (Some(host), true) = (host, live.is_some_and(|live| live.owner == index)) {
            self.cancel_live(host, request);
        } else if host.is_none_or(|host| self.hosts[host].cluster.is_recovering()) {
            // The client does not know whether it was heard.
            let when = self.now + 1 + self.rng.below(self.setup.grace_ns);
            self.push(when, Event::Cancel(index));
        }
    }

    pub(super) fn rejected(&mut self, host: usize, request: RequestId) {
        let Some(live) = self.hosts[host].live.remove(&request) else { panic!("{request:?} was rejected") };
        assert!(!self.submitted[live.owner].accepted, "accepted request {request:?} was rejected");
        self.since_end = 0;
        self.turn_away(live.owner);
    }

    fn turn_away(&mut self, index: usize) {
        self.out.counters.rejected += 1;
        let submitted = &mut self.submitted[index];
        submitted.turned_away += 1;
        if submitted.turned_away < TRIES_MAX {
            let high = 4_000 << submitted.turned_away;
            let when = self.now + 1 + self.rng.below(high);
            self.push(when, Event::Arrive(index));
        }
    }

    /// A request is over. Each client hears of one end. A request whose end the client knows can come to life again
    /// in the next Cluster, where machines that had not heard of the end claim it: that one ends again, unheard.
    pub(super) fn ended(&mut self, host: usize, request: RequestId, outcome: Outcome) {
        self.since_end = 0;
        let Some(live) = self.hosts[host].live.remove(&request) else { panic!("{request:?} ended twice") };
        if self.serving != Some(host) {
            for later in &mut self.hosts[host + 1..] {
                later.ended_before.insert(live.owner);
            }
            return;
        }
        let submitted = &mut self.submitted[live.owner];
        if submitted.ended.is_some() {
            assert!(live.adopted, "{request:?} ended twice");
            return;
        }
        assert!(submitted.accepted || live.adopted, "{request:?} ended and was never accepted");
        submitted.ended = Some(outcome);
        let counters = &mut self.out.counters;
        match outcome {
            Outcome::Finished => {
                counters.finished += 1;
                let (got, want) = (submitted.delivered, submitted.client.output_tokens);
                assert_eq!(got, want, "{request:?} finished with the wrong number of tokens");
            }
            Outcome::Cancelled => counters.cancelled += 1,
            Outcome::AttemptsMax | Outcome::NotResumable | Outcome::Unplaceable | Outcome::Expired => {
                counters.failed += 1;
            }
        }
        if let Some(again) = submitted.client.again_after_ns {
            let at_ns = self.now + again;
            let client =
                Client { again_after_ns: None, cancel_after_ns: None, at_ns, ..submitted.client.clone() };
            self.push(at_ns, Event::Arrive(self.submitted.len()));
            self.submitted.push(Submitted::new(client));
        }
    }

    /// The gateway of a Cluster takes a token: in the order of their numbers, each once, whichever attempt it is of.
    pub(super) fn gateway(&mut self, host: usize, from: MachineId, key: LegKey, index: u32, owner: usize) {
        // Where the clients have gone to another Cluster there is nobody to give it to, and nothing to tell.
        if self.serving != Some(host) {
            return;
        }
        let of = &self.hosts[host];
        let (Some(live), Some(attempt), Some(delivered)) =
            (of.live.get(&key.request), of.cluster.attempt(key.request), of.cluster.delivered(key.request))
        else {
            return;
        };
        if key.attempt.0 < live.first_attempt || key.attempt > attempt || index <= delivered {
            return;
        }
        // Two Clusters that lived at once can both have made an attempt of this name; one of them was dismissed.
        let current = key.attempt == attempt && !of.given_up.contains(&(from, key));
        if live.owner != owner {
            assert!(!current, "{key:?} computes another prompt");
            return;
        }
        if index > delivered + 1 {
            assert!(!current, "token {} of {key:?} was lost: {index} comes next", delivered + 1);
            return;
        }
        let present = LegKey { attempt, ..key };
        let runs = of.cluster.runs(present, from);
        // The last token of a request that waits ends it.
        self.give(owner, index);
        let notice = Notice::Progress { key: present, tokens: 1 };
        // A machine is heard of the legs that it has; for the token of an earlier attempt the gateway speaks.
        if self.rng.chance(500) && runs {
            self.tell_cluster(host, &ClusterEvent::Notice { from, notice });
        } else {
            self.tell_cluster(host, &ClusterEvent::Fact(notice));
        }
    }

    /// A client gets a token, unless it has it or has gone.
    fn give(&mut self, owner: usize, index: u32) {
        let submitted = &mut self.submitted[owner];
        if submitted.ended.is_some() || index <= submitted.delivered {
            return;
        }
        assert_eq!(index, submitted.delivered + 1, "client {owner} misses a token");
        assert!(index <= submitted.client.output_tokens, "client {owner} gets token {index}");
        submitted.delivered = index;
        self.out.counters.tokens += 1;
        self.since_end = self.since_end.saturating_sub(200);
    }
}
