//! TLS from files in PEM.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::options::OptionError;

fn wrong(option: &'static str, expected: &str, path: &Path, error: impl std::fmt::Display) -> OptionError {
    OptionError::new(option, expected, format!("{}: {error}", path.display()))
}

/// Reads a certificate chain and its key.
pub(crate) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, OptionError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| wrong("tls_cert", "a certificate chain in PEM", cert, error))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| wrong("tls_key", "a private key in PEM", key, error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| wrong("tls_cert", "a certificate that fits tls_key", cert, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
