//! What of a service stands open, said once at its start: no error, since an operator may well want it so.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use splitcore_wire::address::Address;

use crate::options::Options;

/// Shorter secrets can be found by trying.
const SECRET_BYTES_MIN: usize = 16;

/// Whether programs of other hosts can reach it. A name may be anybody's.
fn is_far(address: &Address) -> bool {
    let Address::Tcp(address) = address else { return false };
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    host != "localhost" && !host.parse().is_ok_and(|host: IpAddr| host.is_loopback())
}

/// Whether others than its owner may read a file.
fn is_readable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

/// Each door that stands open, in a sentence.
pub(crate) fn open(
    options: &Options,
    secret: Option<&[u8]>,
    clients: SocketAddr,
    workers: Option<&Address>,
) -> Vec<String> {
    let clients = Address::Tcp(clients.to_string());
    let far: Vec<(&str, &Address)> = [("listen", Some(&clients)), ("workers", workers)]
        .into_iter()
        .filter_map(|(option, address)| Some((option, address.filter(|address| is_far(address))?)))
        .collect();
    let mut said = Vec::new();
    for (option, address) in far {
        let is_clients = option == "listen";
        if secret.is_none() {
            let what = if is_clients { "use this service" } else { "be its worker" };
            said.push(format!("{option}: whoever reaches {address} can {what}: there is no secret_file"));
        } else if is_clients && options.tls_cert.is_none() {
            said.push(format!("{option}: the secret comes to {address} in the clear: there is no tls_cert"));
        }
    }
    if let Some(length) = secret.map(<[u8]>::len).filter(|&length| length < SECRET_BYTES_MIN) {
        said.push(format!(
            "secret_file: expected a secret of at least {SECRET_BYTES_MIN} bytes, got {length}, which can be found by trying"
        ));
    }
    let files = [("secret_file", &options.secret_file), ("tls_key", &options.tls_key)];
    for (option, path) in files.into_iter().filter_map(|(option, path)| Some((option, path.as_ref()?))) {
        if is_readable(path) {
            said.push(format!("{option}: others than its owner may read {}", path.display()));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &[u8] = b"0123456789abcdef";

    fn said(options: &Options, secret: Option<&[u8]>, clients: &str, workers: Option<&str>) -> Vec<String> {
        let workers: Option<Address> = workers.map(|workers| workers.parse().expect("an address"));
        open(options, secret, clients.parse().expect("an address"), workers.as_ref())
    }

    #[test]
    fn what_only_this_host_reaches_is_no_door() {
        for clients in ["127.0.0.1:8090", "[::1]:8090"] {
            for workers in ["127.0.0.1:8091", "localhost:1", "[::1]:8091", "unix:/run/w"] {
                assert_eq!(said(&Options::default(), None, clients, Some(workers)), [""; 0], "{workers}");
            }
        }
    }

    #[test]
    fn each_listener_that_everybody_reaches_is_named() {
        let open = said(&Options::default(), None, "0.0.0.0:8090", Some("0.0.0.0:8091"));
        assert!(
            open.len() == 2 && open[0].starts_with("listen: ") && open[1].starts_with("workers: "),
            "{open:?}"
        );
        let open = said(&Options::default(), None, "127.0.0.1:8090", Some("gpu-3:8091"));
        assert!(open.len() == 1 && open[0].contains("gpu-3:8091"), "{open:?}");
        let clear = said(&Options::default(), Some(LONG), "[::]:8090", Some("0.0.0.0:8091"));
        assert!(clear.len() == 1 && clear[0].contains("in the clear"), "{clear:?}");
        let tls = Options { tls_cert: Some("cert.pem".into()), ..Options::default() };
        assert_eq!(said(&tls, Some(LONG), "[::]:8090", Some("0.0.0.0:8091")), [""; 0]);
    }

    #[test]
    fn a_secret_that_is_short_or_that_others_may_read_is_no_secret() {
        let short = said(&Options::default(), Some(b"x"), "127.0.0.1:8090", None);
        assert!(short.len() == 1 && short[0].starts_with("secret_file: expected a secret"), "{short:?}");
        let file = std::env::temp_dir().join(format!("splitcore-doors-{}", std::process::id()));
        std::fs::write(&file, LONG).expect("a file");
        let both =
            Options { secret_file: Some(file.clone()), tls_key: Some(file.clone()), ..Options::default() };
        for (mode, doors) in [(0o600, 0), (0o400, 0), (0o640, 2), (0o604, 2), (0o777, 2)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("its own file");
            assert_eq!(said(&both, Some(LONG), "127.0.0.1:8090", None).len(), doors, "{mode:o}");
        }
        std::fs::remove_file(file).expect("its own file");
    }
}
