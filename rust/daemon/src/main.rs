//! The plain binary of the placement service.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use splitcore_daemon::{Options, Stop, run};

/// Place phase-split LLM requests over HTTP.
#[derive(Parser)]
#[command(name = "splitcore-daemon", version)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    match run(Arguments::parse().options) {
        Ok(Stop::Terminate) => ExitCode::SUCCESS,
        Ok(Stop::Interrupt) => ExitCode::from(130),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "splitcore-daemon: error: {error}");
            ExitCode::from(2)
        }
    }
}
