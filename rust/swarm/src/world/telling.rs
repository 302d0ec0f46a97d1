//! Events for the state machines, and what they want done.

use splitcore_core::cluster::Cluster;
use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{ClusterAction, ClusterEvent, MachineEvent};
use splitcore_core::id::MachineId;
use splitcore_core::time::Time;

use super::{Node, World};

impl World {
    pub(super) fn tell_cluster(&mut self, host: usize, event: &ClusterEvent) {
        let (result, actions) = self.handle(host, event);
        assert!(result.is_ok(), "cluster {host} at {}: {event:?}: {result:?}", self.now);
        self.cluster_acts(host, event, actions);
    }

    /// Gives an event to a Cluster, whatever it answers.
    pub(super) fn handle(
        &mut self,
        host: usize,
        event: &ClusterEvent,
    ) -> (Result<Applied, EventError>, Vec<ClusterAction>) {
        let (now, mut actions) = (Time::from_ns(self.now), Vec::new());
        let cluster: &mut Cluster = &mut self.hosts[host].cluster;
        if let Some(watch) = &self.watch {
            watch.borrow_mut().cluster(host, cluster, now, event);
        }
        (cluster.handle(now, event, &mut actions), actions)
    }

    pub(super) fn tell_machine(&mut self, id: MachineId, event: &MachineEvent) {
        let now = Time::from_ns(self.now);
        let watch = self.watch.clone();
        let Some(machine) = self.place(id).and_then(|place| place.machine.as_mut()) else { return };
        let mut actions = Vec::new();
        if let Some(watch) = watch {
            watch.borrow_mut().machine(machine, now, event);
        }
        let result = machine.handle(now, event, &mut actions);
        assert!(result.is_ok(), "machine {id:?} at {now:?}: {event:?}: {result:?}");
        self.check_answer(id, event, &actions);
        self.touched.push(Node::Machine(id));
        for action in &actions {
            self.log(Node::Machine(id), action);
        }
        for action in actions {
            self.machine_acts(id, action);
        }
    }
}
