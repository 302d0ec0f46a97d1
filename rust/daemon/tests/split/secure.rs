//! A service with a certificate: what it shows its clients it shows its workers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use splitcore_daemon::Options;
use splitcore_wire::address::Address;
use splitcore_wire::link::LinkEvent;
use splitcore_wire::tls::Tls;

use crate::certificates::Certificates;
use crate::common::{LIMIT, Service};
use crate::kit::managed;
use crate::late::Puppet;

fn secure(certificates: &Certificates, options: Options) -> Service {
    let (tls_cert, tls_key) = (certificates.file("daemon"), certificates.key("daemon"));
    Service::start(Options { tls_cert: Some(tls_cert), tls_key: Some(tls_key), ..options })
}

fn get(service: &Service, certificates: &Certificates, path: &str) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.file("authority")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(service.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream);
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_worker_joins_with_tls_where_clients_need_it() {
    let certificates = Certificates::new();
    let service = secure(&certificates, managed());
    let address: Address = service.workers.as_ref().unwrap().parse().unwrap();
    let ca = certificates.file("authority");
    let puppet = Puppet::connect(&service, "p0", Some(Tls::new(&ca, Some("localhost"), &address).unwrap()));
    puppet.join();
    let told = get(&service, &certificates, "/v1/machines");
    assert!(told.starts_with("HTTP/1.1 200 OK") && told.contains("\"p0\""), "{told}");
}

#[test]
fn a_worker_at_the_door_for_clients_is_told_so() {
    let certificates = Certificates::new();
    let mut service = secure(&certificates, managed());
    service.workers = Some(service.address.to_string());
    let tls = Tls::new(&certificates.file("authority"), None, &service.address.to_string().parse().unwrap());
    let puppet = Puppet::connect(&service, "p0", Some(tls.unwrap()));
    let Some(LinkEvent::Lost { reason, .. }) = puppet.0.recv(LIMIT) else { panic!("it is let in") };
    assert_eq!(reason.to_string(), "connection lost: TLS: the other side is there for another protocol");
}

#[test]
fn on_a_socket_of_the_file_system_workers_need_no_tls() {
    let certificates = Certificates::new();
    let workers = format!("unix:{}", certificates.file("workers").display());
    let service = secure(&certificates, Options { workers, ..managed() });
    Puppet::connect(&service, "p0", None).join();
}
