//! Shared memory, on one host: the sender maps the receiver's pool and its board, copies in the caller's thread and
//! publishes with two stores. Only stops and goodbyes go over the local socket.
//!
//! Layers carry no checksum: the receiver does not know which bytes a layer came in, and stores do not lose any.

mod link;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::connect::ConnectOptions;
use crate::error::HandshakeError;
use crate::handshake::{Endpoint, Hello};
use crate::local::{self, Offered};
use crate::pool::Pool;
use crate::receiver::Serving;
use crate::transfer::Link;

/// The life of a connection at its receiver.
pub(crate) fn serve(stream: UnixStream, hello: &Hello, serving: &Serving) -> Result<(), HandshakeError> {
    let landing = &serving.landing;
    let Some(mapping) = landing.pool().mapping() else {
        return Err(HandshakeError::NoBackend("the receiver's pool is not in shared memory".to_owned()));
    };
    let descriptors = [mapping.fd(), landing.board().fd()];
    let offered = Offered { extra: serde_json::Value::Null, descriptors: &descriptors };
    local::serve(stream, hello, serving, &offered)
}

/// Connects a sender.
pub(crate) fn connect(
    pool: &Arc<Pool>,
    to: &Endpoint,
    hello: &Hello,
    options: &ConnectOptions,
) -> Result<Arc<dyn Link>, HandshakeError> {
    Ok(Arc::new(link::ShmLink::connect(pool, to, hello, options)?))
}
