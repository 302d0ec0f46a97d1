//! Faults of machines and of the Cluster: what a user asks for, and when each strikes. Nothing here depends on the course of a run, so that
//! two runs of one plan meet the same faults.

use crate::SimError;
use crate::workload::{ARRIVAL_MAX_NS, Draws};

/// How long a crashed machine is away unless said.
const REPAIR_DEFAULT_S: f64 = 30.0;
/// Unless said, how long a killed Cluster is away, and how long the next one waits for its machines.
const RESTART_DEFAULT_S: f64 = 1.0;
const GRACE_DEFAULT_S: f64 = 1.0;
/// What a killed Cluster is called.
const CLUSTER_NAME: &str = "cluster";
/// What a plan is made of.
const PARTS: &str = "mtbf=SECONDS, repair=SECONDS, kill=NAME@SECONDS, restart=SECONDS or grace=SECONDS";
/// Down to a millisecond, so that time goes on between two crashes of one machine.
const SPAN_RANGE_S: std::ops::RangeInclusive<f64> = 1e-3..=1e9;

/// What becomes of requests that a fault has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// They go on after the tokens that their clients have; after a restart of the Cluster, where they are.
    Resume,
    /// They begin again from their prompts (the choice of the Splitwise paper); with the Cluster, all of them do.
    Restart,
}

/// What a fault takes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A machine, by index.
    Machine(u32),
    /// The Cluster's state.
    Cluster,
}

/// A crash at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kill {
    pub(crate) at_ns: u64,
    pub(crate) target: Target,
}

/// The faults of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FaultPlan {
    /// As written.
    pub(crate) kills: Vec<Kill>,
    /// Mean time one machine is up before it crashes of its own accord.
    pub(crate) mtbf_s: Option<f64>,
    /// Time from a crash until the machine is back, empty.
    pub(crate) repair_ns: u64,
    /// Time without a Cluster after it was killed.
    pub(crate) restart_ns: u64,
    /// Time in which machines register with the next one.
    pub(crate) grace_ns: u64,
}

impl FaultPlan {
    /// Reads `mtbf=SECONDS,repair=SECONDS,kill=NAME@SECONDS,restart=SECONDS,grace=SECONDS`, for machines of these
    /// names.
    ///
    /// # Errors
    /// [`SimError::Config`] that names the first part that cannot be read.
    pub(crate) fn parse<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Result<Self, SimError> {
        let names: Vec<&str> = names.collect();
        let (mut kills, mut mtbf_s, mut repair_s) = (Vec::new(), None, None);
        let (mut restart_s, mut grace_s) = (None, None);
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                Some(("mtbf", seconds)) => set_once(&mut mtbf_s, seconds, part)?,
                Some(("repair", seconds)) => set_once(&mut repair_s, seconds, part)?,
                Some(("restart", seconds)) => set_once(&mut restart_s, seconds, part)?,
                Some(("grace", seconds)) => set_once(&mut grace_s, seconds, part)?,
                Some(("kill", what)) => kills.push(parse_kill(what, part, &names)?),
                _ => return Err(refused(PARTS, part)),
            }
        }
        if kills.is_empty() && mtbf_s.is_none() {
            return Err(refused("mtbf=SECONDS or kill=NAME@SECONDS beside the repair time", text));
        }
        let kills_cluster = kills.iter().any(|kill| kill.target == Target::Cluster);
        if (restart_s.is_some() || grace_s.is_some()) && !kills_cluster {
            return Err(refused("kill=cluster@SECONDS beside restart and grace", text));
        }
        let span_ns = |span_s: Option<f64>, default_s| (span_s.unwrap_or(default_s) * 1e9).round() as u64;
        Ok(Self {
            kills,
            mtbf_s,
            repair_ns: span_ns(repair_s, REPAIR_DEFAULT_S),
            restart_ns: span_ns(restart_s, RESTART_DEFAULT_S),
            grace_ns: span_ns(grace_s, GRACE_DEFAULT_S),
        })
    }

    /// A registration that is on its way longer than the grace time would come too late.
    ///
    /// # Errors
    /// [`SimError::Config`].
    pub(crate) fn check_delay(&self, message_delay_ns: u64) -> Result<(), SimError> {
        let kills_cluster = self.kills.iter().any(|kill| kill.target == Target::Cluster);
        if kills_cluster && self.grace_ns < message_delay_ns {
            let delay_s = message_delay_ns as f64 / 1e9;
            let expected = format!("grace of at least the message delay, {delay_s} s");
            return Err(refused(expected, &format!("grace={}", self.grace_ns as f64 / 1e9)));
        }
        Ok(())
    }
}

