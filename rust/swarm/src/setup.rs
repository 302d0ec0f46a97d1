//! What a seed chooses: machines, options, clients, the speed of everything, and what goes wrong.

use splitcore_core::config::{
    Admission, ClusterConfig, Cut, Level, MachineConfig, MixedReturn, PolicyKind, Ties, TransferRule,
};
use splitcore_core::cost::{CostKnot, CostPoints, CostTable};
use splitcore_core::event::{Link, Role, Slo};
use splitcore_core::placement::Reserve;

use crate::embedder::Embedding;
use crate::faults::{self, Fault};
use crate::rng::Rng;

/// A request that somebody will send.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its name.
    pub id: u64,
    /// When it is sent.
    pub at_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Cap on its output.
    pub max_new_tokens: u32,
    /// Its output tokens, hidden from the core.
    pub output_tokens: u32,
    /// When the client gives it up, counted from when it was accepted.
    pub cancel_after_ns: Option<u64>,
    /// The id comes again so long after it ended.
    pub again_after_ns: Option<u64>,
    /// Class of the service objective.
    pub class: u32,
    /// Higher goes first.
    pub priority: i32,
    /// Whether it may go on elsewhere after a fault.
    pub resumable: bool,
    /// The machine that must decode it.
    pub pin_token: Option<u32>,
}

/// One place for a machine.
#[derive(Debug, Clone)]
pub struct MachineSetup {
    /// Home pool.
    pub role: Role,
    /// Its options.
    pub config: MachineConfig,
    /// Speed weight.
    pub weight: u32,
    /// Network card.
    pub link: Option<Link>,
    /// What its passes are said to cost.
    pub costs: Option<CostTable>,
    /// When its first incarnation starts.
    pub starts_at_ns: u64,
}

/// Everything that is fixed before a run starts.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Seed of the run's own draws.
    pub seed: u64,
    /// Options of the Cluster, and of its successors but for their epochs.
    pub cluster: ClusterConfig,
    /// Grace time of a Cluster that follows another.
    pub grace_ns: u64,
    /// Limits of the first classes.
    pub slos: [Option<Slo>; 2],
    /// Where there is one, an embedder carries placements out, and the machines are its own.
    pub embedding: Option<Embedding>,
    /// The machines.
    pub machines: Vec<MachineSetup>,
    /// The clients.
    pub clients: Vec<Client>,
    /// What goes wrong, in order.
    pub faults: Vec<Fault>,
    /// The world heals after so many events.
    pub heals_at_event: u64,
    /// Time of a message.
    pub delay_ns: (u64, u64),
    /// Time of a pass.
    pub pass_ns: (u64, u64),
    /// So much later, at most, does the engine say that a pass is over.
    pub engine_lag_ns: u64,
    /// Time of a transfer.
    pub transfer_ns: (u64, u64),
    /// Layers whose landing is told.
    pub layers: u16,
    /// Silence after which a driver ends a session.
    pub heartbeat_ns: u64,
    /// Transfers that fail.
    pub transfer_fails_permille: u64,
    /// Transfers that stand still.
    pub transfer_stalls_permille: u64,
    /// Transfers that take ten times as long.
    pub transfer_slow_permille: u64,
    /// Stops of a transfer that take very long.
    pub slow_stops_permille: u64,
}

