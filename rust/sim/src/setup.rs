//! From the options a user wrote to a run that can start: every option is checked here, before anything happens.

use std::str::FromStr;

use splitcore_core::config::{
    Admission, ClusterConfig, Cut, MachineConfig, MixedReturn, PolicyKind, SECOND_NS, Ties, TransferRule,
};
use splitcore_core::cost::CostTable;
use splitcore_core::event::{ClusterEvent, Link, Role, Slo};
use splitcore_core::placement::Reserve;

use crate::SimError;
use crate::cost::{CostKind, CostModel, IdleReference, Profile};
use crate::faults::FaultPlan;
use crate::links::{Contention, Nic};
use crate::machines::{Catalogue, MachineGroup, MachineKind, Model, kv_capacity_tokens, parse_groups};
use crate::options::Options;
use crate::phase::isolate;
use crate::report::{AdmissionLimits, Reference, TbtRule};
use crate::workload::{
    Arrivals, InvalidRows, LaterTurns, Reading, Sampling, Source, TOKENS_MAX, TrafficClass, Workload,
    WorkloadSpec, mixed,
};

/// KV blocks without a memory limit: more than any run holds, and few enough for token counts to stay small.
pub(crate) const UNLIMITED_BLOCKS: u32 = 1 << 27;

/// One machine of the cluster to simulate.
#[derive(Debug, Clone)]
pub(crate) struct MachineSetup {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) kind: MachineKind,
    /// Its entry in [`Setup::costs`].
    pub(crate) cost: usize,
    pub(crate) config: MachineConfig,
    pub(crate) link: Link,
    pub(crate) nic: Nic,
    /// Its passes take no time.
    pub(crate) is_instant: bool,
}

/// Everything a run needs.
pub(crate) struct Setup {
    pub(crate) model: Model,
    pub(crate) cost_kind: CostKind,
    pub(crate) costs: Vec<CostModel>,
    /// What the Cluster is told of each entry of `costs`.
    pub(crate) cost_tables: Vec<CostTable>,
    pub(crate) reference: IdleReference,
    pub(crate) machines: Vec<MachineSetup>,
    pub(crate) cluster: ClusterConfig,
    /// Of the requests of each class; of one where there are no classes.
    pub(crate) limits: Vec<AdmissionLimits>,
    /// Of the requests of each class, likewise.
    pub(crate) priorities: Vec<i32>,
    /// What the classes are called; empty where there are none.
    pub(crate) class_names: Vec<String>,
    pub(crate) contention: Contention,
    pub(crate) message_delay_ns: u64,
    pub(crate) workload: Workload,
    pub(crate) faults: Option<FaultPlan>,
    pub(crate) seed: u64,
    pub(crate) check: bool,
}

impl Setup {
    /// How the objectives of the cost model average a request's time between tokens.
    pub(crate) fn tbt_rule(&self) -> TbtRule {
        match self.cost_kind {
            CostKind::SplitwiseSim => TbtRule::AsPublished,
            CostKind::Measured
            | CostKind::DistServe
            | CostKind::DistServeOverhead
            | CostKind::DistServeVllm => TbtRule::MeanGap,
        }
    }

    /// Times of a request alone on the idle reference machine.
    pub(crate) fn idle(&self, prompt_tokens: u32, output_tokens: u32) -> Reference {
        Reference {
            ttft_ns: self.reference.ttft_ns(prompt_tokens),
            tbt_ns: self.reference.tbt_ns(prompt_tokens, output_tokens),
            e2e_ns: self.reference.e2e_ns(prompt_tokens, output_tokens),
        }
    }

