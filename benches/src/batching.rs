//! One Machine that always holds the same number of requests: prompts join, decodes grow block by block, and each
//! end makes room for the next.

use splitcore_core::config::MachineConfig;
use splitcore_core::event::{MachineAction, MachineEvent};
use splitcore_core::id::{AssignmentSeq, Attempt, LegKey, MachineId, Order, RequestId};
use splitcore_core::leg::{Command, Work};
use splitcore_core::machine::Machine;
use splitcore_core::placement::Upto;
use splitcore_core::time::Time;

use crate::draws::Draws;

const BLOCKS: u32 = 1 << 16;
const PASS_NS: u64 = 30_000_000;

/// A Machine and what its engine knows: how many tokens each request still makes.
#[derive(Debug)]
pub struct Batching {
    /// The Machine.
    pub machine: Machine,
    draws: Draws,
    left: Vec<u32>,
    ended: Vec<LegKey>,
    actions: Vec<MachineAction>,
    now_ns: u64,
}

impl Batching {
    /// A Machine with so many requests.
    pub fn new(requests: usize, seed: u64) -> Self {
        let config = MachineConfig { blocks: BLOCKS, ..MachineConfig::default() };
        let id = MachineId { index: 0, incarnation: 1 };
        let mut batching = Self {
            machine: Machine::new(id, config).expect("the options are in range"),
            draws: Draws::new(seed),
            left: Vec::new(),
            ended: Vec::new(),
            actions: Vec::new(),
            now_ns: 0,
        };
        for _ in 0..requests {
            batching.add();
        }
        batching.tell(&MachineEvent::Tick);
        batching
    }

    /// The running pass ends and the next one starts. Returns its decodes.
    pub fn step(&mut self) -> usize {
        self.now_ns += PASS_NS;
        self.ended.clear();
        let plan = self.machine.plan();
        let prefills = plan.prefills.iter().map(|prefill| prefill.key);
        for key in prefills.chain(plan.decodes.iter().copied()) {
            let left = &mut self.left[key.request.0 as usize];
            *left -= 1;
            if *left == 0 {
                self.ended.push(key);
            }
        }
        let pass = plan.pass;
        for _ in 0..self.ended.len() {
            self.add();
        }
        let ended = std::mem::take(&mut self.ended);
        let done = MachineEvent::IterationDone { pass, ended };
        self.tell(&done);
        if let MachineEvent::IterationDone { ended, .. } = done {
            self.ended = ended;
        }
        self.machine.plan().decodes.len()
    }

    fn add(&mut self) {
        let (prompt_tokens, output_tokens) = (self.draws.between(64, 512), self.draws.between(1, 256));
        let request = self.left.len() as u64;
        self.left.push(output_tokens);
        let key = LegKey { request: RequestId(request), attempt: Attempt(1) };
        let work = Work {
            prompt_tokens,
            start: 0,
            upto: Upto::End,
            max_new_tokens: output_tokens,
            terms: splitcore_core::leg::Terms::default(),
        };
        let command = Command::Compute { key, order: Order(request), work };
        self.tell(&MachineEvent::Command {
            epoch: splitcore_core::id::Epoch(1),
            seq: AssignmentSeq(request + 1),
            command,
        });
    }

    fn tell(&mut self, event: &MachineEvent) {
        self.actions.clear();
        let told = self.machine.handle(Time::from_ns(self.now_ns), event, &mut self.actions);
        let _ = told.expect("the events agree with what the machine holds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_number_of_requests_and_evicts_none() {
        let mut batching = Batching::new(64, 1);
        let decodes: usize = (0..1_000).map(|_| batching.step()).sum();
        assert_eq!(batching.machine.report().legs, 64);
        assert_eq!(batching.machine.counters().evicted, 0);
        assert_eq!(batching.machine.check(), Ok(()));
        assert!(decodes > 50 * 1_000, "{decodes} decodes in 1,000 passes");
    }
}
