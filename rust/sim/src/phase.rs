//! One phase of an unsplit cluster alone, as searches need it that size the phases apart (DistServe, section 4.1).

use splitcore_core::config::PolicyKind;
use splitcore_core::event::{Link, Role};

use crate::SimError;
use crate::links::Nic;
use crate::options::Options;
use crate::setup::{MachineSetup, Setup, UNLIMITED_BLOCKS};

/// Bytes a second that nothing here comes near.
const FREE_BYTES_PER_S: u64 = 1 << 60;

/// Leaves of a run the phase that the options name, if they name one.
pub(crate) fn isolate(options: &Options, setup: &mut Setup) -> Result<(), SimError> {
    let Some(phase) = &options.only else { return Ok(()) };
    if options.unsplit.is_none() {
        return Err(SimError::config("only", "an unsplit cluster beside it", "pools"));
    }
    if options.faults.is_some() {
        return Err(SimError::config("only", "no faults beside it", "faults"));
    }
    match phase.as_str() {
        "prefill" => setup.workload.requests.iter_mut().for_each(|request| request.output_tokens = 1),
        "decode" => decode(options, setup),
        other => return Err(SimError::config("only", "prefill or decode", format!("`{other}`"))),
    }
    Ok(())
}

/// Puts a machine in front that prefills in no time and hands over for nothing.
fn decode(options: &Options, setup: &mut Setup) {
    let link = Link { bytes_per_s: FREE_BYTES_PER_S, fixed_cost_ns: 0 };
    let nic = Nic { send_bytes_per_s: FREE_BYTES_PER_S as f64, receive_bytes_per_s: FREE_BYTES_PER_S as f64 };
    for machine in &mut setup.machines {
        (machine.role, machine.link, machine.nic) = (Role::Token, link, nic);
        machine.name = machine.name.replacen('m', "t", 1);
    }
    let mut source = MachineSetup { is_instant: true, role: Role::Prompt, ..setup.machines[0].clone() };
    source.name = "source".into();
    (source.config.blocks, source.config.pipeline_stages) = (UNLIMITED_BLOCKS, 1);
    setup.machines.push(source);
    if options.policy.is_none() {
        setup.cluster.policy = PolicyKind::LeastRequests;
    }
}