    /// Checks the options and builds what they describe.
    pub(crate) fn new(options: &Options) -> Result<Self, SimError> {
        let model = Model::parse(&options.model)?;
        let cost_kind = CostKind::from_str(&options.costs)?;
        let groups = groups(options, &Catalogue::new(&options.machine_types)?)?;
        let cluster = cluster_config(options, model)?;
        let limits = admission_limits(options, cluster.admission)?;
        let link_bandwidth = checked_bandwidth(options.link_bandwidth)?;
        let message_delay_ns = checked_delay_ns(options.message_delay_s)?;
        let profile = match &options.profile {
            Some(path) => Profile::load(path)?,
            None => Profile::builtin(),
        };
        let reference = IdleReference::new(cost_kind, &profile, model)?;
        let mut costs: Vec<(MachineKind, CostModel)> = Vec::new();
        let mut machines = Vec::new();
        let mut numbers = [0_u32; 3];
        for (role, group) in groups {
            let known = costs.iter().position(|(kind, _)| *kind == group.kind);
            let cost = known.unwrap_or(costs.len());
            if known.is_none() {
                let cost = CostModel::new(cost_kind, &profile, model, &group.kind)?;
                costs.push((group.kind.clone(), cost));
            }
            let config = machine_config(model, &group.kind, cost_kind, options)?;
            let bytes_per_s = link_bandwidth.unwrap_or_else(|| group.kind.nic_bytes_per_s());
            let link = Link { bytes_per_s, fixed_cost_ns: group.kind.hardware.fixed_cost_ns };
            let (send, receive) = (bytes_per_s as f64, bytes_per_s as f64);
            let nic = Nic { send_bytes_per_s: send, receive_bytes_per_s: receive };
            for _ in 0..group.count {
                let number = &mut numbers[role as usize];
                let name = machine_name(role, *number);
                *number += 1;
                let kind = group.kind.clone();
                machines.push(MachineSetup { name, role, kind, cost, config, link, nic, is_instant: false });
            }
        }
        let names = || machines.iter().map(|machine| machine.name.as_str());
        let faults = options.faults.as_deref().map(|text| FaultPlan::parse(text, names())).transpose()?;
        faults.as_ref().map_or(Ok(()), |plan| plan.check_delay(message_delay_ns))?;
        let costs: Vec<CostModel> = costs.into_iter().map(|(_, cost)| cost).collect();
        let pass_tokens_max = MachineConfig::default().batch_tokens_max;
        let mut setup = Self {
            model,
            cost_kind,
            cost_tables: costs.iter().map(|cost| cost.table(pass_tokens_max)).collect::<Result<_, _>>()?,
            costs,
            reference,
            machines,
            cluster,
            limits,
            priorities: match options.classes.as_slice() {
                [] => vec![0],
                classes => classes.iter().map(|class| class.priority).collect(),
            },
            class_names: options.classes.iter().map(|class| class.name.clone()).collect(),
            contention: if options.contention { Contention::On } else { Contention::Off },
            message_delay_ns,
            workload: options.workload()?,
            faults,
            seed: options.seed,
            check: options.check,
        };
        isolate(options, &mut setup)?;
        Ok(setup)
    }
}

/// `p0`, `t1`, `m2`: the role's letter and a number within the role.
fn machine_name(role: Role, number: u32) -> String {
    let letter = match role {
        Role::Prompt => 'p',
        Role::Token => 't',
        Role::Mixed => 'm',
    };
    format!("{letter}{number}")
}

fn groups(options: &Options, catalogue: &Catalogue) -> Result<Vec<(Role, MachineGroup)>, SimError> {
    let sides = [
        ("prompt", Role::Prompt, &options.prompt),
        ("token", Role::Token, &options.token),
        ("mixed", Role::Mixed, &options.mixed),
    ];
    if let Some(unsplit) = &options.unsplit {
        if let Some((name, ..)) = sides.iter().find(|(_, _, text)| text.is_some()) {
            let got = format!("`{unsplit}` beside `{name}`");
            return Err(SimError::config("unsplit", "either an unsplit cluster or pools", got));
        }
        let groups = parse_groups("unsplit", unsplit, catalogue)?;
        return Ok(groups.into_iter().map(|group| (Role::Mixed, group)).collect());
    }
    let mut all = Vec::new();
    for (name, role, text) in sides {
        if let Some(text) = text {
            all.extend(parse_groups(name, text, catalogue)?.into_iter().map(|group| (role, group)));
        }
    }
    let has = |role| all.iter().any(|&(of, _)| of == role);
    let expected = "machines, as 26xdgx-a100, or mixed machines, or an unsplit cluster";
    if !has(Role::Prompt) && !has(Role::Mixed) {
        return Err(SimError::config("prompt", expected, "an empty pool"));
    }
    if !has(Role::Token) && !has(Role::Mixed) {
        return Err(SimError::config("token", expected, "an empty pool"));
    }
    Ok(all)
}

