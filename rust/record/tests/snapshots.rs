//! What a snapshot keeps: everything that decides.

#![allow(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;

use proptest::prelude::*;
use splitcore_core::cluster::Cluster;
use splitcore_core::event::{ClusterEvent, MachineEvent};
use splitcore_core::id::MachineId;
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;
use splitcore_record::Recorded;
use splitcore_swarm::setup::Setup;
use splitcore_swarm::world::{Watch, World};

fn bytes(machine: &impl Recorded) -> Vec<u8> {
    rmp_serde::to_vec_named(machine).unwrap()
}

/// Beside each state machine of a world, one that was made of its bytes at some time and has run on since.
struct Restored {
    /// Events until a copy is made anew.
    every: u64,
    seen: u64,
    copies: u64,
    clusters: BTreeMap<usize, Cluster>,
    machines: BTreeMap<MachineId, Machine>,
}

impl Restored {
    fn compare<M: Recorded>(&mut self, copy: Option<M>, original: &M, now: Time, event: &M::Event) -> M
    where
        M::Event: Debug,
        M::Action: Debug,
    {
        self.seen += 1;
        let is_new = self.seen.is_multiple_of(self.every) || copy.is_none();
        let mut copy = copy.filter(|_| !is_new).unwrap_or_else(|| {
            let written = bytes(original);
            let copy: M = rmp_serde::from_slice(&written).unwrap();
            assert_eq!(bytes(&copy), written, "the bytes of a state are always the same");
            copy
        });
        self.copies += u64::from(is_new);
        if self.seen.is_multiple_of(97) {
            assert_eq!(bytes(&copy), bytes(original), "the copy and its original have parted");
        }
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        let expected = original.clone().apply(now, event, &mut theirs);
        assert_eq!(copy.apply(now, event, &mut ours), expected, "{event:?}");
        assert_eq!(ours, theirs, "{event:?}");
        copy
    }
}

impl Watch for Restored {
    fn cluster(&mut self, number: usize, cluster: &Cluster, now: Time, event: &ClusterEvent) {
        let copy = self.clusters.remove(&number);
        let copy = self.compare(copy, cluster, now, event);
        copy.check().unwrap();
        self.clusters.insert(number, copy);
    }

    fn machine(&mut self, machine: &Machine, now: Time, event: &MachineEvent) {
        let copy = self.machines.remove(&machine.id());
        let copy = self.compare(copy, machine, now, event);
        copy.check().unwrap();
        self.machines.insert(machine.id(), copy);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(10), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_state_made_of_its_bytes_goes_on_as_the_one_they_were_made_of(seed in any::<u64>(), every in 1_u64..200) {
        let (clusters, machines) = (BTreeMap::new(), BTreeMap::new());
        let restored = Rc::new(RefCell::new(Restored { every, seen: 0, copies: 0, clusters, machines }));
        let watch: Rc<RefCell<dyn Watch>> = restored.clone();
        World::new(Setup::random(seed)).watched(watch).run();
        prop_assert!(restored.borrow().copies >= restored.borrow().seen / every);
    }
}
