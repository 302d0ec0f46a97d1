//! Which backend a pair uses.

use super::{Backend, Endpoint};
use crate::error::HandshakeError;

/// What a sender has to offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Its host: the kernel's boot id.
    pub host: String,
    /// What it can send by.
    pub backends: Vec<Backend>,
}

/// The best backend that both have and that reaches: device copies and shared memory on one host, else NIXL, else
/// TCP. `forced` leaves no choice.
///
/// # Errors
/// There is none; the message says what was missing.
pub fn choose(offer: &Offer, to: &Endpoint, forced: Option<Backend>) -> Result<Backend, HandshakeError> {
    const BEST_FIRST: [Backend; 4] = [Backend::CudaIpc, Backend::Shm, Backend::Nixl, Backend::Tcp];
    if let Some(backend) = forced {
        return obstacle(offer, to, backend).map_or(Ok(backend), |why| {
            Err(HandshakeError::NoBackend(format!("{backend} is asked for, but {why}")))
        });
    }
    let mut why_not = Vec::new();
    for backend in BEST_FIRST {
        match obstacle(offer, to, backend) {
            None => return Ok(backend),
            Some(why) => why_not.push(format!("{backend}: {why}")),
        }
    }
    Err(HandshakeError::NoBackend(why_not.join("; ")))
}

/// What stands in the way of a backend.
fn obstacle(offer: &Offer, to: &Endpoint, backend: Backend) -> Option<&'static str> {
    if !offer.backends.contains(&backend) {
        return Some("the sender has it not");
    }
    if !to.backends.contains(&backend) {
        return Some("the receiver has it not");
    }
    match backend {
        Backend::CudaIpc | Backend::Shm if offer.host != to.host => Some("the two are on different hosts"),
        Backend::CudaIpc | Backend::Shm if to.unix.is_none() => Some("the receiver has no local socket"),
        Backend::Nixl if to.nixl.is_none() => Some("the receiver has no NIXL agent"),
        Backend::Tcp if to.tcp.is_none() => Some("the receiver has no TCP address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Incarnation;

    fn endpoint(backends: &[Backend]) -> Endpoint {
        Endpoint {
            incarnation: Incarnation(7),
            host: "here".to_owned(),
            unix: Some("/run/kv.sock".into()),
            tcp: Some(([127, 0, 0, 1], 9).into()),
            backends: backends.to_vec(),
            device: None,
            nixl: None,
            key: splitcore_secret::Key::default(),
        }
    }

    fn offer(host: &str, backends: &[Backend]) -> Offer {
        Offer { host: host.to_owned(), backends: backends.to_vec() }
    }

    #[test]
    fn one_host_shares_memory_and_two_hosts_use_tcp() {
        let both = [Backend::Tcp, Backend::Shm];
        assert_eq!(choose(&offer("here", &both), &endpoint(&both), None), Ok(Backend::Shm));
        assert_eq!(choose(&offer("there", &both), &endpoint(&both), None), Ok(Backend::Tcp));
    }

    #[test]
    fn what_is_forced_is_taken_or_refused_with_the_reason() {
        let both = [Backend::Tcp, Backend::Shm];
        assert_eq!(choose(&offer("here", &both), &endpoint(&both), Some(Backend::Tcp)), Ok(Backend::Tcp));
        let refused = choose(&offer("there", &both), &endpoint(&both), Some(Backend::Shm));
        let text = refused.map_err(|error| error.to_string());
        assert_eq!(
            text,
            Err("no transport for this pair: shm is asked for, but the two are on different hosts".into())
        );
    }

    #[test]
    fn without_a_common_backend_each_is_told_why() {
        let refused = choose(&offer("here", &[Backend::Tcp]), &endpoint(&[Backend::Shm]), None);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("shm: the sender has it not"), "{text}");
        assert!(text.contains("tcp: the receiver has it not"), "{text}");
    }
}
