//! What must hold at the end: every accepted request has ended, and nothing is left over.

use super::World;
use super::hosts::Host;
use super::invariants::check_empty;

impl World {
    pub(super) fn check_rest(&mut self) {
        for index in 0..self.submitted.len() {
            let submitted = &self.submitted[index];
            if submitted.accepted && submitted.ended.is_none() {
                assert!(self.may_be_lost(index), "never ended: {submitted:?}: {}", self.stuck());
                let heard = |host: &Host| host.held.contains_key(&index);
                self.out.counters.lost += 1;
                self.out.counters.unheard += u64::from(!self.hosts.iter().any(heard));
            }
        }
        let Some(serving) = self.serving else { panic!("no Cluster at the end") };
        let host = &self.hosts[serving];
        assert_eq!((host.cluster.live_requests(), host.cluster.parked_requests()), (0, 0));
        for id in &host.drains {
            assert!(self.machine(*id).is_none(), "{id:?} never drained: {}", self.stuck());
        }
        let books = format!("{:?}", host.cluster);
        let empty = ["closing: {}", "unreserved: {}", "parked_by_class: {}", "leases: {}", "away: {}"];
        for empty in empty {
            assert!(books.contains(empty), "not empty at the end: {empty}\n{books}");
        }
        for id in self.machine_ids() {
            let Some(machine) = self.machine(id) else { continue };
            check_empty(machine);
            let Some(load) = host.cluster.load(id.index) else { panic!("{id:?} is not known") };
            let left = (load.booked, load.legs, load.kv_tokens, load.prompt_pending_tokens);
            assert_eq!((load.machine, left), (id, (0, 0, 0, 0)), "{id:?} keeps load");
            self.out.counters.evicted += machine.counters().evicted;
        }
        assert_eq!(self.machine_ids().len(), self.places.len(), "a machine is missing at the end");
    }

    /// Whether a request may have gone with a Cluster. It must survive where machines held it when that Cluster died, or
    /// had it from a message that was delivered later, and one of them registered with the next Cluster in time, with
    /// all that it had. So only those go that no machine had heard of, or all of whose machines are late or lost as
    /// well; and those that a replaced Cluster ended when its word reached no client any more.
    fn may_be_lost(&self, owner: usize) -> bool {
        self.hosts[1..].iter().any(|host| {
            let in_time = |machine| host.registered.get(machine) == Some(&true);
            let held = host.held.get(&owner).is_some_and(|held| held.iter().any(in_time));
            !held || host.ended_before.contains(&owner)
        })
    }

    /// Everything that still waits.
    pub(super) fn stuck(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("now {}, Clusters {}\n", self.now, self.hosts.len());
        if let Some(host) = self.serving {
            let _ = writeln!(text, "{:?}", self.hosts[host].cluster);
        }
        for machine in self.places.iter().filter_map(|place| place.machine.as_ref()) {
            let _ = writeln!(text, "\n{machine:?}");
        }
        let _ = writeln!(text, "\ntransfers {:?}\nqueue {:?}", self.transfers, self.queue);
        text
    }
}
