//! Certificate chains of many kinds (`chains/rows.txt`) with Go's verdict on each, and handshakes in memory that
//! present them to a client or a server.
use std::sync::Arc;

use kelson_pki::{AnyServerCertificate, Usage, pem_block, provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

const ROWS: &str = include_str!("../chains/rows.txt");
/// The DNS name in each leaf certificate.
pub const SERVER_NAME: &str = "server.example.com";

/// A certificate chain, and whether verification accepts it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The use for which the chain is presented.
    pub usage: Usage,
    /// Whether Go accepts the chain. Kelson differs in one row, which says so.
    pub is_accepted: bool,
    /// A description of the chain.
    pub what: &'static str,
    /// The certificates that the peer presents, its leaf first.
    pub shown: Vec<CertificateDer<'static>>,
    /// The trusted certificates.
    pub bundle: Vec<CertificateDer<'static>>,
}

impl Row {
    /// Returns the trusted certificates in PEM.
    pub fn bundle_pem(&self) -> String {
        self.bundle.iter().map(|der| pem_block("CERTIFICATE", der)).collect()
    }
    /// Returns the presented certificates in PEM.
    pub fn shown_pem(&self) -> String {
        self.shown.iter().map(|der| pem_block("CERTIFICATE", der)).collect()
    }
}

fn decoded(text: &str) -> Vec<u8> {
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    let decoded = kelson_pki::certificates_from_pem(&pem).expect("base64");
    decoded.first().expect("a block").to_vec()
}

/// Returns all rows of the file.
pub fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in ROWS.lines() {
        let (word, rest) = line.split_once(' ').expect("two words");
        match word {
            "row" => {
                let [usage, answer, what] = rest.splitn(3, ' ').collect::<Vec<_>>().try_into().expect("three");
                let usage = if usage == "client" { Usage::Client } else { Usage::Server };
                let is_accepted = answer == "accepted";
                rows.push(Row { usage, is_accepted, what, shown: Vec::new(), bundle: Vec::new() });
            }
            "shown" => rows.last_mut().expect("a row").shown.push(decoded(rest).into()),
            "bundle" => rows.last_mut().expect("a row").bundle.push(decoded(rest).into()),
            _ => {}
        }
    }
    rows
}

/// Returns the rows for one use.
pub fn rows_of(usage: Usage) -> impl Iterator<Item = Row> {
    rows().into_iter().filter(move |row| row.usage == usage)
}

/// Returns the private key of every leaf.
pub fn key() -> PrivateKeyDer<'static> {
    let text = ROWS.lines().find_map(|line| line.strip_prefix("key ")).expect("a key");
    PrivatePkcs8KeyDer::from(decoded(text)).into()
}

/// Returns the private key of every leaf in PEM.
pub fn key_pem() -> String {
    pem_block("PRIVATE KEY", key().secret_der())
}

/// Returns the certificate resolver of a peer. The library would check the chain first; this one does not.
fn shows(row: &Row) -> Arc<SingleCertAndKey> {
    let key = provider().key_provider.load_private_key(key()).expect("a key");
    Arc::new(SingleCertAndKey::from(CertifiedKey::new(row.shown.clone(), key)))
}

/// Checks whether a client accepts a server that presents the row's chain. The error is the client's.
///
/// # Errors
/// Returns why the client rejects the server.
pub fn believes_server(client: impl Into<Arc<ClientConfig>>, row: &Row) -> Result<(), String> {
    let client = client.into();
    let server = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut server = server.expect("versions").with_no_client_auth().with_cert_resolver(shows(row));
    server.alpn_protocols.clone_from(&client.alpn_protocols);
    handshake(client, Arc::new(server))
}

/// Checks whether a server accepts a client that presents the row's chain. The error is the server's.
///
/// # Errors
/// Returns why the server rejects the client.
pub fn believes_client(server: impl Into<Arc<ServerConfig>>, row: &Row) -> Result<(), String> {
    let client = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let client =
        client.expect("versions").dangerous().with_custom_certificate_verifier(AnyServerCertificate::verifier());
    handshake(Arc::new(client.with_client_cert_resolver(shows(row))), server.into())
}

fn handshake(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Result<(), String> {
    let name = ServerName::try_from(SERVER_NAME).expect("a name");
    let mut client = ClientConnection::new(client, name).expect("a client");
    let mut server = ServerConnection::new(server).expect("a server");
    // A handshake takes only a few flights.
    for _ in 0..8 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("written");
        }
        let mut sent = bytes.as_slice();
        while !sent.is_empty() {
            server.read_tls(&mut sent).expect("read");
            server.process_new_packets().map_err(|e| e.to_string())?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("written");
        }
        let mut sent = bytes.as_slice();
        while !sent.is_empty() {
            client.read_tls(&mut sent).expect("read");
            client.process_new_packets().map_err(|e| e.to_string())?;
        }
    }
    if client.is_handshaking() || server.is_handshaking() { Err("the handshake does not end".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
