//! Where a worker listens, and what it tells others of that. Whoever is told an address must reach it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use splitcore_transport::Backend;
use splitcore_wire::address::Address;

/// Where a worker takes KV by TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransferListen {
    /// Nowhere where all that KV comes from is on this host and shares memory; else beside where it takes other workers.
    #[default]
    AsNeeded,
    /// Nowhere.
    Nowhere,
    /// Here; port 0 takes a free one.
    At(SocketAddr),
}

/// The doors of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doors {
    pub(crate) peers: Address,
    pub(crate) transfers: Option<SocketAddr>,
    /// What others are told instead of an address that stands for all of this host's.
    pub(crate) host: IpAddr,
    /// Whether the daemon may be on another host, and other workers with it.
    is_far: bool,
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// This host's address on the way to its daemon: what is on the daemon's network reaches it there.
///
/// # Errors
/// The daemon's host has no address, or there is no way to it.
pub(crate) fn on_the_way_to(daemon: &Address) -> io::Result<IpAddr> {
    let Address::Tcp(daemon) = daemon else { return Ok(LOOPBACK) };
    let mut last = io::Error::other("the host has no address");
    for to in daemon.to_socket_addrs()? {
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { [0_u16; 8].into() };
        // Connecting such a socket sends nothing: the system looks the way up.
        let way = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        match way {
            Ok(address) => return Ok(address.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The number of an address, where it is one.
fn ip_of(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Tcp(text) => text.parse::<SocketAddr>().ok().map(|address| address.ip()),
        Address::Unix(_) => None,
    }
}

/// Whether an address is of the network, so that others than this host's processes may reach it.
fn is_outside(ip: IpAddr) -> bool {
    !ip.is_loopback()
}

/// Whether it must be known where others reach this host, since what was asked for does not say so.
pub(crate) fn need_host(peers: Option<&Address>, transfers: TransferListen) -> bool {
    let by_transfers = match transfers {
        TransferListen::AsNeeded => true,
        TransferListen::Nowhere => false,
        TransferListen::At(address) => address.ip().is_unspecified(),
    };
    by_transfers || peers.is_none_or(|peers| ip_of(peers).is_some_and(|ip| ip.is_unspecified()))
}

impl Doors {
    /// What is to be opened: what was asked for, and by default what others need. `host` is this host's address
    /// [on the way to the daemon](on_the_way_to).
    pub(crate) fn new(
        host: IpAddr,
        peers: Option<&Address>,
        transfers: TransferListen,
        forced: Option<Backend>,
    ) -> Self {
        let at = |ip: IpAddr| SocketAddr::new(ip, 0);
        let peers = peers.cloned().unwrap_or_else(|| Address::Tcp(at(host).to_string()));
        // Other workers are where they come from, or where the daemon is.
        let beside = ip_of(&peers).filter(|&ip| is_outside(ip)).unwrap_or(host);
        let transfers = match (transfers, forced) {
            (TransferListen::At(address), _) => Some(address),
            (TransferListen::AsNeeded, Some(Backend::Tcp)) => Some(at(beside)),
            (TransferListen::AsNeeded, None) if is_outside(beside) => Some(at(beside)),
            (TransferListen::AsNeeded | TransferListen::Nowhere, _) => None,
        };
        Self { peers, transfers, host, is_far: is_outside(host) }
    }

    /// An address as others are told it.
    pub(crate) fn told(&self, address: &Address) -> Address {
        let own = |text: &str| text.parse::<SocketAddr>().ok().filter(|at| at.ip().is_unspecified());
        match address {
            Address::Tcp(text) => own(text).map_or_else(
                || address.clone(),
                |at| Address::Tcp(SocketAddr::new(self.host, at.port()).to_string()),
            ),
            Address::Unix(_) => address.clone(),
        }
    }

    /// What the operator should know of these doors. `is_kept`: a secret or TLS keeps strangers from being told the keys.
    pub(crate) fn warnings(&self, is_kept: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        let transfers = self.transfers.map(|at| Address::Tcp(at.to_string()));
        let doors = [("--peer-listen", Some(&self.peers)), ("--transfer-listen", transfers.as_ref())];
        for (option, address) in doors.into_iter().filter_map(|(option, address)| Some((option, address?))) {
            match ip_of(address) {
                Some(ip) if ip.is_loopback() && self.is_far => warnings.push(format!(
                    "{option} {address}: workers on other hosts cannot reach it; {} is this host's address on the way to the daemon",
                    self.host
                )),
                Some(ip) if is_outside(ip) && !is_kept => warnings.push(format!(
                    "{option} {address} is open to the network, and there is neither a --secret-file nor --tls-ca: whoever \
                     reaches the daemon's worker port, or hears what goes over the network, learns the key to it"
                )),
                _ => {}
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5));

    fn tcp(text: &str) -> Address {
        Address::Tcp(text.to_owned())
    }

    fn doors(host: IpAddr, peers: Option<&str>, transfers: TransferListen, by: Option<Backend>) -> Doors {
        Doors::new(host, peers.map(tcp).as_ref(), transfers, by)
    }

    #[test]
    fn a_worker_beside_its_daemon_opens_nothing_to_the_network_and_no_tcp_where_memory_is_shared() {
        let of = |by| doors(LOOPBACK, None, TransferListen::AsNeeded, by);
        assert_eq!((of(None).peers, of(None).transfers), (tcp("127.0.0.1:0"), None));
        assert_eq!(of(Some(Backend::Shm)).transfers, None);
        assert_eq!(of(Some(Backend::CudaIpc)).transfers, None);
        assert_eq!(of(Some(Backend::Tcp)).transfers, "127.0.0.1:0".parse().ok());
        assert!(of(Some(Backend::Tcp)).warnings(false).is_empty());
    }

    #[test]
    fn a_worker_of_a_daemon_on_another_host_listens_where_others_reach_it() {
        let of = |peers, transfers| doors(HERE, peers, transfers, None);
        let by_default = of(None, TransferListen::AsNeeded);
        assert_eq!(
            (&by_default.peers, by_default.transfers),
            (&tcp("10.0.0.5:0"), "10.0.0.5:0".parse().ok())
        );
        assert_eq!(of(None, TransferListen::Nowhere).transfers, None);
        let elsewhere = of(Some("10.1.0.9:7700"), TransferListen::AsNeeded);
        assert_eq!(elsewhere.transfers, "10.1.0.9:0".parse().ok(), "beside the other door");
        assert_eq!(doors(HERE, None, TransferListen::AsNeeded, Some(Backend::Shm)).transfers, None);
        // One beside the daemon whose others come from outside.
        let beside = doors(LOOPBACK, Some("10.0.0.5:7700"), TransferListen::AsNeeded, None);
        assert_eq!(beside.transfers, "10.0.0.5:0".parse().ok());
    }

    #[test]
    fn all_addresses_of_a_host_are_told_as_the_one_that_others_reach() {
        let of = doors(HERE, Some("0.0.0.0:7700"), TransferListen::AsNeeded, None);
        assert_eq!(of.told(&tcp("0.0.0.0:7700")), tcp("10.0.0.5:7700"));
        assert_eq!(of.told(&tcp("[::]:7700")), tcp("10.0.0.5:7700"));
        assert_eq!(of.told(&tcp("10.9.9.9:7700")), tcp("10.9.9.9:7700"));
        let path = Address::Unix("/run/peer.sock".into());
        assert_eq!(of.told(&path), path);
    }

    #[test]
    fn each_door_that_is_open_without_a_secret_or_cannot_be_reached_is_told_of() {
        let open = doors(HERE, None, TransferListen::AsNeeded, None);
        let told = open.warnings(false);
        assert!(told[0].starts_with("--peer-listen 10.0.0.5:0 is open to the network"), "{told:?}");
        assert!(told[1].starts_with("--transfer-listen 10.0.0.5:0 is open to the network"), "{told:?}");
        assert!(open.warnings(true).is_empty());
        let all = doors(LOOPBACK, Some("0.0.0.0:1"), TransferListen::Nowhere, None);
        assert_eq!(all.warnings(false).len(), 1);
        let unreachable =
            doors(HERE, Some("127.0.0.1:0"), TransferListen::At(SocketAddr::new(LOOPBACK, 0)), None);
        let told = unreachable.warnings(true);
        assert!(told.len() == 2 && told[0].contains("10.0.0.5 is this host's address"), "{told:?}");
    }

    #[test]
    fn the_way_to_a_daemon_on_this_host_is_loopback() {
        assert_eq!(on_the_way_to(&tcp("127.0.0.1:9")).ok(), Some(LOOPBACK));
        assert_eq!(on_the_way_to(&Address::Unix("/run/d.sock".into())).ok(), Some(LOOPBACK));
        assert!(on_the_way_to(&tcp("a-host-that-nobody-has.invalid:9")).is_err());
        // Which ends a worker only where it has to know.
        let at = |ip| TransferListen::At(SocketAddr::new(ip, 1));
        let said = Some(tcp("10.0.0.5:7700"));
        assert!(!need_host(said.as_ref(), at(HERE)) && !need_host(said.as_ref(), TransferListen::Nowhere));
        assert!(need_host(said.as_ref(), TransferListen::AsNeeded) && need_host(None, at(HERE)));
        let all = Some(tcp("0.0.0.0:7700"));
        assert!(need_host(all.as_ref(), at(HERE)) && need_host(said.as_ref(), at([0, 0, 0, 0].into())));
    }
}
