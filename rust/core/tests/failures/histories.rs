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

fn history(seed: u64) {
    let mut draws = Draws(seed);
    let mut rig = Rig::new(config(&mut draws));
    rig.tolerant = true;
    let requests = 1 + draws.below(6);
    for request in 1..=requests {
        let prompt_tokens = 1 + draws.below(12) as u32;
        rig.arrive(request, prompt_tokens, 1 + draws.below(20) as u32);
        rig.backwards = draws.below(2) == 0;
        rig.steps(draws.below(4) as u32);
    }
    for _ in 0..draws.below(8) {
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

#[test]
fn random_histories_end_with_empty_books() {
    let seeds = std::env::var("HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let first = std::env::var("HISTORY").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        eprintln!("seed {seed}");
        history(seed);
    }
}
