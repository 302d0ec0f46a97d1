//! What is asked of a device: the few calls of the CUDA driver that copies between processes need.
//!
//! A trait, so that the order of these calls, which is where mistakes hurt, can be tested where there is no device.

use std::fmt;

/// Bytes of a handle that names memory or an event to another process.
pub(crate) const HANDLE_BYTES: usize = 64;

/// Names memory or an event to another process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Handle(pub [u8; HANDLE_BYTES]);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.to_hex())
    }
}

impl Handle {
    /// For a message.
    pub(crate) fn to_hex(self) -> String {
        self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
    }

    /// From a message; `None` unless it is 128 hexadecimal digits.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 2 * HANDLE_BYTES {
            return None;
        }
        let mut bytes = [0; HANDLE_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = (value(0)? << 4 | value(1)?) as u8;
        }
        Some(Self(bytes))
    }
}

fn digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).unwrap_or('0')
}

/// An ordered queue of work: a `CUstream`. 0 is the device's default one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Stream(pub u64);

/// A mark in a stream: a `CUevent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Event(pub u64);

/// Who will use an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventUse {
    /// This process, whose threads sleep until it is reached.
    Here,
    /// Another process too.
    Shared,
}

/// A call that the driver refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Which call.
    pub what: &'static str,
    /// Its answer.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.reason)
    }
}

/// What a pointer into a device's memory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// Where it begins.
    pub base: u64,
    /// Its bytes.
    pub len: u64,
    /// On which device.
    pub ordinal: i32,
    /// Whether [`Driver::export`] can name it to another process.
    pub shareable: bool,
}

/// One device as one process has it. Addresses are the device's; every call may come from any thread.
pub(crate) trait Driver: Send + Sync {
    /// Which process this is: a number that no other has. A process cannot open what it exported itself.
    fn process(&self) -> u64;
    /// The device, by the name that every process knows it by.
    fn name(&self) -> String;
    /// The device and its driver, in words.
    fn describe(&self) -> String;
    /// The device, by the number that this process knows it by.
    fn ordinal(&self) -> i32;
    /// Whether memory of the device of that name can be written from this one; if not, why.
    fn reaches(&self, name: &str) -> Result<(), String>;

    /// New memory, all zero.
    fn allocate(&self, bytes: u64) -> Result<u64, Fault>;
    /// Frees what [`allocate`](Self::allocate) gave; no other process may have it open.
    fn free(&self, base: u64) -> Result<(), Fault>;
    /// What a pointer belongs to.
    fn allocation(&self, pointer: u64) -> Result<Allocation, Fault>;
    /// Names memory, by its base, to other processes.
    fn export(&self, base: u64) -> Result<Handle, Fault>;
    /// Maps another process' memory.
    fn open(&self, handle: &Handle) -> Result<u64, Fault>;
    /// Unmaps it.
    fn close(&self, base: u64) -> Result<(), Fault>;

    /// A new stream, not ordered with any other.
    fn stream(&self) -> Result<Stream, Fault>;
    /// Ends a stream.
    fn end_stream(&self, stream: Stream) -> Result<(), Fault>;
    /// Queues a copy.
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Fault>;
    /// Sleeps until a stream has done all that it was given.
    fn drain(&self, stream: Stream) -> Result<(), Fault>;

    /// A new event.
    fn event(&self, for_whom: EventUse) -> Result<Event, Fault>;
    /// Ends an event, this process' or an opened one.
    fn end_event(&self, event: Event) -> Result<(), Fault>;
    /// Names a shared event to other processes.
    fn export_event(&self, event: Event) -> Result<Handle, Fault>;
    /// Opens another process' event.
    fn open_event(&self, handle: &Handle) -> Result<Event, Fault>;
    /// Marks what the stream has been given so far.
    fn record(&self, event: Event, stream: Stream) -> Result<(), Fault>;
    /// Lets a stream go on only after what the event marks at the time of this call.
    fn hold(&self, stream: Stream, event: Event) -> Result<(), Fault>;
    /// Whether what it marks is done.
    fn reached(&self, event: Event) -> Result<bool, Fault>;
    /// Sleeps until what it marks is done.
    fn wait(&self, event: Event) -> Result<(), Fault>;

    /// Copies to the device.
    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), Fault>;
    /// Copies from the device.
    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), Fault>;
}
