//! Event logs of the two state machines: written as they run, read and replayed afterwards.
//!
//! A [`Recorder`] goes beside each `Cluster` and each `Machine`. Whoever drives one hands every event, and what came of
//! it, to the recorder as well. [`replay`] gives the same events to the same state once more and expects the same
//! actions, so a log is a test case of whatever happened.
//!
//! ```text
//! DIR/<name>/<run>-<first event>.log      a run is one life of one recorder, a segment is one file of it
//!
//! segment = "splitlog" version frame*     frames: head, snapshot, record*, and an end in the last segment of a run
//! frame   = kind 0 0 0 | length | CRC32C of the payload | CRC32C of these twelve bytes | payload (MessagePack)
//! ```
//!
//! Each segment begins with a snapshot, so it can be read without those before it. A log that just stops, as one does
//! whose process is killed, ends there, and that is no error; the check of the frame's head tells a length that is cut
//! short from one that is wrong.

#![forbid(unsafe_code)]

mod disk;
mod error;
mod folder;
mod format;
#[cfg(test)]
mod full_disk;
mod recorder;
mod replay;
mod segment;
mod writer;

use serde::Serialize;
use serde::de::DeserializeOwned;
use splitcore_core::cluster::Cluster;
use splitcore_core::error::{Applied, EventError};
use splitcore_core::event::{ClusterAction, ClusterEvent, MachineAction, MachineEvent};
use splitcore_core::machine::Machine;
use splitcore_core::time::Time;

pub use error::{CreateError, Ended, ReplayError};
pub use recorder::{Hook, Options, Recorder};
pub use replay::{Difference, Log, LogEnd, Replayed, replay, replay_told};

/// Which of the two state machines a log is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A [`Cluster`].
    Cluster,
    /// A [`Machine`].
    Machine,
}

impl What {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Machine => "machine",
        }
    }
}

/// A state machine that can be recorded: its state goes into bytes and back, and the same events bring the same actions.
pub trait Recorded: Serialize + DeserializeOwned + Clone + Send + 'static {
    /// What happens to it.
    type Event: Serialize + DeserializeOwned;
    /// What it wants done.
    type Action: Serialize + DeserializeOwned + PartialEq;
    /// Which it is.
    const WHAT: What;

    /// Applies one event and appends what it wants done.
    ///
    /// # Errors
    /// What the event contradicts; nothing has changed.
    fn apply(
        &mut self,
        now: Time,
        event: &Self::Event,
        out: &mut Vec<Self::Action>,
    ) -> Result<Applied, EventError>;
}

impl Recorded for Cluster {
    type Event = ClusterEvent;
    type Action = ClusterAction;
    const WHAT: What = What::Cluster;

    fn apply(
        &mut self,
        now: Time,
        event: &ClusterEvent,
        out: &mut Vec<ClusterAction>,
    ) -> Result<Applied, EventError> {
        self.handle(now, event, out)
    }
}

impl Recorded for Machine {
    type Event = MachineEvent;
    type Action = MachineAction;
    const WHAT: What = What::Machine;

    fn apply(
        &mut self,
        now: Time,
        event: &MachineEvent,
        out: &mut Vec<MachineAction>,
    ) -> Result<Applied, EventError> {
        self.handle(now, event, out)
    }
}
