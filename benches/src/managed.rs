//! A Cluster at the managed level, and what its machines would say: `PrefillDone` and `Released` from the prompt
//! machine, `Finished` and now and then a report from the token machine.

use splitcore_core::cluster::Cluster;
use splitcore_core::config::Level;
use splitcore_core::event::{ClusterAction, ClusterEvent};
use splitcore_core::id::{AssignmentSeq, MachineId};
use splitcore_core::leg::{Notice, Report};
use splitcore_core::time::Time;

use crate::placing::{Books, Placed, arrival, cluster, placed};

/// A token machine reports after so many ends.
const ENDS_PER_REPORT: u32 = 4;
const STEP_NS: u64 = 1_000;

/// What a machine would know of itself.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    seq: AssignmentSeq,
    kv_tokens: u64,
    ends: u32,
}

/// The Cluster, and what its machines hold.
#[derive(Debug)]
pub struct Managed {
    /// The Cluster.
    pub cluster: Cluster,
    actions: Vec<ClusterAction>,
    machines: Vec<Told>,
    now_ns: u64,
    commands: u64,
}

impl Managed {
    /// A Cluster of so many machines.
    pub fn new(machines: u32) -> Self {
        Self {
            cluster: cluster(machines, Level::Managed),
            actions: Vec::new(),
            machines: vec![Told::default(); machines as usize],
            now_ns: 0,
            commands: 0,
        }
    }

    /// Commands so far.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    fn tell(&mut self, event: &ClusterEvent) {
        self.now_ns += STEP_NS;
        self.actions.clear();
        let told = self.cluster.handle(Time::from_ns(self.now_ns), event, &mut self.actions);
        let _ = told.expect("the events agree with the books");
    }

    fn notify(&mut self, machine: u32, notice: Notice) {
        let from = MachineId { index: machine, incarnation: 1 };
        self.tell(&ClusterEvent::Notice { from, notice });
    }

    fn report(&self, machine: u32) -> Report {
        let Told { seq, kv_tokens, .. } = self.machines[machine as usize];
        Report { seq, kv_tokens, ..Report::default() }
    }
}

impl Books for Managed {
    fn place(&mut self, request: u64, prompt_tokens: u32) -> Placed {
        self.tell(&arrival(request, prompt_tokens));
        let mut pair = None;
        for action in &self.actions {
            match action {
                ClusterAction::Command { to, seq, .. } => {
                    self.machines[to.index as usize].seq = *seq;
                    self.commands += 1;
                }
                ClusterAction::Placed(placement) => pair = Some(placed(placement, prompt_tokens)),
                other => panic!("an arrival answered {other:?}"),
            }
        }
        let pair = pair.expect("an arrival is placed");
        self.machines[pair.prompt as usize].kv_tokens += u64::from(prompt_tokens);
        self.machines[pair.token as usize].kv_tokens += u64::from(prompt_tokens) + 1;
        pair
    }

    fn prefill_done(&mut self, placed: &Placed) {
        self.notify(placed.prompt, Notice::PrefillDone { key: placed.key(), sampled: true });
        self.machines[placed.prompt as usize].kv_tokens -= u64::from(placed.prompt_tokens);
        let report = self.report(placed.prompt);
        let to = Some(MachineId { index: placed.token, incarnation: 1 });
        self.notify(placed.prompt, Notice::Released { key: placed.key(), to, report });
    }

    fn finish(&mut self, placed: &Placed) {
        self.notify(placed.token, Notice::Finished { key: placed.key(), tokens: 1 });
        let told = &mut self.machines[placed.token as usize];
        told.kv_tokens -= u64::from(placed.prompt_tokens) + 1;
        told.ends += 1;
        if told.ends.is_multiple_of(ENDS_PER_REPORT) {
            let report = self.report(placed.token);
            self.notify(placed.token, Notice::Report(report));
        }
    }
}