impl Setup {
    /// A swarm: each seed turns a random subset of everything on.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let block_tokens = rng.pick(&[1, 2, 4, 16]);
        let (prompt_max, output_max) = (rng.pick(&[4, 20, 60]), rng.pick(&[1, 6, 30]));
        let tight = rng.chance(600);
        let mut machines = machines(&mut rng, prompt_max + output_max, block_tokens, tight);
        let span_ns = rng.pick(&[0, 20_000, 200_000, 1_000_000]);
        let clients = clients(&mut rng, span_ns, (prompt_max, output_max), machines.len() as u64);
        let tokens: u64 = clients.iter().map(|client| u64::from(client.output_tokens)).sum();
        let expected = clients.len() as u64 * 8 + tokens * 2;
        let mut faults = if rng.chance(920) {
            faults::random(&mut rng, expected, machines.len() as u64)
        } else {
            faults::Faults::default()
        };
        let slow = rng.chance(300);
        if !faults.list.is_empty() && rng.chance(300) {
            for machine in machines.iter_mut().skip(1) {
                machine.starts_at_ns = rng.pick(&[0, 0, 5_000, 100_000]);
            }
        }
        if machines.iter().any(|machine| machine.config.transfer_limit_ns.is_none()) {
            faults.stand_still(false);
        }
        let mut setup = Self {
            seed,
            cluster: cluster(&mut rng, seed),
            grace_ns: rng.pick(&[2_000, 20_000, 100_000]),
            slos: [(); 2].map(|()| {
                let slo = Slo { ttft_ns: rng.within(200, 40_000), tbt_ns: rng.within(20, 2_000) };
                rng.chance(500).then_some(slo)
            }),
            embedding: None,
            machines,
            clients,
            heals_at_event: expected + rng.below(500),
            delay_ns: rng.pick(&[(0, 0), (10, 10), (0, 100), (0, 5_000)]),
            pass_ns: if slow { (100, 5_000) } else { rng.pick(&[(1, 1), (50, 200)]) },
            engine_lag_ns: rng.pick(&[0, 0, 3_000]),
            transfer_ns: rng.pick(&[(0, 0), (10, 300), (100, 20_000)]),
            layers: rng.pick(&[1, 1, 3]),
            heartbeat_ns: rng.pick(&[2_000, 20_000]),
            transfer_fails_permille: faults.fails_permille,
            transfer_stalls_permille: faults.stalls_permille,
            transfer_slow_permille: faults.slow_permille,
            slow_stops_permille: faults.slow_stops_permille,
            faults: faults.list,
        };
        if rng.chance(200) {
            setup.interrupt(&mut rng);
        }
        if rng.chance(250) {
            for machine in &mut setup.machines {
                machine.config.pipeline_stages = rng.within(1, 4) as u32;
            }
        }
        if rng.chance(250) {
            for machine in &mut setup.machines {
                let chunk = rng.pick(&[None, Some(1), Some(7), Some(32)]);
                let most = machine.config.batch_tokens_max;
                machine.config.prefill_chunk_tokens = chunk.map(|chunk: u32| chunk.min(most));
            }
        }
        // Real outputs often end at their cap, which is the only end that the Cluster can foresee.
        if rng.chance(300) {
            for client in &mut setup.clients {
                client.output_tokens = client.max_new_tokens;
            }
        }
        setup.embedding = rng.chance(100).then(|| Embedding::random(&mut rng));
        setup
    }

    /// Long passes and transfers that overlap, most of them given up at some point, by messages of uneven speed.
    fn interrupt(&mut self, rng: &mut Rng) {
        self.cluster.transfer = TransferRule::LayerWise;
        self.cluster.reserve = Reserve::AtArrival;
        self.cluster.policy = PolicyKind::Splitwise;
        self.cluster.park_limit_ns = 300_000;
        self.delay_ns = (0, 5_000);
        self.pass_ns = (5_000, 20_000);
        self.transfer_ns = (5_000, 20_000);
        self.layers = 3;
        for client in &mut self.clients {
            client.cancel_after_ns = rng.chance(800).then(|| rng.below(80_000));
        }
    }

    /// Whether no session between a machine and a Cluster breaks in this run.
    pub fn sessions_hold(&self) -> bool {
        self.faults.iter().all(|fault| !fault.kind.breaks_sessions())
    }

    /// No wait of the core is longer than a few of these; nor is any of the world.
    pub fn patience_ns(&self) -> u64 {
        let machine = self.machines.iter().map(|machine| &machine.config);
        let limits = machine.map(|config| {
            config.park_limit_ns + config.transfer_limit_ns.unwrap_or(0) * 6 + config.report_interval_ns
        });
        let stages = self.machines.iter().map(|machine| u64::from(machine.config.pipeline_stages)).max();
        let passes = (self.pass_ns.1 + self.engine_lag_ns) * 200 * stages.unwrap_or(1);
        let cluster = &self.cluster;
        let waits =
            cluster.park_limit_ns + cluster.rejoin_limit_ns + cluster.retry_interval_ns + self.grace_ns;
        limits.max().unwrap_or(0) + waits + passes + cluster.mixed_hold_ns + self.transfer_ns.1 * 10
    }
}

fn cluster(rng: &mut Rng, seed: u64) -> ClusterConfig {
    // A draw of its own: a world that hedges is otherwise the one it was.
    let hedge_after_ns = Rng(!seed).pick(&[None, Some(500), Some(5_000), Some(50_000)]);
    ClusterConfig {
        hedge_after_ns,
        level: Level::Managed,
        policy: rng.pick(&PolicyKind::ALL).0,
        prompt_pending_tokens_max: rng.pick(&[1, 16, 100, 8192]),
        kv_fill_max_permille: rng.pick(&[300, 950, 1000]),
        mixed_return: rng.pick(&[MixedReturn::Drained, MixedReturn::Idle]),
        mixed_hold_ns: rng.pick(&[0, 0, 1_000, 50_000]),
        reserve: rng.pick(&[Reserve::AtArrival, Reserve::AtSourceDone]),
        cut: rng.pick(&[Cut::AtPrompt, Cut::BeforeLast]),
        transfer: rng.pick(&[TransferRule::Auto, TransferRule::Serialized, TransferRule::LayerWise]),
        kv_bytes_per_token: rng.pick(&[None, Some(1_000)]),
        layer_wise_from_tokens: rng.pick(&[1, 8, 512]),
        ties: rng.pick(&[Ties::Turn, Ties::First, Ties::Last]),
        admission: rng.pick(&[Admission::Bounds, Admission::Bounds, Admission::Early, Admission::Predicted]),
        recovery_headroom_permille: rng.pick(&[0, 0, 100]),
        priority_ageing_ns: rng.pick(&[None, Some(10_000)]),
        split_from_tokens: rng.pick(&[0, 0, 8]),
        requests_max: rng.pick(&[1_000_000, 1_000_000, 30]),
        attempts_max: rng.pick(&[1, 4, 100, 100]),
        retry_interval_ns: rng.pick(&[5_000, 20_000]),
        park_limit_ns: rng.pick(&[50_000, 300_000]),
        rejoin_limit_ns: rng.pick(&[3_000, 30_000, 300_000]),
        unplaceable_limit_ns: rng.pick(&[100_000, 10_000_000_000]),
        transfer_failures_max: rng.pick(&[1, 3]),
        aside_ns: rng.pick(&[20_000, 200_000]),
        seed,
        ..ClusterConfig::default()
    }
}

