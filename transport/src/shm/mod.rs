//! To come.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::connect::ConnectOptions;
use crate::error::HandshakeError;
use crate::handshake::{Endpoint, Hello};
use crate::pool::Pool;
use crate::receiver::Serving;
use crate::transfer::Link;

/// The life of a connection at its receiver.
pub(crate) fn serve(_stream: UnixStream, hello: &Hello, _serving: &Serving) -> Result<(), HandshakeError> {
    Err(HandshakeError::NoBackend(format!("{} is not built yet", hello.backend)))
}

/// Connects a sender.
pub(crate) fn connect(
    _pool: &Arc<Pool>,
    _to: &Endpoint,
    hello: &Hello,
    _options: &ConnectOptions,
) -> Result<Arc<dyn Link>, HandshakeError> {
    Err(HandshakeError::NoBackend(format!("{} is not built yet", hello.backend)))
}
