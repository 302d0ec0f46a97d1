//! For a backend outside this crate, such as a library that is reached from another language: the same handshake, and
//! the same books, while the bytes and messages go its own way.

use std::sync::Arc;

use splitcore_core::kv::{KvRange, PoolShape};

use crate::error::{HandshakeError, TransferError};
use crate::handshake::{Backend, Endpoint, Hello, Incarnation, PROTOCOL, boot_id};
use crate::ledger::Ledger;
use crate::pool::Pool;
use crate::receiver::Receiver;
use crate::transfer::{Completion, Grant, PeerState, TransferKey};

/// A copy that has been booked: its first byte in the source's pool, its first byte in the destination's, its bytes.
pub type Booked = (u64, u64, u32);

/// The sender's first message to a receiver, as JSON.
///
/// # Errors
/// The host has no name.
pub fn hello(
    pool: &Pool,
    me: Incarnation,
    to: &Endpoint,
    backend: Backend,
    model: &str,
) -> Result<String, HandshakeError> {
    let hello = Hello {
        protocol: PROTOCOL,
        backend,
        incarnation: me,
        expects: to.incarnation,
        host: boot_id()?,
        model: model.to_owned(),
        shape: *pool.shape(),
        checksums: false,
    };
    serde_json::to_string(&hello).map_err(|error| HandshakeError::Malformed(error.to_string()))
}

impl Receiver {
    /// Checks the first message of a sender that comes by a backend outside this crate, and says who it is. It has not
    /// joined by this.
    ///
    /// # Errors
    /// The first field that does not agree.
    pub fn greeted(&self, hello: &str, backend: Backend) -> Result<Incarnation, HandshakeError> {
        let hello: Hello =
            serde_json::from_str(hello).map_err(|error| HandshakeError::Malformed(error.to_string()))?;
        let landing = self.landing();
        hello.check(
            landing.owner(),
            &self.options().model,
            landing.pool().shape(),
            &[backend],
            &self.endpoint().host,
        )?;
        Ok(hello.incarnation)
    }
}

/// The sender's books of one connection. Who carries the bytes books every call here before it acts, and every end.
pub struct Books {
    ledger: Ledger,
}

impl Books {
    /// Books of a connection from `pool` to a receiver with the pool `remote`.
    ///
    /// # Errors
    /// A layout that no pool can have.
    pub fn new(pool: Arc<Pool>, remote: PoolShape, receiver: Incarnation) -> Result<Self, HandshakeError> {
        match remote.layout.check() {
            Ok(()) => Ok(Self { ledger: Ledger::new(pool, remote, receiver) }),
            Err(error) => Err(HandshakeError::Malformed(format!("layout: {error}"))),
        }
    }

    /// Opens the books of a transfer.
    ///
    /// # Errors
    /// As [`crate::Link::begin`].
    pub fn begin(&self, grant: &Grant) -> Result<(), TransferError> {
        self.ledger.begin(grant)
    }

    /// Books the ranges of one put, or none of them; gives what is to be copied.
    ///
    /// # Errors
    /// As [`crate::Link::put`].
    pub fn put(
        &self,
        key: TransferKey,
        layer: u16,
        ranges: &[KvRange],
    ) -> Result<Vec<Booked>, TransferError> {
        let copies = self.ledger.put(key, layer, ranges)?;
        Ok(copies.into_iter().map(|copy| (copy.from, copy.to, copy.bytes)).collect())
    }

    /// Books a layer as published: its bytes, and whether it was the last one.
    ///
    /// # Errors
    /// As [`crate::Link::publish`].
    pub fn publish(&self, key: TransferKey, layer: u16) -> Result<(u64, bool), TransferError> {
        let sealed = self.ledger.publish(key, layer)?;
        Ok((sealed.bytes, sealed.last))
    }

    /// Ends a transfer, once: says whether it was open.
    pub fn end(&self, completion: Completion) -> bool {
        self.ledger.end(completion)
    }

    /// The peer is gone: every open transfer fails, and none can be begun.
    pub fn lose(&self) {
        let peer = self.ledger.receiver();
        self.ledger.lose(|key| TransferError::PeerLost { key, peer });
    }

    /// Appends the ends since the last call. O(those).
    pub fn poll(&self, ended: &mut Vec<Completion>) {
        self.ledger.poll(ended);
    }

    /// What is known of the receiver.
    pub fn peer(&self) -> PeerState {
        self.ledger.peer()
    }
}
