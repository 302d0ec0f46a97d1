//! Random histories of failures on four machines, from one seed each.

use splitcore_core::cluster::MachineState;
use splitcore_core::config::{ClusterConfig, Cut, PolicyKind, SECOND_NS, TransferRule};
use splitcore_core::event::{ClusterEvent, Outcome};
use splitcore_core::placement::Reserve;

use crate::rig::{Link, Rig};
use crate::strike::GRACE_NS;

struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}

fn config(draws: &mut Draws) -> ClusterConfig {
    let pick = |draws: &mut Draws| draws.below(2) == 0;
    ClusterConfig {
        policy: if draws.below(4) == 0 { PolicyKind::Jsq } else { PolicyKind::Splitwise },
        cut: if pick(draws) { Cut::AtPrompt } else { Cut::BeforeLast },
        reserve: if draws.below(4) == 0 { Reserve::AtSourceDone } else { Reserve::AtArrival },
        transfer: if pick(draws) { TransferRule::LayerWise } else { TransferRule::Serialized },
        attempts_max: 1000,
        ..ClusterConfig::default()
    }
}

/// Something happens to a machine, a transfer, a request or the Cluster.
fn strike(rig: &mut Rig, draws: &mut Draws) -> String {
    let at = draws.below(4) as u32;
    let other = (at + 1 + draws.below(3) as u32) % 4;
    let what = draws.below(14);
    let note = format!("{what} at {at} {other}");
    match what {
        0 if rig.is_up(at) => rig.lose(at, draws.below(2) == 0),
        1 if rig.is_up(at) && !rig.is_away(at) => rig.break_session(at),
        2 if rig.is_up(at) && rig.is_up(other) => rig.reset_peers(at, other),
        3 if rig.is_up(at) && !rig.is_away(at) && !rig.paused.contains(&at) => rig.expire(at),
        4 => {
            rig.restart(GRACE_NS);
        }
        5 if rig.is_up(at) => {
            let machine = rig.id(at);
            let _ = rig.tell_cluster(&ClusterEvent::Drain { machine });
        }
        6 => rig.cancel(1 + draws.below(6)),
        7 if rig.is_up(at) => {
            rig.paused.insert(at);
        }
        8 => {
            rig.paused.clear();
            rig.held.clear();
        }
        9 if !rig.transfers.is_empty() => {
            let one = draws.below(rig.transfers.len() as u64) as usize;
            let key = rig.transfers[one].put.key;
            if !rig.paused.contains(&rig.transfers[one].from.index) {
                rig.fail_one(one, key);
            }
        }
        10 if !rig.transfers.is_empty() => {
            let one = draws.below(rig.transfers.len() as u64) as usize;
            rig.transfers[one].stalled ^= true;
        }
        11 => {
            let links = [Link::Up(at), Link::Down(at), Link::Peer(at, other), Link::Peer(other, at)];
            rig.held.insert(links[draws.below(4) as usize]);
        }
        12 => rig.wait_ns([1, 3, 11, 31][draws.below(4) as usize] * SECOND_NS),
        13 if !rig.is_up(at) => rig.boot(at),
        13 if rig.is_away(at) => rig.rejoin(at),
        _ => {}
    }
    note
}

/// Sessions break and come back in time, machines stand still, the Cluster restarts and hears of all: nothing is lost.
fn interrupt(rig: &mut Rig, draws: &mut Draws) {
    let at = draws.below(4) as u32;
    let other = (at + 1 + draws.below(3) as u32) % 4;
    let what = draws.below(5);
    eprintln!("{what} at {at} {other}");
    match what {
        0 => rig.break_session(at),
        1 => rig.reset_peers(at, other),
        2 => drop(rig.paused.insert(at)),
        3 => drop(
            rig.held.insert([Link::Up(at), Link::Down(at), Link::Peer(at, other)][draws.below(3) as usize]),
        ),
        _ => {
            assert_eq!(rig.cluster.counters().faults, 0);
            // A leg whose first command is lost with the Cluster is placed again, and that is a fault.
            rig.paused.clear();
            rig.held.clear();
            rig.settle();
            rig.restart(GRACE_NS);
        }
    }
    rig.steps(draws.below(6) as u32);
    for at in (0..4).filter(|&at| rig.is_away(at)).collect::<Vec<_>>() {
        rig.register(at).unwrap();
    }
    if draws.below(2) == 0 {
        rig.paused.clear();
        rig.held.clear();
    }
}

fn arrive_some(draws: &mut Draws) -> Rig {
    let mut rig = Rig::new(config(draws));
    rig.tolerant = true;
    let requests = 1 + draws.below(6);
    for request in 1..=requests {
        let prompt_tokens = 1 + draws.below(12) as u32;
        rig.arrive(request, prompt_tokens, 1 + draws.below(20) as u32);
        rig.backwards = draws.below(2) == 0;
        rig.steps(draws.below(4) as u32);
    }
    rig
}

fn history(seed: u64) {
    let mut draws = Draws(seed);
    let mut rig = arrive_some(&mut draws);
    for _ in 0..draws.below(12) {
        rig.backwards = draws.below(2) == 0;
        rig.steps(draws.below(8) as u32);
        let note = strike(&mut rig, &mut draws);
        eprintln!("{note}");
    }
    rig.free_transfers();
    rig.held.clear();
    rig.paused.clear();
    for at in 0..4 {
        let state = rig.cluster.load(at).map(|load| load.state);
        if state == Some(MachineState::Draining) && rig.is_up(at) {
            rig.lose(at, true);
        }
        if !rig.is_up(at) {
            rig.boot(at);
        } else if rig.is_away(at) {
            rig.rejoin(at);
        }
    }
    rig.finish();
    let fine = |outcome: &Outcome| matches!(outcome, Outcome::Finished | Outcome::Cancelled);
    assert!(rig.ended.values().all(fine), "{:?}", rig.ended);
}

fn interruptions(seed: u64) {
    let mut draws = Draws(seed);
    let mut rig = arrive_some(&mut draws);
    for _ in 0..draws.below(12) {
        rig.backwards = draws.below(2) == 0;
        rig.steps(draws.below(8) as u32);
        interrupt(&mut rig, &mut draws);
    }
    rig.finish();
    assert!(rig.ended.values().all(|outcome| *outcome == Outcome::Finished), "{:?}", rig.ended);
    assert_eq!(rig.cluster.counters().faults, 0);
}

/// Seeds from `HISTORY` on, 0 unless set; as many as `HISTORIES` says.
fn seeds() -> std::ops::Range<u64> {
    let number = |name, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let first = number("HISTORY", 0);
    first..first + number("HISTORIES", 2000)
}

#[test]
fn interruptions_are_no_faults() {
    for seed in seeds() {
        eprintln!("seed {seed}");
        interruptions(seed);
    }
}

#[test]
fn random_histories_end_with_empty_books() {
    for seed in seeds() {
        eprintln!("seed {seed}");
        history(seed);
    }
}
