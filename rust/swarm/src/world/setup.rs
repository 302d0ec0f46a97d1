//! What a seed chooses: machines, options, clients and faults.

use super::Rng;
use splitcore_core::config::{
    Admission, ClusterConfig, Cut, Level, MachineConfig, MixedReturn, PolicyKind, TransferRule,
};
use splitcore_core::event::{Link, Role, Slo};
use splitcore_core::placement::Reserve;

#[derive(Debug, Clone)]
pub struct Client {
    pub id: u64,
    pub at_ns: u64,
    pub prompt_tokens: u32,
    pub max_new_tokens: u32,
    /// Hidden from the core.
    pub output_tokens: u32,
    pub cancel_after_ns: Option<u64>,
    /// The id comes again so long after it ended.
    pub again_after_ns: Option<u64>,
    pub class: u32,
    pub priority: i32,
    pub resumable: bool,
    pub pin_token: Option<u32>,
}

/// A loss (with the time until the machine is back), or a drain.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub at_ns: u64,
    pub machine: u32,
    pub loss_back_after_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub struct MachineSetup {
    pub role: Role,
    pub config: MachineConfig,
    pub weight: u32,
    pub link: Option<Link>,
}

#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub cluster: ClusterConfig,
    pub machines: Vec<MachineSetup>,
    pub clients: Vec<Client>,
    pub faults: Vec<Fault>,
    pub delay_ns: (u64, u64),
    pub pass_ns: (u64, u64),
    pub transfer_ns: (u64, u64),
    pub transfer_fails_permille: u64,
    pub layers: u16,
    /// Limits of the first classes.
    pub slos: [Option<Slo>; 2],
}

impl Setup {
    /// A swarm: each seed turns a random subset of everything on.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let faulty = rng.chance(500);
        let block_tokens = rng.pick(&[1, 2, 4, 16]);
        let prompt_max = rng.pick(&[4, 20, 60]);
        let output_max = rng.pick(&[1, 6, 30]);
        let largest = prompt_max + output_max;
        let tight = rng.chance(600);
        let machines = machines(&mut rng, largest, block_tokens, tight);
        let span = rng.pick(&[0, 1_000, 100_000]);
        let clients = clients(&mut rng, span, (prompt_max, output_max), machines.len() as u32);
        let faults = if faulty { faults(&mut rng, span + 20_000, machines.len() as u32) } else { Vec::new() };
        let slow = rng.chance(300);
        Self {
            seed,
            cluster: cluster(&mut rng, seed),
            machines,
            clients,
            faults,
            delay_ns: rng.pick(&[(0, 0), (10, 10), (0, 100), (0, 5_000)]),
            pass_ns: if slow { (100, 5_000) } else { rng.pick(&[(1, 1), (50, 200)]) },
            transfer_ns: rng.pick(&[(0, 0), (10, 300), (100, 20_000)]),
            transfer_fails_permille: if faulty { rng.pick(&[0, 100]) } else { 0 },
            layers: rng.pick(&[1, 1, 3]),
            slos: [(); 2].map(|()| {
                let slo = Slo { ttft_ns: rng.within(20, 400), tbt_ns: rng.within(20, 200) };
                rng.chance(700).then_some(slo)
            }),
        }
    }
}

impl Setup {
    /// Long passes and transfers that overlap, most of them given up at some point, by messages of uneven speed.
    pub fn interrupted(seed: u64) -> Self {
        let mut setup = Self::random(seed);
        let mut rng = Rng(seed ^ 0x1a7e);
        setup.cluster.transfer = TransferRule::LayerWise;
        setup.cluster.reserve = Reserve::AtArrival;
        setup.cluster.policy = PolicyKind::Splitwise;
        setup.cluster.park_limit_ns = 300_000;
        setup.delay_ns = (0, 5_000);
        setup.pass_ns = (5_000, 20_000);
        setup.transfer_ns = (5_000, 20_000);
        setup.layers = 3;
        for client in &mut setup.clients {
            client.cancel_after_ns = rng.chance(800).then(|| rng.below(80_000));
        }
        setup
    }
}

