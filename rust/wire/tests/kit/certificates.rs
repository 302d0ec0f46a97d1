//! Certificates, made anew by openssl for each test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority and a certificate from it, for `localhost` and 127.0.0.1. Dropped, their files are gone.
pub(crate) struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let made = Self { folder };
        made.make("authority", "authority.key", &["-subj", "/CN=authority"]);
        let names = ["-subj", "/CN=daemon", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
        let of = ["-CA", "authority.pem", "-CAkey", "authority.key"];
        let server = ["-addext", "basicConstraints=critical,CA:FALSE"];
        made.make("daemon", "daemon.key", &[&names[..], &of, &server].concat());
        // As the shortest command makes it, and as it should be.
        made.make("careless", "careless.key", &names);
        made.make("own", "own.key", &[&names[..], &server].concat());
        made
    }

    fn make(&self, name: &str, key: &str, more: &[&str]) {
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
        let out = format!("{name}.pem");
        let command = Command::new("openssl")
            .current_dir(&self.folder)
            .args(["req", "-x509", "-keyout", key, "-out", &out])
            .args(curve)
            .args(more)
            .output()
            .expect("openssl makes the certificates");
        assert!(command.status.success(), "{}", String::from_utf8_lossy(&command.stderr));
    }

    /// `authority`, `daemon`, or of those that have signed themselves `own`, which is a server's, and `careless`, which
    /// is none.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pem"))
    }

    pub(crate) fn key(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.key"))
    }

    /// What a daemon with one of them shows.
    pub(crate) fn server(&self, name: &str) -> Arc<ServerConfig> {
        let chain = CertificateDer::pem_file_iter(self.file(name)).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(self.key(name)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