fn refused(expected: impl Into<String>, part: &str) -> SimError {
    SimError::config("faults", expected, format!("`{part}`"))
}

fn set_once(span_s: &mut Option<f64>, seconds: &str, part: &str) -> Result<(), SimError> {
    let read = seconds.trim().parse().ok().filter(|read| SPAN_RANGE_S.contains(read));
    let read = read.ok_or_else(|| refused("seconds from 0.001 to 1e9", part))?;
    match span_s.replace(read) {
        None => Ok(()),
        Some(_) => Err(refused("mtbf, repair, restart and grace once each", part)),
    }
}

fn parse_kill(what: &str, part: &str, names: &[&str]) -> Result<Kill, SimError> {
    let (name, seconds) = what.split_once('@').ok_or_else(|| refused("kill=NAME@SECONDS", part))?;
    let machine = names.iter().position(|known| *known == name.trim());
    let target = match machine {
        Some(machine) => Target::Machine(machine as u32),
        None if name.trim() == CLUSTER_NAME => Target::Cluster,
        None => {
            let (first, last) = (names.first().unwrap_or(&""), names.last().unwrap_or(&""));
            let expected = format!("cluster or a machine of the run, {first} to {last}, before the @");
            return Err(refused(expected, part));
        }
    };
    let at_s: Option<f64> = seconds.trim().parse().ok().filter(|at_s| (0.0..=1e9).contains(at_s));
    let at_s = at_s.ok_or_else(|| refused("seconds from 0 to 1e9 after the @", part))?;
    Ok(Kill { at_ns: (at_s * 1e9).round() as u64, target })
}

/// When machines crash of their own accord: after exponential times up, each machine by a stream of its own. A crash
/// that falls into a repair does nothing.
pub(crate) struct Failures {
    mean_s: f64,
    repair_ns: u64,
    draws: Vec<Draws>,
    /// When each machine is up again.
    up_from_ns: Vec<u64>,
}

impl Failures {
    pub(crate) fn new(mean_s: f64, repair_ns: u64, machines: usize, seed: u64) -> Self {
        Self { mean_s, repair_ns, draws: Draws::for_faults(seed, machines), up_from_ns: vec![0; machines] }
    }

    /// The next crash of a machine; `None` beyond all simulated time.
    pub(crate) fn next_ns(&mut self, machine: u32) -> Option<u64> {
        let at = machine as usize;
        let up_ns = (self.draws[at].exponential() * self.mean_s * 1e9).round() as u64;
        let crash_ns = self.up_from_ns[at].saturating_add(up_ns.max(1));
        self.up_from_ns[at] = crash_ns.saturating_add(self.repair_ns);
        Some(crash_ns).filter(|&crash_ns| crash_ns <= ARRIVAL_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<FaultPlan, SimError> {
        FaultPlan::parse(text, ["p0", "t0", "t1"].into_iter())
    }

    #[test]
    fn all_parts_are_read_in_any_order() {
        let kill = |at_ns, machine| Kill { at_ns, target: Target::Machine(machine) };
        assert_eq!(
            parse("kill=t1@0, repair=5,mtbf=1e3,kill=p0@2.5").unwrap(),
            FaultPlan {
                kills: vec![kill(0, 2), kill(2_500_000_000, 0)],
                mtbf_s: Some(1000.0),
                repair_ns: 5_000_000_000,
                restart_ns: 1_000_000_000,
                grace_ns: 1_000_000_000,
            }
        );
        let plan = parse("grace=0.5,kill=cluster@7,restart=3").unwrap();
        assert_eq!(plan.kills, [Kill { at_ns: 7_000_000_000, target: Target::Cluster }]);
        assert_eq!((plan.restart_ns, plan.grace_ns), (3_000_000_000, 500_000_000));
        assert_eq!(parse("mtbf=60").unwrap().repair_ns, 30_000_000_000);
    }

    #[test]
    fn times_up_have_the_mean_and_machines_streams_of_their_own() {
        let times = |machines, machine: u32| {
            let mut failures = Failures::new(100.0, 7, machines, 3);
            (0..20_000).map(move |_| failures.next_ns(machine).unwrap()).collect::<Vec<_>>()
        };
        let of_two = times(2, 0);
        let mean_s = *of_two.last().unwrap() as f64 / 20_000.0 / 1e9;
        assert!((mean_s / 100.0 - 1.0).abs() < 0.03, "{mean_s}");
        assert_eq!(times(5, 0), of_two, "more machines change nothing");
        assert_ne!(times(2, 1), of_two);
        assert!(of_two.windows(2).all(|pair| pair[0] + 7 < pair[1]));
    }
}
