//! A webhook server for tests: TLS, HTTP/1.1, persistent connections, and every failure of real servers. It runs in the
//! test process, and in pods (see `operator`).
use std::io::{BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::issuer::Issued;
use crate::registry::base64;

/// The maximum time a connection waits for its next request, and a request is left without an answer.
const IDLE: Duration = Duration::from_secs(120);
/// The maximum size of a request in bytes.
const REQUEST_MAX: u64 = 16 << 20;

/// The response of the server.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Answers with this status and JSON.
    Json(u16, Value),
    /// Answers with this status and these bytes.
    Bytes(u16, Vec<u8>),
    /// Reads the request and does not answer.
    Hang,
    /// Sends a part of an answer, and then stalls.
    Stall,
    /// Closes the connection.
    Break,
    /// Redirects the caller.
    Redirect(String),
    /// Answers with 200 and JSON after a delay.
    Slow(Duration, Value),
}

/// A request: its path without the query, and its document.
#[derive(Clone, Debug)]
pub struct WebhookRequest {
    /// The path without the query.
    pub path: String,
    /// The AdmissionReview or ConversionReview.
    pub review: Value,
}

impl WebhookRequest {
    /// Returns the object of an AdmissionReview.
    pub fn object(&self) -> &Value {
        &self.review["request"]["object"]
    }

    fn response(&self, mut response: Value) -> Value {
        response["uid"] = self.review["request"]["uid"].clone();
        json!({"apiVersion": self.review["apiVersion"], "kind": "AdmissionReview", "response": response})
    }

    /// Returns an answer that allows the object; `more` is added to it (warnings, audit annotations).
    pub fn allow(&self, more: Value) -> Value {
        let mut response = json!({"allowed": true});
        if let (Some(response), Value::Object(more)) = (response.as_object_mut(), more) {
            response.extend(more);
        }
        self.response(response)
    }

    /// Returns an answer that denies the object with this status.
    pub fn deny(&self, status: Value) -> Value {
        self.response(json!({"allowed": false, "status": status}))
    }

    /// Returns an answer that allows the object with a JSON patch.
    pub fn patch(&self, operations: &Value) -> Value {
        let patch = base64(operations.to_string().as_bytes());
        self.allow(json!({"patchType": "JSONPatch", "patch": patch}))
    }
}

type Decide = dyn Fn(&WebhookRequest) -> Answer + Send + Sync;

/// A running server; dropping it stops accepting connections.
pub struct WebhookServer {
    /// The port it listens on.
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    decide: Box<Decide>,
    tls: RwLock<Arc<ServerConfig>>,
    asked: Mutex<Vec<WebhookRequest>>,
    connections: AtomicUsize,
    ended: AtomicBool,
}

impl WebhookServer {
    /// Starts a server at an address (`127.0.0.1:0` takes a free port).
    pub fn start(
        address: &str,
        issued: &Issued,
        decide: impl Fn(&WebhookRequest) -> Answer + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        Self::with(address, config(issued)?, decide)
    }

    /// Starts a server that requires client certificates of the CA of `clients`.
    pub fn start_for(
        clients: &Issued,
        issued: &Issued,
        decide: impl Fn(&WebhookRequest) -> Answer + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(clients.authority.as_bytes())?)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()?;
        let (chain, key) = identity(issued)?;
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let config = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key)?;
        Self::with("127.0.0.1:0", config, decide)
    }

    fn with(
        address: &str,
        config: ServerConfig,
        decide: impl Fn(&WebhookRequest) -> Answer + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| address.to_owned())?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            decide: Box::new(decide),
            tls: RwLock::new(Arc::new(config)),
            asked: Mutex::default(),
            connections: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                if served.ended.load(Ordering::SeqCst) {
                    return;
                }
                let served = Arc::clone(&served);
                // The caller decides how a connection ends.
                std::thread::spawn(move || drop(served.connection(tcp)));
            }
        });
        Ok(Self { port, shared })
    }

    /// Uses another certificate for new connections.
    pub fn show(&self, issued: &Issued) -> anyhow::Result<()> {
        *self.shared.tls.write().expect("no test panics while it holds this") = Arc::new(config(issued)?);
        Ok(())
    }

    /// Returns the requests so far.
    pub fn asked(&self) -> Vec<WebhookRequest> {
        self.shared.asked.lock().expect("no test panics while it holds this").clone()
    }

    /// Returns the number of connections with requests.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for WebhookServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // One more connection ends the accepting thread.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn identity(issued: &Issued) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = CertificateDer::pem_slice_iter(issued.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    Ok((chain, PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?))
}

fn config(issued: &Issued) -> anyhow::Result<ServerConfig> {
    let (chain, key) = identity(issued)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(builder.with_no_client_auth().with_single_cert(chain, key)?)
}

impl Shared {
    fn connection(&self, tcp: TcpStream) -> anyhow::Result<()> {
        tcp.set_read_timeout(Some(IDLE))?;
        let tls = Arc::clone(&self.tls.read().expect("no test panics while it holds this"));
        let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(tls)?, tcp));
        let mut first = true;
        while let Some(asked) = read_request(&mut stream)? {
            if std::mem::take(&mut first) {
                self.connections.fetch_add(1, Ordering::SeqCst);
            }
            self.asked.lock().expect("no test panics while it holds this").push(asked.clone());
            if !self.answer((self.decide)(&asked), stream.get_mut())? {
                break;
            }
        }
        Ok(())
    }

    /// Sends an answer; returns whether the connection stays open.
    fn answer(&self, answer: Answer, to: &mut impl std::io::Write) -> anyhow::Result<bool> {
        let (code, more, body) = match answer {
            Answer::Json(code, body) => (code, String::new(), body.to_string().into_bytes()),
            Answer::Bytes(code, body) => (code, String::new(), body),
            Answer::Redirect(place) => (302, format!("Location: {place}\r\n"), Vec::new()),
            Answer::Slow(pause, body) => {
                self.pause(pause);
                (200, String::new(), body.to_string().into_bytes())
            }
            Answer::Break => return Ok(false),
            Answer::Hang | Answer::Stall => {
                if matches!(answer, Answer::Stall) {
                    to.write_all(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"resp",
                    )?;
                    to.flush()?;
                }
                self.pause(IDLE);
                return Ok(false);
            }
        };
        let length = body.len();
        write!(to, "HTTP/1.1 {code} Some\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n")?;
        to.write_all(&body)?;
        to.flush()?;
        Ok(true)
    }

    fn pause(&self, time: Duration) {
        let begun = std::time::Instant::now();
        while begun.elapsed() < time && !self.ended.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(50).min(time));
        }
    }
}

/// Reads the next request of a connection; `None` at its end.
fn read_request(stream: &mut impl std::io::BufRead) -> anyhow::Result<Option<WebhookRequest>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split(' ').nth(1).context("a request line")?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<u64>()?.min(REQUEST_MAX);
        }
    }
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body)?;
    let path = target.split('?').next().unwrap_or_default().to_owned();
    Ok(Some(WebhookRequest { path, review: serde_json::from_slice(&body).unwrap_or_default() }))
}
