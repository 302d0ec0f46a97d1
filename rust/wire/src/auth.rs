//! A shared secret: each side proves that it knows it, over nonces of both, so that no proof is good twice.
//!
//! This keeps strangers out and tells a worker that its daemon is one of its own. It neither hides nor protects what
//! follows: where the network is not trusted, that is TLS's.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::hex::{Nonce, Proof};

/// What daemon and workers share.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// These bytes; without trailing line ends, which files have and people do not mean.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.trim_ascii_end().to_vec())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Who proves: a proof of one is none of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The daemon, to a worker.
    Daemon,
    /// A worker, to its daemon.
    Worker,
    /// The worker that another has dialled.
    Source,
    /// The worker that dialled another.
    Destination,
}

impl Party {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Daemon => b"splitcore 1 daemon\0",
            Self::Worker => b"splitcore 1 worker\0",
            Self::Source => b"splitcore 1 source\0",
            Self::Destination => b"splitcore 1 destination\0",
        }
    }
}

fn mac(secret: &Secret, party: Party, challenge: &Nonce, hello: &Nonce, name: &str) -> Hmac<Sha256> {
    let Ok(mut mac) = <Hmac<Sha256> as KeyInit>::new_from_slice(&secret.0) else {
        unreachable!("HMAC takes a key of any length")
    };
    for part in [party.label(), &challenge.0, &hello.0, name.as_bytes()] {
        mac.update(part);
    }
    mac
}

/// The proof of `party`, over the nonces of `Challenge` and `Hello` and the name in the `Hello`.
pub fn prove(secret: &Secret, party: Party, challenge: &Nonce, hello: &Nonce, name: &str) -> Proof {
    let bytes = mac(secret, party, challenge, hello, name).finalize().into_bytes();
    let mut proof = [0; 32];
    proof.copy_from_slice(&bytes);
    crate::hex::Hex(proof)
}

/// Whether a proof is right. In constant time.
pub fn verify(
    secret: &Secret,
    party: Party,
    challenge: &Nonce,
    hello: &Nonce,
    name: &str,
    proof: &Proof,
) -> bool {
    mac(secret, party, challenge, hello, name).verify_slice(&proof.0).is_ok()
}

/// A new nonce.
///
/// # Errors
/// The system has no randomness to give.
pub fn nonce() -> std::io::Result<Nonce> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(crate::hex::Hex(bytes))
}
