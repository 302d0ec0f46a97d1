//! What has gone wrong with a request, in words: with the names of the machines, and which side of the request they had.

use std::sync::Arc;

use splitcore_core::event::{Fault, Outcome};
use splitcore_core::id::MachineId;
use splitcore_core::placement::Side;

use super::State;

/// Why a request has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The reason as callers match on it.
    pub reason: &'static str,
    /// What last met it, in words.
    pub fault: Option<Arc<str>>,
}

/// The name of a reason to fail; `None` where it did not.
pub(super) fn reason(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::AttemptsMax => Some("attempts_max"),
        Outcome::NotResumable => Some("not_resumable"),
        Outcome::Unplaceable => Some("unplaceable"),
        Outcome::Finished | Outcome::Cancelled | Outcome::Expired => None,
    }
}

impl State {
    /// A fault has met a request: kept until it ends, and logged where a machine is there and does not do its part.
    pub(super) fn faulted(&mut self, request: u64, fault: Fault) {
        let text: Arc<str> = self.in_words(fault).into();
        match fault {
            Fault::Transfer { .. } | Fault::Gone { .. } => {
                tracing::warn!(request, fault = &*text, "a request has lost its place");
            }
            // The loss of a machine is logged once, not for each of its requests.
            Fault::Lost { .. } | Fault::Unregistered => {
                tracing::debug!(request, fault = &*text, "a request has lost its place");
            }
        }
        self.faults.insert(request, text);
    }

    pub(super) fn set_aside(&self, machine: MachineId) {
        let name = self.name_of(machine);
        tracing::warn!(
            machine = name,
            "set aside for a while: its KV transfers have failed several times in a row"
        );
    }

    fn name_of(&self, machine: MachineId) -> &str {
        self.machines.at(machine.index).map_or("(unnamed)", |machine| machine.name.as_str())
    }

    fn in_words(&self, fault: Fault) -> String {
        let word = |side| if side == Side::Prompt { "prompt" } else { "token" };
        match fault {
            Fault::Transfer { from, to } => format!(
                "its KV did not get from prompt machine {} to token machine {}",
                self.name_of(from),
                self.name_of(to)
            ),
            Fault::Lost { side, machine } => {
                format!("{} machine {} was lost", word(side), self.name_of(machine))
            }
            Fault::Gone { side, machine } => {
                format!("{} machine {} does not have it any more", word(side), self.name_of(machine))
            }
            Fault::Unregistered => "its prompt machine did not come back after a restart".to_owned(),
        }
    }
}
