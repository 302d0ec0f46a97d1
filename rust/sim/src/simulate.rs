//! A whole run: options in, report out.

use std::time::Instant;

use splitcore_core::event::Role;

use crate::SimError;
use crate::faults::Recovery;
use crate::observer::Observer;
use crate::options::Options;
use crate::report::{
    AdmissionReport, ClassReport, FaultReport, FaultTally, Inputs, RequestRecord, RequestRow, RunFacts,
    SloLimits, Summary, Timelines,
};
use crate::setup::Setup;
use crate::world::{World, role_name};

/// Events between two calls of the control function.
const EVENTS_PER_CALL: u64 = 1 << 16;

/// What a run leaves.
#[derive(Debug, Clone)]
pub struct Report {
    /// All metrics.
    pub summary: Summary,
    /// Each request, by id.
    pub requests: Vec<RequestRecord>,
    /// Each request in whole nanoseconds, for files.
    pub rows: Vec<RequestRow>,
    /// Batch sizes over time.
    pub timeline: Timelines,
    /// Names of the machines that requests refer to by index.
    pub machine_names: Vec<String>,
}

/// Runs a workload through a simulated cluster.
///
/// `control` is called every 65,536 events with requests ended and requests in all; it returns false to stop.
/// The same options give the same report, `wall_s` apart. With faults the workload runs twice, and counts twice: the
/// report is that of requests that resume, beside what faults cost where they restart.
///
/// # Errors
/// Bad options or input files, before anything runs; a stuck run; an interruption.
pub fn simulate(options: &Options, control: &mut dyn FnMut(u64, u64) -> bool) -> Result<Report, SimError> {
    simulate_observed(options, control, ())
}

/// As [`simulate`], with somebody watching. What the observer does changes nothing in the run.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_observed(
    options: &Options,
    control: &mut dyn FnMut(u64, u64) -> bool,
    mut observer: impl Observer,
) -> Result<Report, SimError> {
    let setup = Setup::new(options)?;
    if setup.faults.is_none() {
        return Ok(whole_run(&setup, Recovery::Resume, options, control, observer)?.0);
    }
    let count = setup.workload.requests.len() as u64;
    let mut first = |ended, total| control(ended, 2 * total);
    let (mut report, resume) = whole_run(&setup, Recovery::Resume, options, &mut first, &mut observer)?;
    let mut second = |ended, total| control(count + ended, 2 * total);
    let (again, restart) = whole_run(&setup, Recovery::Restart, options, &mut second, &mut observer)?;
    report.summary.faults = resume.zip(restart).map(|(resume, restart)| FaultReport {
        resume: resume.report(report.summary.slo.attainment),
        restart: restart.report(again.summary.slo.attainment),
    });
    Ok(report)
}

/// One run and its report, and what faults cost it.
fn whole_run(
    setup: &Setup,
    recovery: Recovery,
    options: &Options,
    control: &mut dyn FnMut(u64, u64) -> bool,
    observer: impl Observer,
) -> Result<(Report, Option<FaultTally>), SimError> {
    let started = Instant::now();
    let mut world = World::new(setup, recovery, observer)?;
    run(&mut world, setup, control)?;
    let wall_s = started.elapsed().as_secs_f64();
    Ok((report(&world, setup, options, wall_s), world.fault_tally()))
}

/// Steps to the end, or until the observer has seen enough.
pub(crate) fn run<O: Observer>(
    world: &mut World<O>,
    setup: &Setup,
    control: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(), SimError> {
    let total = setup.workload.requests.len() as u64;
    while world.step()? {
        if world.is_seen_enough() {
            return Ok(());
        }
        if let Some(circle) = world.circle() {
            return Err(stuck(world, circle));
        }
        if world.events.is_multiple_of(EVENTS_PER_CALL) && !control(world.ended as u64, total) {
            return Err(SimError::Interrupted);
        }
    }
    if !world.is_over() {
        return Err(stuck(world, "no event is left".into()));
    }
    if setup.check { world.check_drained() } else { Ok(()) }
}

fn stuck<O: Observer>(world: &World<O>, circle: String) -> SimError {
    let (request, state) = world.stuck();
    SimError::Stuck { circle, pending: world.pending() as u64, request, state }
}

fn report<O: Observer>(world: &World<O>, setup: &Setup, options: &Options, wall_s: f64) -> Report {
    let rows = world.rows();
    let tbt_rule = setup.tbt_rule();
    let reference = |prompt: u32, output: u32| setup.idle(prompt, output);
    let (evictions, pauses) = world.evictions_and_pauses();
    let mut summary = Summary::new(Inputs {
        rows: &rows,
        gaps: &world.gaps,
        transfers: &world.transfer_tally,
        machines: &world.tallies,
        tbt_rule,
        limits: SloLimits::default(),
        reference: &reference,
        pools: world.pool_moves(),
        facts: RunFacts {
            admission: AdmissionReport::new(
                &options.admission,
                &setup.limits,
                |at| setup.class_of(at),
                &rows,
                world.rejections.clone(),
            ),
            out_of_range_lookups: world.out_of_range_lookups,
            cost_model: setup.cost_kind.to_string(),
            policy: setup.cluster.policy.name().to_string(),
            model: setup.model.to_string(),
            trace: setup.workload.name.clone(),
            notes: setup.workload.notes.clone(),
            transfer_mode: options.transfer.clone(),
            seed: setup.seed,
            evictions,
            pauses,
            events: world.events,
            duration_ns: world.last_end_ns,
            wall_s,
            digest: world.digest.finish(),
        },
    });
    summary.classes = classes(setup, &rows);
    let record =
        |row: &RequestRow| RequestRecord::new(row, tbt_rule, reference(row.prompt_tokens, row.output_tokens));
    Report {
        summary,
        requests: rows.iter().map(record).collect(),
        rows,
        timeline: timelines(world, setup),
        machine_names: setup.machines.iter().map(|machine| machine.name.clone()).collect(),
    }
}

fn classes(setup: &Setup, rows: &[RequestRow]) -> Vec<ClassReport> {
    let of = |(class, name): (usize, &String)| {
        let rows = rows.iter().enumerate().filter(|&(at, _)| setup.class_of(at) == class);
        let rows: Vec<RequestRow> = rows.map(|(_, row)| *row).collect();
        ClassReport::new(name, setup.priorities[class], setup.limits[class], &rows)
    };
    setup.class_names.iter().enumerate().map(of).collect()
}

fn timelines<O: Observer>(world: &World<O>, setup: &Setup) -> Timelines {
    let mut all = Timelines { t_s: Vec::new(), pools: Vec::new() };
    for role in [Role::Prompt, Role::Token, Role::Mixed] {
        let machines = setup.machines.iter().filter(|machine| machine.role == role).count();
        if machines == 0 {
            continue;
        }
        let mut timeline = world.timelines[role as usize].clone();
        timeline.stretch(world.last_end_ns);
        let series = timeline.series(world.last_end_ns, machines as u32);
        all.t_s.clone_from(&series.t_s);
        all.pools.push((role_name(role).to_string(), series));
    }
    all
}