fn machines(rng: &mut Rng, largest: u32, block_tokens: u32, tight: bool) -> Vec<MachineSetup> {
    let roles: &[Role] = match rng.below(4) {
        0 => &[Role::Mixed],
        1 => &[Role::Prompt, Role::Token],
        _ => &[Role::Prompt, Role::Token, Role::Mixed],
    };
    let (count, floor, unequal) = (rng.within(1, 8), rng.below(3), rng.chance(300));
    let common = MachineConfig {
        blocks: 1,
        block_tokens,
        batch_tokens_max: rng.pick(&[1, 8, 64, 2048]),
        batch_requests_max: rng.pick(&[1, 2, 8, 512]),
        prefill_chunk_tokens: None,
        pipeline_stages: 1,
        sit_out_max: rng.pick(&[1, 2, 4]),
        evictions_max: rng.pick(&[0, 1, 4]),
        report_interval_ns: rng.pick(&[1_000, 10_000, 10_000, 200_000]),
        handoff_floor_blocks: None,
        quarantine_limit_permille: rng.pick(&[0, 100, 1000]),
        transfer_limit_ns: rng.pick(&[None, Some(20_000), Some(60_000), Some(60_000)]),
        park_limit_ns: rng.pick(&[50_000, 400_000]),
        orphan_limit_ns: rng.pick(&[None, None, Some(10_000), Some(500_000)]),
        sends_max: rng.pick(&[None, Some(1), Some(2)]),
        receives_max: rng.pick(&[None, Some(1), Some(2)]),
    };
    let costs = costs();
    let one = |_| {
        let least = largest.div_ceil(block_tokens) + 1;
        let blocks = if tight { least + rng.below(u64::from(least)) as u32 } else { least * 50 };
        let blocks = if unequal && rng.chance(500) { blocks / 2 + 1 } else { blocks };
        let handoff_floor_blocks = match floor {
            0 => None,
            1 => Some(0),
            _ => Some(blocks / 2),
        };
        MachineSetup {
            role: rng.pick(roles),
            weight: if unequal { rng.within(1, 3) as u32 } else { 1 },
            link: rng.pick(&[None, Some(Link { bytes_per_s: 1_000_000_000, fixed_cost_ns: 10_000 })]),
            config: MachineConfig { blocks, handoff_floor_blocks, ..common },
            costs: rng.chance(700).then(|| costs.clone()),
            starts_at_ns: 0,
        }
    };
    (0..count).map(one).collect()
}

/// A nanosecond a prompt token, and twenty a decode.
fn costs() -> CostTable {
    let knots = |points: [(u32, u64); 2]| points.map(|(at, ns)| CostKnot { at, ns }).to_vec();
    let points = CostPoints {
        prefill: knots([(0, 0), (100, 100)]),
        decode: knots([(0, 0), (10, 200)]),
        context_ns_per_1024_tokens: 1_000,
        pass_tokens_max: 100,
    };
    match CostTable::new(points) {
        Ok(table) => table,
        Err(error) => panic!("{error}"),
    }
}

fn clients(rng: &mut Rng, span_ns: u64, (prompt_max, output_max): (u32, u32), machines: u64) -> Vec<Client> {
    let base = 2_500 / (12 + u64::from(output_max));
    let count = rng.within(base, 2 * base);
    let (cancels, again, pins) = (rng.chance(400), rng.chance(300), rng.chance(200));
    let (classes, bursts) = (rng.within(1, 3), rng.pick(&[0, 1, 5]));
    let one = |id| {
        let max_new_tokens = rng.within(1, u64::from(output_max)) as u32;
        let at_ns = match bursts {
            0 => rng.below(span_ns + 1),
            bursts => rng.below(bursts) * span_ns / bursts,
        };
        Client {
            id,
            at_ns,
            prompt_tokens: rng.within(1, u64::from(prompt_max)) as u32,
            max_new_tokens,
            output_tokens: rng.within(1, u64::from(max_new_tokens)) as u32,
            cancel_after_ns: (cancels && rng.chance(300)).then(|| rng.below(50_000)),
            again_after_ns: (again && rng.chance(500)).then(|| rng.pick(&[0, 50, 5_000])),
            class: rng.below(classes) as u32,
            priority: rng.below(3) as i32 - 1,
            resumable: !rng.chance(100),
            pin_token: (pins && rng.chance(200)).then(|| rng.below(machines) as u32),
        }
    };
    (0..count).map(one).collect()
}
