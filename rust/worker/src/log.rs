//! What a worker tells people.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use splitcore_core::id::MachineId;
use splitcore_wire::session::CloseReason;

/// Where a worker tells people what happens to it, a line at a time.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&str) + Send + Sync>);

impl Log {
    /// Calls this with each line.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Tells one line.
    pub fn line(&self, line: &str) {
        (self.0)(line);
    }
}

impl Default for Log {
    fn default() -> Self {
        // In one piece: others write there as well. Where nobody reads, nobody is to be told.
        Self::new(|line| drop(io::stderr().write_all(format!("splitcore worker: {line}\n").as_bytes())))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// Sessions that are over, or not to be had. One that is tried again and again for one reason is told of once.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// With the daemon, or with another machine.
    told: BTreeMap<Option<MachineId>, String>,
}

impl Losses {
    pub(crate) fn tell(&mut self, log: &Log, with: Option<MachineId>, reason: &CloseReason) {
        let (reason, told) = (reason.to_string(), self.told.get(&with));
        if told != Some(&reason) {
            let whom = with.map_or("the daemon".to_owned(), |machine| format!("machine {}", machine.index));
            log.line(&format!("no session with {whom}, trying again: {reason}"));
            self.told.insert(with, reason);
        }
    }

    /// There is a session again, or there will be none any more.
    pub(crate) fn forget(&mut self, with: Option<MachineId>) {
        self.told.remove(&with);
    }
}
