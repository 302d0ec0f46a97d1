//! Runs seeds: `cargo run --profile swarm -p splitcore-swarm --example swarm -- --seeds 300 --from 0 --jobs 2`. With
//! `--trace`, all events of the first one; with `--cells`, how often each state met each failure; with `--first`, no
//! more than the first seed that fails.

use std::io::Write;

use splitcore_swarm::failures::{self, Cell, Failure};
use splitcore_swarm::setup::Setup;
use splitcore_swarm::{Summary, first_failure, run, swarm, trace};

fn number(name: &str, default: u64) -> u64 {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.nth(1).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}: expected a number")))
}

fn print(out: &mut impl Write, summary: &Summary) -> std::io::Result<()> {
    let Summary { seeds, events, median_events, median_faults, digest, .. } = summary;
    writeln!(
        out,
        "{seeds} seeds, {events} events, median {median_events} events and {median_faults} faults, digest {digest:016x}"
    )?;
    let counted: Vec<String> =
        summary.counters.named().iter().map(|(name, count)| format!("{name} {count}")).collect();
    writeln!(out, "{}\n{} cells hit", counted.join(", "), summary.hits.len())?;
    if std::env::args().any(|arg| arg == "--cells") {
        for state in failures::legal() {
            let counted = Failure::ALL.map(|failure| {
                let hits = summary.hits.get(&(state, failure)).copied().unwrap_or(0);
                match failures::cell(state, failure) {
                    Cell::Handled(_) => hits.to_string(),
                    Cell::CannotBe(_) => "-".to_owned(),
                }
            });
            writeln!(out, "| {} | {} |", failures::name(state), counted.join(" | "))?;
        }
    }
    let mut kinds = std::collections::BTreeMap::new();
    for failed in &summary.failed {
        let words: String = failed.what.chars().filter(|letter| !letter.is_ascii_digit()).take(160).collect();
        kinds.entry(words).or_insert_with(Vec::new).push(failed.seed);
    }
    for (what, seeds) in &kinds {
        let first: Vec<_> = seeds.iter().take(8).collect();
        writeln!(out, "{} times: {what}\n    seeds {first:?}", seeds.len())?;
    }
    let Some(first) = summary.failed.first() else { return Ok(()) };
    writeln!(out, "{first}")?;
    let replay = "cargo run --profile swarm -p splitcore-swarm --example swarm -- --trace --from";
    writeln!(out, "{} failed. Again: {replay} {}", summary.failed.len(), first.seed)
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let from = number("--from", 0);
    if std::env::args().any(|arg| arg == "--trace") {
        for line in trace(&Setup::random(from), usize::MAX) {
            writeln!(out, "{line}")?;
        }
        return match run(from) {
            Ok(run) => writeln!(out, "{run:#?}"),
            Err(failed) => writeln!(out, "{}", failed.what),
        };
    }
    let (seeds, jobs) = (number("--seeds", 300), number("--jobs", 2) as usize);
    if std::env::args().any(|arg| arg == "--first") {
        let Some(failed) = first_failure(from, seeds, jobs) else { return Ok(()) };
        writeln!(out, "{failed}")?;
        std::process::exit(1);
    }
    let summary = swarm(from, seeds, jobs, |_, _| true);
    print(&mut out, &summary)?;
    if summary.failed.is_empty() { Ok(()) } else { std::process::exit(1) }
}