fn machine_config(
    model: Model,
    kind: &MachineKind,
    cost_kind: CostKind,
    options: &Options,
) -> Result<MachineConfig, SimError> {
    // Simulated links may be slow; they never stand still.
    let mut base =
        MachineConfig { report_interval_ns: SECOND_NS, transfer_limit_ns: None, ..MachineConfig::default() };
    options.thresholds.set_machine(&mut base)?;
    let capacity_tokens = kv_capacity_tokens(model, kind, cost_kind.weights())?;
    let blocks = if options.kv_limit {
        let blocks = capacity_tokens / u64::from(base.block_tokens);
        u32::try_from(blocks).unwrap_or(UNLIMITED_BLOCKS)
    } else {
        UNLIMITED_BLOCKS
    };
    Ok(MachineConfig { blocks, pipeline_stages: kind.pp, ..base })
}

/// One of a few names, or an error that lists them.
fn named<T: Copy>(option: &'static str, names: &[(&str, T)], text: &str) -> Result<T, SimError> {
    names.iter().find(|(name, _)| *name == text).map(|&(_, value)| value).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|&(name, _)| name).collect();
        SimError::config(option, known.join(", "), format!("`{text}`"))
    })
}

fn cluster_config(options: &Options, model: Model) -> Result<ClusterConfig, SimError> {
    let policies = PolicyKind::ALL.map(|(kind, name)| (name, kind));
    let default_policy = if options.unsplit.is_some() { "jsq" } else { "splitwise" };
    let policy = named("policy", &policies, options.policy.as_deref().unwrap_or(default_policy))?;
    let transfers = [
        ("auto", TransferRule::Auto),
        ("serialized", TransferRule::Serialized),
        ("layer-wise", TransferRule::LayerWise),
    ];
    let returns = [("drained", MixedReturn::Drained), ("idle", MixedReturn::Idle)];
    let reserves = [("at-arrival", Reserve::AtArrival), ("at-source-done", Reserve::AtSourceDone)];
    let cuts = [("at-prompt", Cut::AtPrompt), ("before-last", Cut::BeforeLast)];
    let ties = [("turn", Ties::Turn), ("first", Ties::First), ("last", Ties::Last)];
    let admissions =
        [("bounds", Admission::Bounds), ("early", Admission::Early), ("predicted", Admission::Predicted)];
    let requests_max = options.max_in_flight.unwrap_or(u32::MAX);
    if requests_max == 0 {
        return Err(SimError::config("max_in_flight", "at least 1", 0));
    }
    let mut config = ClusterConfig {
        policy,
        mixed_return: named("mixed_return", &returns, &options.mixed_return)?,
        reserve: named("reserve", &reserves, &options.reserve)?,
        cut: named("cut", &cuts, &options.cut)?,
        transfer: named("transfer", &transfers, &options.transfer)?,
        ties: named("ties", &ties, &options.ties)?,
        kv_bytes_per_token: Some(model.kv_bytes_per_token()),
        requests_max,
        admission: named("admission", &admissions, &options.admission)?,
        recovery_headroom_permille: checked_permille(options.recovery_headroom)?,
        split_from_tokens: options.split_from,
        seed: options.seed,
        ..ClusterConfig::default()
    };
    options.thresholds.set_cluster(&mut config)?;
    Ok(config)
}

fn checked_permille(share: f64) -> Result<u32, SimError> {
    if (0.0..=0.999).contains(&share) {
        Ok((share * 1000.0).round() as u32)
    } else {
        Err(SimError::config("recovery_headroom", "0 to 0.999", share))
    }
}

