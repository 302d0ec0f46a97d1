//! Runs one workload with everything that is to be counted inside [`splitcore_counted`], for
//! `valgrind --tool=callgrind --toggle-collect='*splitcore_counted*'`.
//!
//! `counts <workload> <folder>`: the folder holds `sizes.csv` and `trace.csv`. Without a workload it lists them.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use splitcore_benches::batching::Batching;
use splitcore_benches::flows::Flows;
use splitcore_benches::managed::Managed;
use splitcore_benches::placing::{Books, External, Placing};
use splitcore_sim::workload::{Reading, read_trace};
use splitcore_sim::{Options, simulate};

const SEED: u64 = 1;
const LIVE: usize = 4096;
const PLACEMENTS: usize = 20_000;
const PASSES: usize = 5_000;
const TRANSFERS: usize = 5_000;

type Workload = Box<dyn FnMut()>;
type Prepare = fn(&Path) -> Workload;

const WORKLOADS: [(&str, Prepare); 7] = [
    ("place-external-64", |_| place(External::new(64))),
    ("place-external-16384", |_| place(External::new(16_384))),
    ("place-managed-64", |_| place(Managed::new(64))),
    ("machine-passes", |_| {
        repeat(PASSES, Batching::new(64, SEED), |batching| {
            batching.step();
        })
    }),
    ("links-contention", |_| {
        repeat(TRANSFERS, Flows::new(8, 32, SEED), |flows| {
            flows.step();
        })
    }),
    ("simulate-4p4d", simulate_4p4d),
    ("read-trace", trace),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout();
    let [name, folder] = &arguments[..] else {
        for (name, _) in WORKLOADS {
            writeln!(out, "{name}")?;
        }
        return Ok(());
    };
    let found = WORKLOADS.iter().find(|(workload, _)| workload == name);
    let (_, prepare) = found.ok_or_else(|| format!("no workload {name}"))?;
    splitcore_counted(&mut prepare(Path::new(folder)));
    Ok(())
}

/// Where counting starts and stops. Its name must survive in the binary.
#[inline(never)]
fn splitcore_counted(workload: &mut Workload) {
    std::hint::black_box(workload)();
}

fn repeat<T: 'static>(times: usize, mut state: T, step: fn(&mut T)) -> Workload {
    Box::new(move || (0..times).for_each(|_| step(&mut state)))
}

fn place<B: Books + 'static>(books: B) -> Workload {
    repeat(PLACEMENTS, Placing::new(books, LIVE, SEED), |placing| {
        std::hint::black_box(placing.step());
    })
}

fn simulate_4p4d(folder: &Path) -> Workload {
    let options = Options {
        prompt: Some("4xdgx-h100".into()),
        token: Some("4xdgx-h100".into()),
        trace: folder.join("sizes.csv").display().to_string(),
        arrivals: Some("poisson".into()),
        rate: Some(30.0),
        requests: Some(2_000),
        ..Options::default()
    };
    Box::new(move || {
        let report = simulate(&options, &mut |_, _| true).expect("the options are good");
        assert_eq!(report.summary.requests.completed, 2_000);
    })
}

fn trace(folder: &Path) -> Workload {
    let path: PathBuf = folder.join("trace.csv");
    Box::new(move || {
        std::hint::black_box(read_trace(&path, &Reading::default()).expect("the trace is good"));
    })
}
