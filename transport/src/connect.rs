//! A sender's way to a receiver.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use splitcore_secret::Secret;

use crate::error::HandshakeError;
use crate::handshake::{
    Answer, Backend, Bounded, Endpoint, Hello, Incarnation, Offer, PROTOCOL, Welcome, boot_id, choose,
    receive, send, show,
};
use crate::pool::Pool;
use crate::transfer::Link;

/// How a sender connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The model, by a name or a hash; the receiver must say the same.
    pub model: String,
    /// What the two share besides the key of the endpoint, if anything.
    pub secret: Option<Secret>,
    /// The backend, if it is not to be chosen.
    pub backend: Option<Backend>,
    /// How long connecting and the handshake may take.
    pub within: Duration,
    /// Whether layers carry a CRC32C; `None`: over TCP they do, elsewhere not.
    pub checksums: Option<bool>,
    /// Streams to one receiver, for backends that have them. A transfer stays on one.
    pub connections: u16,
    /// How long a receiver may take nothing before its connection is closed and transfers fail.
    pub stall_limit: Duration,
}

impl ConnectOptions {
    /// One connection by the best backend there is.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            secret: None,
            backend: None,
            within: Duration::from_secs(5),
            checksums: None,
            connections: 1,
            stall_limit: Duration::from_secs(10),
        }
    }
}

/// What `pool` can be sent by.
pub fn backends_of(pool: &Pool) -> Vec<Backend> {
    if pool.device_base().is_some() { vec![Backend::CudaIpc] } else { vec![Backend::Shm, Backend::Tcp] }
}

/// Connects `pool` of the process life `me` to a receiver.
///
/// # Errors
/// No backend, no connection, no answer in time; a field that does not agree, by its name.
pub fn connect(
    pool: &Arc<Pool>,
    me: Incarnation,
    to: &Endpoint,
    options: &ConnectOptions,
) -> Result<Arc<dyn Link>, HandshakeError> {
    let offer = Offer { host: boot_id()?, backends: backends_of(pool) };
    let backend = choose(&offer, to, options.backend)?;
    let hello = Hello {
        protocol: PROTOCOL,
        backend,
        incarnation: me,
        expects: to.incarnation,
        host: offer.host,
        model: options.model.clone(),
        shape: *pool.shape(),
        checksums: options.checksums.unwrap_or(backend == Backend::Tcp),
    };
    match backend {
        Backend::CudaIpc => crate::cuda::connect(pool, to, &hello, options),
        Backend::Shm => crate::shm::connect(pool, to, &hello, options),
        Backend::Tcp => crate::tcp::connect(pool, to, &hello, options),
        Backend::Nixl => {
            Err(HandshakeError::NoBackend("nixl is connected by its adapter in Python".to_owned()))
        }
    }
}

/// Shows that it may come, says hello and hears the welcome.
///
/// # Errors
/// As [`connect`].
pub(crate) fn greet(
    stream: &mut impl Bounded,
    to: &Endpoint,
    hello: &Hello,
    options: &ConnectOptions,
) -> Result<Welcome, HandshakeError> {
    let within = options.within;
    let secret = to.key.with(options.secret.as_ref());
    let greeting = show(stream, to.incarnation, &secret, within)?.greeting(hello.clone());
    send(stream, &greeting, within)?;
    let welcome = match receive::<Answer>(stream, within)? {
        Answer::Welcome(welcome) => *welcome,
        Answer::Refused(why) => return Err(HandshakeError::Refused(why)),
    };
    let differ = |field: &str, ours: String, theirs: String| HandshakeError::Mismatch {
        field: field.to_owned(),
        ours,
        theirs,
    };
    if welcome.protocol != PROTOCOL {
        return Err(differ("protocol", PROTOCOL.to_string(), welcome.protocol.to_string()));
    }
    if welcome.incarnation != hello.expects {
        return Err(differ("incarnation", hello.expects.to_string(), welcome.incarnation.to_string()));
    }
    if let Err(error) = welcome.shape.layout.check() {
        return Err(HandshakeError::Malformed(format!("layout: {error}")));
    }
    Ok(welcome)
}

/// Opens the receiver's local socket.
///
/// # Errors
/// There is none, or it does not answer.
pub(crate) fn local(to: &Endpoint) -> Result<UnixStream, HandshakeError> {
    let path = to.unix.as_ref().ok_or_else(|| HandshakeError::NoBackend("no local socket".to_owned()))?;
    UnixStream::connect(path).map_err(|error| HandshakeError::Io {
        what: format!("connecting to {}", path.display()),
        reason: error.to_string(),
    })
}

/// Opens one stream to the receiver's address.
///
/// # Errors
/// There is none, or it does not answer in time.
pub(crate) fn remote(to: &Endpoint, within: Duration) -> Result<TcpStream, HandshakeError> {
    let address = to.tcp.ok_or_else(|| HandshakeError::NoBackend("no TCP address".to_owned()))?;
    TcpStream::connect_timeout(&address, within).map_err(|error| HandshakeError::Io {
        what: format!("connecting to {address}"),
        reason: error.to_string(),
    })
}
