//! TLS from files in PEM.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, crypto};
use tokio_rustls::TlsAcceptor;

use crate::options::OptionError;

fn wrong(option: &'static str, expected: &str, path: &Path, error: impl std::fmt::Display) -> OptionError {
    OptionError::new(option, expected, format!("{}: {error}", path.display()))
}

/// What the daemon shows whoever connects.
pub(crate) struct Tls(ServerConfig);

impl Tls {
    /// For clients.
    pub(crate) fn http(&self) -> TlsAcceptor {
        let mut config = self.0.clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// For workers. It takes whatever protocol they offer: the first frame tells whether it is the right one, and a
    /// program that speaks to both ports may do so with one set of options for TLS.
    pub(crate) fn workers(&self) -> Arc<ServerConfig> {
        Arc::new(self.0.clone())
    }
}

/// Reads a certificate chain and its key.
pub(crate) fn read(cert: &Path, key: &Path) -> Result<Tls, OptionError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| wrong("tls_cert", "a certificate chain in PEM", cert, error))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| wrong("tls_key", "a private key in PEM", key, error))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| wrong("tls_cert", "a certificate that fits tls_key", cert, error))?;
    Ok(Tls(config))
}
