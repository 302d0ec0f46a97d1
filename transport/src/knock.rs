//! Whether a receiver's process is dead: as long as it lives, it is the only one that listens at its endpoint.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::error::HandshakeError;
use crate::handshake::{Bounded, Endpoint, Incarnation, boot_id, is_another};

/// Between two knocks at the door of one who hangs up at once.
const RESPITE: Duration = Duration::from_millis(20);

/// Whether nobody is at an endpoint any more, or another one is. Who does not answer is not dead.
pub fn is_dead(endpoint: &Endpoint, within: Duration) -> bool {
    let until = Instant::now() + within;
    let here = boot_id().is_ok_and(|host| host == endpoint.host);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let of = endpoint.incarnation;
        let knocked = match (&endpoint.unix, endpoint.tcp) {
            (Some(path), _) if here => UnixStream::connect(path).map(|stream| answers(stream, of, left)),
            (_, Some(at)) => TcpStream::connect_timeout(&at, left).map(|stream| answers(stream, of, left)),
            _ => return false,
        };
        match knocked {
            Ok(Some(another)) => return another,
            // A process that dies closes its connections before, or after, it stops to listen.
            Ok(None) => std::thread::sleep(RESPITE),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::Interrupted) => {
                std::thread::sleep(RESPITE);
            }
            Err(error) => return matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound),
        }
    }
}

/// Whether whoever listens is another one; `None` where it hangs up.
fn answers(mut stream: impl Bounded, of: Incarnation, within: Duration) -> Option<bool> {
    match is_another(&mut stream, of, within) {
        Ok(another) => Some(another),
        Err(HandshakeError::Io { .. }) => None,
        Err(_) => Some(false),
    }
}
