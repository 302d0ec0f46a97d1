//! TLS of the worker port: whom a worker trusts to be its daemon, and one connection's TLS, without a socket of its own.

use std::fmt;
use std::io::{self, BufRead as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};

use crate::address::Address;

/// What a worker offers as the protocol within (ALPN). A port that is there for another protocol hangs up at once; the
/// worker port itself does not ask.
pub const ALPN: &[u8] = b"splitcore";

/// Why a worker cannot connect with TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// There is no such file, or it is no PEM.
    #[error("{}: {error}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        error: pem::Error,
    },
    /// A file without certificates.
    #[error("{}: no certificate in it", .path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// A certificate that is none.
    #[error("{}: certificate {number}: {error}", .path.display())]
    Certificate {
        /// Of which file.
        path: PathBuf,
        /// Which of it, from 1.
        number: usize,
        /// What is wrong with it.
        error: rustls::Error,
    },
    /// No certificate can have this name.
    #[error("{0}: neither a host's name nor its address")]
    Name(String),
    /// A socket of the file system.
    #[error("{0}: TLS is for host:port")]
    Unix(Address),
}

/// Whom a worker trusts to be its daemon, and by which name it knows it.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tls {
    /// Trusts the certificates in a file of PEM, and who has a certificate from one of them. The daemon's must be for
    /// `name`, which is the host of `address` unless there is another.
    ///
    /// # Errors
    /// A file without certificates, a name that is none, or an address that is a path.
    pub fn new(ca: &Path, name: Option<&str>, address: &Address) -> Result<Self, TlsError> {
        let Address::Tcp(at) = address else { return Err(TlsError::Unix(address.clone())) };
        let host = name.unwrap_or_else(|| host(at));
        let name = ServerName::try_from(host).map_err(|_| TlsError::Name(host.to_owned()))?.to_owned();
        let file = |error| TlsError::File { path: ca.to_owned(), error };
        let mut roots = RootCertStore::empty();
        for (at, certificate) in CertificateDer::pem_file_iter(ca).map_err(file)?.enumerate() {
            roots.add(certificate.map_err(file)?).map_err(|error| TlsError::Certificate {
                path: ca.to_owned(),
                number: at + 1,
                error,
            })?;
        }
        if roots.is_empty() {
            return Err(TlsError::Empty { path: ca.to_owned() });
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let Ok(builder) = builder else { unreachable!("the provider has the versions that it is made for") };
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { config: Arc::new(config), name })
    }

    /// A connection that has yet to say anything.
    ///
    /// # Errors
    /// What rustls says.
    pub(crate) fn connection(&self) -> io::Result<Secure> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        connection.map(|connection| Secure(Box::new(connection))).map_err(|error| broken(&error))
    }
}

/// The host of `host:port`, an IPv6 address without its brackets.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// One connection's TLS. Others read from the socket; what is to be written goes to a socket at once, so that nothing
/// waits in here but what comes before the handshake has ended.
#[derive(Debug)]
pub(crate) struct Secure(Box<ClientConnection>);

impl Secure {
    /// Takes bytes that have come, in whatever pieces, and gives what they say. What TLS itself answers is written.
    /// Returns whether the other side has said that it says no more.
    pub(crate) fn take(
        &mut self,
        mut bytes: &[u8],
        to: &mut impl Write,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<bool> {
        while !bytes.is_empty() {
            self.0.read_tls(&mut bytes)?;
            let state = self.0.process_new_packets();
            // What came before an error has been said all the same.
            let mut reader = self.0.reader();
            while let Ok(chunk) = reader.fill_buf()
                && !chunk.is_empty()
            {
                each(chunk);
                let length = chunk.len();
                reader.consume(length);
            }
            // An answer of TLS itself; after an error the alert that tells of it, if it can still be told.
            let flushed = self.flush(to);
            if state.map_err(|error| broken(&error))?.peer_has_closed() {
                return Ok(true);
            }
            flushed?;
        }
        Ok(false)
    }

    /// Writes all of these.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
        while !bytes.is_empty() {
            // No more than what there is room for.
            let taken = self.0.writer().write(bytes)?;
            bytes = &bytes[taken..];
            if self.flush(to)? == 0 && taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Says that nothing follows.
    pub(crate) fn end(&mut self, to: &mut impl Write) {
        self.0.send_close_notify();
        let _ = self.flush(to);
    }

    /// Writes what is to be written. Returns how much that was.
    pub(crate) fn flush(&mut self, to: &mut impl Write) -> io::Result<usize> {
        let mut written = 0;
        while self.0.wants_write() {
            match self.0.write_tls(to) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}

fn broken(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, told(error))
}

/// What has ended a connection that may be one of TLS, for people.
#[cfg(feature = "tokio")]
pub(crate) fn why(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        // Without a word: no more than a socket says.
        return "end of stream".to_owned();
    }
    let of = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    of.map_or_else(|| error.to_string(), told)
}

fn told(error: &rustls::Error) -> String {
    use rustls::Error as E;
    match error {
        E::InvalidMessage(_) => "TLS: what comes from the other side is no TLS".to_owned(),
        // A bad signature: the name is that of one who is trusted, and the key is not.
        E::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "TLS: the daemon's certificate is from nobody who is trusted".to_owned()
        }
        E::InvalidCertificate(CertificateError::Other(other)) if other.to_string() == "CaUsedAsEndEntity" => {
            "TLS: the daemon's certificate is one of an authority (CA:TRUE), and no server's".to_owned()
        }
        E::InvalidCertificate(error) => format!("TLS: the daemon's certificate: {error}"),
        E::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate) => {
            "TLS: the other side does not trust this certificate".to_owned()
        }
        E::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "TLS: the other side is there for another protocol".to_owned()
        }
        error => format!("TLS: {error}"),
    }
}
