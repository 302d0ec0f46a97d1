//! Times one workload and prints one line of JSON.
//!
//! `timings place <external|managed|linear> <machines> <live> <steps> <repetitions>`: nanoseconds of one place,
//! `prefill_done` and finish, by repetition.
//!
//! `timings kv-plan <order|scattered> <blocks> <repetitions>`: nanoseconds of one transfer plan, by repetition.
//!
//! `timings simulate <options as JSON>`: one run of the simulator.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use splitcore_benches::linear::Linear;
use splitcore_benches::managed::Managed;
use splitcore_benches::moving::{LAYOUT, Transfer, in_order, scattered};
use splitcore_benches::placing::{Books, External, Placing};
use splitcore_sim::{Options, simulate};

const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["place", books, machines, live, steps, repetitions] => {
            let machines = machines.parse()?;
            let sizes = [live.parse()?, steps.parse()?, repetitions.parse()?];
            match books {
                "external" => place(External::new(machines), sizes, |_| 0),
                "managed" => place(Managed::new(machines), sizes, Managed::commands),
                "linear" => place(Linear::new(machines), sizes, |_| 0),
                other => return Err(format!("no books {other}").into()),
            }
        }
        ["kv-plan", table, blocks, repetitions] => {
            let blocks = blocks.parse()?;
            let tables = match table {
                "order" => [in_order(blocks), in_order(blocks)],
                "scattered" => [scattered(blocks, 1), scattered(blocks, 2)],
                other => return Err(format!("no table {other}").into()),
            };
            kv_plan(
                &Transfer::new([LAYOUT; 2], tables, blocks * u32::from(LAYOUT.block_tokens)),
                repetitions.parse()?,
            )
        }
        ["simulate", options] => run(&serde_json::from_str(options)?)?,
        _ => return Err("expected place, kv-plan or simulate, and what they need".into()),
    };
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

/// What passed since it was made.
struct Stopwatch {
    wall: Instant,
    cpu_ns: u64,
}

impl Stopwatch {
    fn start() -> Self {
        Self { wall: Instant::now(), cpu_ns: cpu_ns() }
    }

    /// Nanoseconds on the processor, and in all.
    fn read(&self) -> (u64, u64) {
        (cpu_ns() - self.cpu_ns, self.wall.elapsed().as_nanos() as u64)
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn place<B: Books>(books: B, [live, steps, repetitions]: [usize; 3], commands: impl Fn(&B) -> u64) -> Value {
    let mut placing = Placing::new(books, live, SEED);
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    let (mut before, mut after) = (0, 0);
    // The first repetition warms up.
    for repetition in 0..=repetitions {
        before = commands(&placing.books);
        let watch = Stopwatch::start();
        for _ in 0..steps {
            std::hint::black_box(placing.step());
        }
        let (cpu_ns, wall_ns) = watch.read();
        after = commands(&placing.books);
        if repetition > 0 {
            cpu.push(cpu_ns as f64 / steps as f64);
            wall.push(wall_ns as f64 / steps as f64);
        }
    }
    json!({ "cpu_ns": cpu, "wall_ns": wall, "commands": (after - before) as f64 / steps as f64 })
}

fn kv_plan(transfer: &Transfer, repetitions: usize) -> Value {
    const PLANS: u32 = 100;
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    // The first repetition warms up.
    for repetition in 0..=repetitions {
        let watch = Stopwatch::start();
        for _ in 0..PLANS {
            std::hint::black_box(transfer.plan());
        }
        let (cpu_ns, wall_ns) = watch.read();
        if repetition > 0 {
            cpu.push(cpu_ns as f64 / f64::from(PLANS));
            wall.push(wall_ns as f64 / f64::from(PLANS));
        }
    }
    json!({ "cpu_ns": cpu, "wall_ns": wall })
}

fn run(options: &Options) -> Result<Value, Box<dyn Error>> {
    let watch = Stopwatch::start();
    let report = simulate(options, &mut |_, _| true)?;
    let (cpu_ns, wall_ns) = watch.read();
    let summary = &report.summary;
    let (passes, decodes) = summary
        .machines
        .iter()
        .filter(|machine| machine.decode_tokens > 0)
        .fold((0, 0), |sum, machine| (sum.0 + machine.passes, sum.1 + machine.decode_tokens));
    Ok(json!({
        "cpu_s": cpu_ns as f64 / 1e9,
        "wall_s": wall_ns as f64 / 1e9,
        "requests": summary.requests.submitted,
        "completed": summary.requests.completed,
        "rejected": summary.requests.rejected,
        "events": summary.events,
        "decode_batch_mean": decodes as f64 / passes as f64,
        "simulated_s": summary.duration_s,
        "digest": summary.digest,
        "rss_max_kib": rss_max_kib(),
    }))
}

/// The most memory the process has had, where the system says.
fn rss_max_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
