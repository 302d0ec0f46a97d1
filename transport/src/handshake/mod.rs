//! Who is there, whether the two fit, and which backend carries their bytes.
//!
//! A receiver exports an [`Endpoint`], which the scheduler's messages carry to whoever will send. The sender chooses
//! the backend from it ([`choose`]) and connects to its socket. Both show that they know the endpoint's key
//! ([`proof`]); then the sender says [`Hello`], and the receiver checks every field that must agree and answers
//! [`Welcome`], or the field that does not. Messages are JSON behind a mark and a length.

mod choose;
mod proof;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use splitcore_core::kv::PoolShape;
use splitcore_secret::Key;

use crate::error::HandshakeError;

pub use choose::{Offer, choose};
pub(crate) use proof::{Greeting, demand, is_another, show};
pub(crate) use wire::{Answer, Bounded, receive, send};

/// Version of everything that goes over the sockets and lies in shared memory. Both sides must have the same.
pub const PROTOCOL: u16 = 1;

/// One life of a process' transport: drawn at random when it starts, so that a restarted peer is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Incarnation {
    /// A new one, of the system's randomness; below 2^63, so that every language can hold it.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn random() -> Result<Self, HandshakeError> {
        let mut bytes = [0_u8; 8];
        let fault = |reason: String| HandshakeError::Io { what: "random incarnation".to_owned(), reason };
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| fault(errno.to_string()))?;
        if got < bytes.len() {
            return Err(fault(format!("{got} bytes of {}", bytes.len())));
        }
        Ok(Self(u64::from_le_bytes(bytes) >> 1))
    }
}

/// What can carry bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Copies between two devices of one host.
    CudaIpc,
    /// Stores into the receiver's memory, on one host.
    Shm,
    /// One-sided writes of the NIXL library: RDMA between hosts.
    Nixl,
    /// A stream.
    Tcp,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CudaIpc => "cuda-ipc",
            Self::Shm => "shm",
            Self::Nixl => "nixl",
            Self::Tcp => "tcp",
        })
    }
}

/// How a receiver is reached: plain data, to be sent to whoever will send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Which life of the receiver.
    pub incarnation: Incarnation,
    /// Its host: the kernel's boot id.
    pub host: String,
    /// Its socket for senders on the same host.
    pub unix: Option<PathBuf>,
    /// Its address for all others.
    pub tcp: Option<SocketAddr>,
    /// What it takes, the best first.
    pub backends: Vec<Backend>,
    /// The device that its pool lies on.
    pub device: Option<String>,
    /// What its NIXL agent says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nixl: Option<String>,
    /// What whoever connects must show to know. Who is given the endpoint may come.
    pub key: Key,
}

/// What a sender says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Its [`PROTOCOL`].
    pub protocol: u16,
    /// The backend it chose.
    pub backend: Backend,
    /// Which life of the sender.
    pub incarnation: Incarnation,
    /// Which life of the receiver it means.
    pub expects: Incarnation,
    /// Its host: the kernel's boot id.
    pub host: String,
    /// The model, by a name or a hash that both sides make alike.
    pub model: String,
    /// Its pool.
    pub shape: PoolShape,
    /// Whether layers carry checksums.
    pub checksums: bool,
}

/// The receiver's answer to a [`Hello`] that fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Its [`PROTOCOL`].
    pub protocol: u16,
    /// Which life of the receiver.
    pub incarnation: Incarnation,
    /// Its pool.
    pub shape: PoolShape,
    /// Slots of its board.
    pub slots: u32,
    /// What else the backend needs.
    #[serde(default)]
    pub extra: serde_json::Value,
}

impl Hello {
    /// Whether a receiver that is `expects`, serves `model` with `shape` and takes `backends` may let it in.
    ///
    /// # Errors
    /// The first field that does not agree, ours being the receiver's.
    pub(crate) fn check(
        &self,
        expects: Incarnation,
        model: &str,
        shape: &PoolShape,
        backends: &[Backend],
        host: &str,
    ) -> Result<(), HandshakeError> {
        let differ = |field: &str, ours: String, theirs: String| HandshakeError::Mismatch {
            field: field.to_owned(),
            ours,
            theirs,
        };
        if self.protocol != PROTOCOL {
            return Err(differ("protocol", PROTOCOL.to_string(), self.protocol.to_string()));
        }
        if self.expects != expects {
            return Err(differ("incarnation", expects.to_string(), self.expects.to_string()));
        }
        if self.model != model {
            return Err(differ("model", model.to_owned(), self.model.clone()));
        }
        if let Err(error) = self.shape.layout.check() {
            return Err(HandshakeError::Malformed(format!("layout: {error}")));
        }
        let mismatch = shape.layout.mismatch(&self.shape.layout);
        if let Some((field, ours, theirs)) = mismatch.and_then(|mismatch| mismatch.first()) {
            return Err(differ(field, ours, theirs));
        }
        if !backends.contains(&self.backend) {
            let names: Vec<String> = backends.iter().map(ToString::to_string).collect();
            return Err(differ("backend", names.join(", "), self.backend.to_string()));
        }
        if matches!(self.backend, Backend::Shm | Backend::CudaIpc) && self.host != host {
            return Err(differ("host", host.to_owned(), self.host.clone()));
        }
        Ok(())
    }
}

/// This host's name for the handshake: the kernel's boot id, the same in every process of one running system.
///
/// # Errors
/// The kernel tells none.
pub fn boot_id() -> Result<String, HandshakeError> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .map_err(|error| HandshakeError::Io { what: "boot id".to_owned(), reason: error.to_string() })
}