fn cluster(rng: &mut Rng, seed: u64) -> ClusterConfig {
    ClusterConfig {
        level: Level::Managed,
        policy: rng.pick(&PolicyKind::ALL).0,
        prompt_pending_tokens_max: rng.pick(&[1, 40, 8192]),
        kv_fill_max_permille: rng.pick(&[300, 950, 1000]),
        mixed_return: rng.pick(&[MixedReturn::Drained, MixedReturn::Idle]),
        mixed_hold_ns: rng.pick(&[0, 0, 5_000]),
        reserve: rng.pick(&[Reserve::AtArrival, Reserve::AtArrival, Reserve::AtSourceDone]),
        cut: rng.pick(&[Cut::AtPrompt, Cut::BeforeLast]),
        transfer: rng.pick(&[TransferRule::Auto, TransferRule::Serialized, TransferRule::LayerWise]),
        kv_bytes_per_token: rng.pick(&[None, Some(1000)]),
        layer_wise_from_tokens: 10,
        requests_max: rng.pick(&[5, 1000]),
        attempts_max: rng.pick(&[1, 4, 100]),
        admission: rng.pick(&[Admission::Bounds, Admission::Early, Admission::Predicted]),
        recovery_headroom_permille: rng.pick(&[0, 0, 100]),
        priority_ageing_ns: rng.pick(&[None, Some(10_000)]),
        split_from_tokens: rng.pick(&[0, 0, 8]),
        retry_interval_ns: rng.pick(&[5_000, 20_000]),
        park_limit_ns: rng.pick(&[50_000, 300_000]),
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
    let count = rng.within(1, 5);
    let (sends_max, receives_max) =
        (rng.pick(&[None, Some(1), Some(2)]), rng.pick(&[None, Some(1), Some(2)]));
    let batch_tokens_max = rng.pick(&[1, 8, 64, 2048]);
    let batch_requests_max = rng.pick(&[1, 2, 8, 512]);
    let (sit_out_max, evictions_max) = (rng.pick(&[1, 2, 4]), rng.pick(&[0, 1, 4]));
    let floor = rng.below(3);
    let unequal = rng.chance(300);
    (0..count)
        .map(|_| {
            let least = largest.div_ceil(block_tokens) + 1;
            let blocks = if tight { least + rng.below(u64::from(least)) as u32 } else { least * 50 };
            let blocks = if unequal && rng.chance(500) { blocks / 2 + 1 } else { blocks };
            MachineSetup {
                role: rng.pick(roles),
                weight: if unequal { rng.within(1, 3) as u32 } else { 1 },
                link: rng.pick(&[None, Some(Link { bytes_per_s: 1_000_000_000, fixed_cost_ns: 10_000 })]),
                config: MachineConfig {
                    blocks,
                    block_tokens,
                    batch_tokens_max,
                    batch_requests_max,
                    sit_out_max,
                    evictions_max,
                    report_interval_ns: 10_000,
                    handoff_floor_blocks: match floor {
                        0 => None,
                        1 => Some(0),
                        _ => Some(blocks / 2),
                    },
                    sends_max,
                    receives_max,
                    park_limit_ns: 400_000,
                    ..MachineConfig::default()
                },
            }
        })
        .collect()
}

fn clients(rng: &mut Rng, span: u64, (prompt_max, output_max): (u32, u32), machines: u32) -> Vec<Client> {
    let count = rng.within(1, 40);
    let (cancels, again, pins) = (rng.chance(400), rng.chance(300), rng.chance(200));
    let classes = rng.within(1, 3);
    (0..count)
        .map(|id| {
            let max_new_tokens = rng.within(1, u64::from(output_max)) as u32;
            Client {
                id,
                at_ns: rng.below(span + 1),
                prompt_tokens: rng.within(1, u64::from(prompt_max)) as u32,
                max_new_tokens,
                output_tokens: rng.within(1, u64::from(max_new_tokens)) as u32,
                cancel_after_ns: (cancels && rng.chance(400)).then(|| rng.below(10_000)),
                again_after_ns: (again && rng.chance(500)).then(|| rng.pick(&[0, 50, 5_000])),
                class: rng.below(classes) as u32,
                priority: rng.below(3) as i32 - 1,
                resumable: !rng.chance(100),
                pin_token: (pins && rng.chance(200)).then(|| rng.below(u64::from(machines)) as u32),
            }
        })
        .collect()
}

fn faults(rng: &mut Rng, span: u64, machines: u32) -> Vec<Fault> {
    let (count, drains) = (rng.within(1, 6), rng.chance(400));
    let mut faults = Vec::new();
    for _ in 0..count {
        let (at_ns, machine) = (rng.below(span), rng.below(u64::from(machines)) as u32);
        let back = rng.pick(&[0, 1_000, 30_000]);
        if drains && rng.chance(400) {
            faults.push(Fault { at_ns, machine, loss_back_after_ns: None });
            // A drained machine goes and comes back in the end, so that the world heals.
            let at_ns = at_ns + rng.pick(&[10, 50_000, 500_000]);
            faults.push(Fault { at_ns, machine, loss_back_after_ns: Some(back) });
        } else {
            faults.push(Fault { at_ns, machine, loss_back_after_ns: Some(back) });
        }
    }
    faults
}
