//! What keeps strangers out: secrets, proofs that one is known over nonces of both sides, so that no proof is good
//! twice, and numbers that nobody guesses.
//!
//! A proof tells the two sides that they are one another's. It neither hides nor protects what follows: where the network
//! is not trusted, that is TLS's.

#![forbid(unsafe_code)]

pub mod hex;

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use hex::{Hex, Nonce, Proof};

/// What two sides share.
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

/// Bytes that nobody is to see: not in logs, and not by how long a comparison takes.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden<const N: usize>(Hex<N>);

/// What whoever connects to a worker must know: drawn when the worker starts, and handed out with its address.
pub type Key = Hidden<32>;

/// Shows that its bearer was given leave for one thing.
pub type Token = Hidden<16>;

impl<const N: usize> Hidden<N> {
    /// These bytes.
    pub fn new(bytes: [u8; N]) -> Self {
        Self(Hex(bytes))
    }

    /// Drawn by the system.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn random() -> std::io::Result<Self> {
        random().map(Self::new)
    }

    /// The bytes, for whoever is to know them.
    pub fn bytes(&self) -> &[u8; N] {
        &self.0.0
    }
}

impl<const N: usize> Default for Hidden<N> {
    fn default() -> Self {
        Self::new([0; N])
    }
}

impl<const N: usize> PartialEq for Hidden<N> {
    fn eq(&self, other: &Self) -> bool {
        self.0.0.ct_eq(&other.0.0).into()
    }
}

impl<const N: usize> Eq for Hidden<N> {}

impl<const N: usize> fmt::Debug for Hidden<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

impl Key {
    /// What the two sides of a connection share: this key and, where the operator has given one, the service's secret.
    /// Whoever has overheard the key on its way does not know the other.
    pub fn with(&self, shared: Option<&Secret>) -> Secret {
        let outer = shared.map_or(&b""[..], |shared| &shared.0);
        Secret(mac(outer, &[b"splitcore 1 key\0", self.bytes()]).into_bytes().to_vec())
    }

    /// Names the key and tells nothing of it: whoever knows the key can say which one is meant.
    pub fn name(&self) -> Nonce {
        let bytes = mac(self.bytes(), &[b"splitcore 1 name\0"]).into_bytes();
        let mut name = [0; 16];
        name.copy_from_slice(&bytes[..16]);
        Hex(name)
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
    /// The machine whose memory is to be written.
    Receiver,
    /// The machine that has connected to write it.
    Sender,
}

impl Party {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Daemon => b"splitcore 1 daemon\0",
            Self::Worker => b"splitcore 1 worker\0",
            Self::Source => b"splitcore 1 source\0",
            Self::Destination => b"splitcore 1 destination\0",
            Self::Receiver => b"splitcore 1 receiver\0",
            Self::Sender => b"splitcore 1 sender\0",
        }
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> hmac::digest::CtOutput<Hmac<Sha256>> {
    keyed(key, parts).finalize()
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let Ok(mut mac) = <Hmac<Sha256> as KeyInit>::new_from_slice(key) else {
        unreachable!("HMAC takes a key of any length")
    };
    for part in parts {
        mac.update(part);
    }
    mac
}

/// The proof of `party`, over the nonce of whoever was connected to, that of whoever connected, and a name: who speaks, or
/// nothing where that is said later.
pub fn prove(secret: &Secret, party: Party, challenge: &Nonce, hello: &Nonce, name: &str) -> Proof {
    let bytes = mac(&secret.0, &[party.label(), &challenge.0, &hello.0, name.as_bytes()]).into_bytes();
    let mut proof = [0; 32];
    proof.copy_from_slice(&bytes);
    Hex(proof)
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
    let parts = [party.label(), &challenge.0, &hello.0, name.as_bytes()];
    keyed(&secret.0, &parts).verify_slice(&proof.0).is_ok()
}

/// A new nonce.
///
/// # Errors
/// The system has no randomness to give.
pub fn nonce() -> std::io::Result<Nonce> {
    random().map(Hex)
}

fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails so")]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_party_one_name_and_one_pair_of_nonces_only() {
        let (secret, here, there) = (Secret::new(b"a secret\n"), Hex([1; 16]), Hex([2; 16]));
        let proof = prove(&secret, Party::Source, &here, &there, "0.5");
        let is_good = |secret: &Secret, party, one: &Nonce, other: &Nonce, name: &str| {
            verify(secret, party, one, other, name, &proof)
        };
        assert!(is_good(&Secret::new(b"a secret"), Party::Source, &here, &there, "0.5"));
        assert!(!is_good(&secret, Party::Destination, &here, &there, "0.5"), "reflected");
        assert!(!is_good(&secret, Party::Source, &there, &there, "0.5"), "replayed");
        assert!(!is_good(&secret, Party::Source, &here, &here, "0.5"), "replayed");
        assert!(!is_good(&secret, Party::Source, &here, &there, "0.6"), "of another");
        assert!(!is_good(&Secret::new(b"another"), Party::Source, &here, &there, "0.5"));
    }

    #[test]
    fn a_key_is_shared_together_with_the_services_secret_and_its_name_tells_nothing_of_either() {
        let (key, other) = (Key::new([7; 32]), Key::random().unwrap());
        let secret = Secret::new(b"a secret");
        assert_eq!(key.with(Some(&secret)), Key::new([7; 32]).with(Some(&secret)));
        let all = [key.with(None), key.with(Some(&secret)), other.with(None), other.with(Some(&secret))];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one));
        }
        assert_eq!(key.name(), Key::new([7; 32]).name());
        assert_ne!(key.name(), other.name());
        assert_ne!(key.name().0, [7; 16]);
    }

    #[test]
    fn what_is_hidden_is_written_for_the_other_side_and_not_for_logs() {
        let token = Token::random().unwrap();
        assert_eq!(format!("{token:?} {:?}", secret()), "Hidden Secret");
        let text = serde_json::to_string(&token).unwrap();
        assert_eq!(text.len(), 34);
        assert_eq!(serde_json::from_str::<Token>(&text).unwrap(), token);
        assert_ne!(Token::random().unwrap(), token);
    }

    fn secret() -> Secret {
        Secret::new(b"a secret")
    }
}