/// Limits of each class; a rule that holds arrivals against limits needs one.
fn admission_limits(options: &Options, admission: Admission) -> Result<Vec<AdmissionLimits>, SimError> {
    let checked = |option, limit_s: Option<f64>| match limit_s {
        None => Ok(None),
        Some(limit_s) if (1e-9..=1e9).contains(&limit_s) => Ok(Some((limit_s * 1e9).round() as u64)),
        Some(limit_s) => Err(SimError::config(option, "seconds from 1e-9 to 1e9", limit_s)),
    };
    let limits = |ttft_s: Option<f64>, tbt_s: Option<f64>| -> Result<AdmissionLimits, SimError> {
        Ok(AdmissionLimits { ttft_ns: checked("slo_ttft_s", ttft_s)?, tbt_ns: checked("slo_tbt_s", tbt_s)? })
    };
    let of_all = limits(options.slo_ttft_s, options.slo_tbt_s)?;
    let of_class = |class: &TrafficClass| {
        let (ttft_s, tbt_s) =
            (class.slo_ttft_s.or(options.slo_ttft_s), class.slo_tbt_s.or(options.slo_tbt_s));
        limits(ttft_s, tbt_s)
    };
    let limits: Vec<AdmissionLimits> = match options.classes.as_slice() {
        [] => vec![of_all],
        classes => classes.iter().map(of_class).collect::<Result<_, _>>()?,
    };
    if admission != Admission::Bounds && limits.iter().all(|limits| *limits == AdmissionLimits::default()) {
        let expected = "slo_ttft_s or slo_tbt_s beside it";
        return Err(SimError::config("admission", expected, format!("`{}` alone", options.admission)));
    }
    Ok(limits)
}

impl Setup {
    /// The class of a request, by number; 0 where there are none.
    pub(crate) fn class_of(&self, request: usize) -> usize {
        self.workload.classes.get(request).map_or(0, |&class| class.into())
    }

    /// The limits of each class, as the Cluster is told them.
    pub(crate) fn slos(&self) -> impl Iterator<Item = ClusterEvent> {
        let told = |(class, limits): (u32, &AdmissionLimits)| {
            limits.slo().map(|slo| ClusterEvent::SetSlo { class, slo: Some(slo) })
        };
        (0..).zip(&self.limits).filter_map(told)
    }
}

impl AdmissionLimits {
    /// As the Cluster is told them.
    pub(crate) fn slo(self) -> Option<Slo> {
        let Self { ttft_ns, tbt_ns } = self;
        (self != Self::default())
            .then(|| Slo { ttft_ns: ttft_ns.unwrap_or(u64::MAX), tbt_ns: tbt_ns.unwrap_or(u64::MAX) })
    }
}

fn checked_bandwidth(bytes_per_s: Option<f64>) -> Result<Option<u64>, SimError> {
    match bytes_per_s {
        None => Ok(None),
        Some(rate) if (1.0..1e18).contains(&rate) => Ok(Some(rate as u64)),
        Some(rate) => Err(SimError::config("link_bandwidth", "at least 1 byte a second", rate)),
    }
}

fn checked_delay_ns(delay_s: f64) -> Result<u64, SimError> {
    if (0.0..=3600.0).contains(&delay_s) {
        Ok((delay_s * 1e9).round() as u64)
    } else {
        Err(SimError::config("message_delay_s", "seconds from 0 to 3600", delay_s))
    }
}

impl Options {
    /// The requests alone that these options name, for whoever runs them otherwise.
    ///
    /// # Errors
    /// As a run with them.
    pub fn workload(&self) -> Result<Workload, SimError> {
        mixed(&workload_spec(self)?, &self.classes)
    }
}

fn workload_spec(options: &Options) -> Result<WorkloadSpec, SimError> {
    let arrivals = options.arrivals.as_deref().map(Arrivals::from_str).transpose()?;
    Ok(WorkloadSpec {
        source: Source::from(options.trace.as_str()),
        rate_rps: options.rate,
        duration_s: options.duration_s,
        arrivals,
        cv: options.cv,
        sampling: Sampling::from_str(&options.sampling)?,
        seed: options.seed,
        requests: options.requests,
        reading: reading(options)?,
    })
}

fn reading(options: &Options) -> Result<Reading, SimError> {
    let invalid_rows = [("error", InvalidRows::Error), ("skip", InvalidRows::Skip)];
    let later_turns = [("error", LaterTurns::Error), ("after-arrival", LaterTurns::AfterArrival)];
    if let Some(tokens) = options.missing_output.filter(|tokens| !(1..=TOKENS_MAX).contains(tokens)) {
        return Err(SimError::config("missing_output", format!("1 to {TOKENS_MAX} tokens"), tokens));
    }
    Ok(Reading {
        invalid_rows: named("invalid_rows", &invalid_rows, &options.invalid_rows)?,
        missing_output: options.missing_output,
        later_turns: named("later_turns", &later_turns, &options.later_turns)?,
        tokenizer: options.tokenizer.clone(),
        own_times: options.own_times,
    })
}
