//! Measures shm and tcp without Python: `cargo run --release -p splitcore-transport-bench --example transfer`.

use std::env::{args, current_exe};
use std::io::{stdin, stdout};
use std::process::Command;

use splitcore_transport::Backend;
use splitcore_transport_bench::{Plan, measure, receive};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if args().nth(1).as_deref() == Some("receive") {
        return Ok(receive(stdin().lock(), stdout().lock())?);
    }
    let exe = current_exe()?;
    let child = || {
        let mut command = Command::new(&exe);
        command.arg("receive");
        command
    };
    let plan = Plan::default();
    for backend in [Backend::Shm, Backend::Tcp] {
        let measured = measure(&plan, backend, &child, &|_, _| true)?;
        serde_json::to_writer_pretty(stdout(), &measured)?;
    }
    Ok(())
}
