//! Runs without a report, for who judges many of them.

use crate::SimError;
use crate::faults::Recovery;
use crate::observer::Observer;
use crate::options::Options;
use crate::report::{Reference, RequestRow, TbtRule};
use crate::setup::{MachineSetup, Setup};
use crate::simulate;
use crate::workload::TraceRequest;
use crate::world::World;

/// Options that have been checked: a run that can start, any number of times.
pub struct Scenario {
    setup: Setup,
}

/// What a run leaves before anything is made of it.
#[derive(Debug, Clone)]
pub struct Run {
    /// Each request by id; what had not ended when the observer had seen enough is unfinished.
    pub rows: Vec<RequestRow>,
    /// Events handled.
    pub events: u64,
    /// Simulated time of the last end.
    pub last_end_ns: u64,
    /// Cost-model look-ups outside what was profiled.
    pub out_of_range_lookups: u64,
}

impl Scenario {
    /// Checks all options and makes the workload.
    ///
    /// # Errors
    /// Bad options or input files.
    pub fn new(options: &Options) -> Result<Self, SimError> {
        Ok(Self { setup: Setup::new(options)? })
    }

    /// The requests, by arrival; a request's id is its index.
    pub fn requests(&self) -> &[TraceRequest] {
        &self.setup.workload.requests
    }

    /// What was done with the files of the workload that a reader should know, each a sentence.
    pub fn notes(&self) -> &[String] {
        &self.setup.workload.notes
    }

    /// The traffic class of a request: an index of [`Options::classes`], 0 without classes.
    pub fn class_of(&self, request: usize) -> usize {
        self.setup.class_of(request)
    }

    /// Times of a request alone on the idle reference machine.
    pub fn idle(&self, prompt_tokens: u32, output_tokens: u32) -> Reference {
        self.setup.idle(prompt_tokens, output_tokens)
    }

    /// How the cost model's objectives average a request's time between tokens.
    pub fn tbt_rule(&self) -> TbtRule {
        self.setup.tbt_rule()
    }

    /// GPUs of all machines together.
    pub fn gpus(&self) -> u64 {
        let counts = |machine: &&MachineSetup| !machine.is_instant;
        self.setup.machines.iter().filter(counts).map(|machine| u64::from(machine.kind.gpus())).sum()
    }

    /// Runs the workload; of faults, if any, with requests that resume.
    ///
    /// # Errors
    /// A stuck run.
    pub fn run(&self, observer: impl Observer) -> Result<Run, SimError> {
        let mut world = World::new(&self.setup, Recovery::Resume, observer)?;
        simulate::run(&mut world, &self.setup, &mut |_, _| true)?;
        Ok(Run {
            rows: world.rows(),
            events: world.events,
            last_end_ns: world.last_end_ns,
            out_of_range_lookups: world.out_of_range_lookups,
        })
    }
}
