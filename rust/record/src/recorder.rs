//! The writing half.
use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use splitcore_core::error::{Applied, EventError};
use splitcore_core::time::Time;

use crate::{CreateError, Ended, Recorded};

/// How a log is written.
pub struct Options {
    /// Bytes of records after which a next segment begins.
    pub segment_bytes: u64,
    /// Segments of a run that are kept, the newest; the older ones are deleted. `None`: all.
    pub keep: Option<u32>,
    /// Bytes that may wait for the disk.
    pub queue_bytes: usize,
    /// How long the driver waits where so many do; then the log ends.
    pub wait: Duration,
    /// Told once, if the log ends before its recorder does.
    pub on_end: Box<dyn FnOnce(&Ended) + Send>,
}

/// Writes down what happens to one state machine.
pub struct Recorder<M: Recorded> {
    of: PhantomData<M>,
}

impl<M: Recorded> Recorder<M> {
    /// Begins a log of `machine` as it is now, beside those that are there under the name already.
    ///
    /// # Errors
    /// [`CreateError`] when the folder or the first file cannot be made.
    pub fn create(_dir: &Path, _name: &str, _machine: &M, _options: Options) -> Result<Self, CreateError> {
        Ok(Self { of: PhantomData })
    }

    /// Writes down an event that has been applied, what it answered, what it wanted done, and the machine after it.
    pub fn record(
        &mut self,
        _now: Time,
        _event: &M::Event,
        _result: &Result<Applied, EventError>,
        _actions: &[M::Action],
        _machine: &M,
    ) {
    }

    /// Why the log has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        None
    }
}
