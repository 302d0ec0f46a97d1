//! Sequences that once broke the Cluster's books, each as the shortest that did.

#![allow(clippy::unwrap_used, reason = "tests")]

use splitcore_core::cluster::Cluster;
use splitcore_core::config::{ClusterConfig, Level};
use splitcore_core::event::{Arrival, ClusterAction, ClusterEvent, Join, Role};
use splitcore_core::id::{Attempt, LegKey, MachineId, RequestId};
use splitcore_core::leg::Notice;
use splitcore_core::time::Time;

fn external() -> Cluster {
    Cluster::new(ClusterConfig { level: Level::External, ..ClusterConfig::default() }).unwrap()
}

fn apply(cluster: &mut Cluster, event: ClusterEvent) -> Vec<ClusterAction> {
    let mut actions = Vec::new();
    let _ = cluster.handle(Time::ZERO, &event, &mut actions).unwrap();
    cluster.check().unwrap();
    actions
}

fn join(index: u32) -> ClusterEvent {
    ClusterEvent::Join(Join {
        machine: MachineId { index, incarnation: 1 },
        role: Role::Mixed,
        kv_capacity_tokens: 10_000,
        speed_weight: 1,
        link: None,
    })
}

fn progress(attempt: u32, tokens: u32) -> ClusterEvent {
    let key = LegKey { request: RequestId(1), attempt: Attempt(attempt) };
    ClusterEvent::Fact(Notice::Progress { key, tokens })
}

#[test]
fn tokens_told_of_while_a_request_is_parked_belong_to_its_next_prompt() {
    let mut cluster = external();
    apply(&mut cluster, join(0));
    apply(&mut cluster, ClusterEvent::Arrive(Arrival::new(1, 100, 50)));
    apply(&mut cluster, ClusterEvent::Lose { machine: MachineId { index: 0, incarnation: 1 } });
    apply(&mut cluster, progress(2, 7));
    apply(&mut cluster, join(1));
    assert_eq!(cluster.load(1).unwrap().prompt_pending_tokens, 107);
}

#[test]
fn more_tokens_than_positions_are_not_counted() {
    let mut cluster = external();
    apply(&mut cluster, join(0));
    apply(&mut cluster, join(1));
    apply(&mut cluster, ClusterEvent::Arrive(Arrival::new(1, 100, 50)));
    apply(&mut cluster, progress(1, u32::MAX));
    apply(&mut cluster, progress(1, u32::MAX));
    assert_eq!(cluster.load(0).unwrap().kv_tokens, u64::from(u32::MAX));
    apply(&mut cluster, ClusterEvent::Lose { machine: MachineId { index: 0, incarnation: 1 } });
}
