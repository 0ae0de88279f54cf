//! A client of one server: one request at a time over one connection, with short limits, and watches.
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;

use crate::webhook::provider;

/// The time limit of a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// The time limit of an answer. Longer than a server waits for etcd, so its error is seen rather than this limit.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// The maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The administrator's token.
pub const TOKEN: &str = "t0k3n";

type Stream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// A client of one server as administrator.
pub struct Https {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    stream: Option<Stream>,
}

/// Returns the configuration of clients that trust the CA in this file.
pub fn trust(ca: &std::path::Path) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    // A resumed session verifies no certificate.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

impl Https {
    /// Creates a client; it connects with its first request.
    pub fn new(address: IpAddr, port: u16, tls: Arc<ClientConfig>) -> Self {
        Self { address: SocketAddr::new(address, port), tls, stream: None }
    }

    fn connect(&self) -> anyhow::Result<Stream> {
        let tcp = TcpStream::connect_timeout(&self.address, CONNECT_MAX)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(ANSWER_MAX))?;
        tcp.set_write_timeout(Some(ANSWER_MAX))?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let connection = ClientConnection::new(Arc::clone(&self.tls), name)?;
        Ok(BufReader::new(StreamOwned::new(connection, tcp)))
    }

    /// Sends a request; returns status code and object. After an error it is unknown whether the request took effect.
    pub fn call(&mut self, method: &str, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        send(
            &mut stream,
            "1.1",
            method,
            path,
            &format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len()),
            &body,
        )?;
        let head = Head::read(&mut stream)?;
        let bytes = head.body(&mut stream)?;
        if head.keeps {
            self.stream = Some(stream);
        }
        Ok((head.code, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    /// Opens a watch; its lines come from [`Lines::next`].
    pub fn watch(&self, path: &str, patience: Duration) -> anyhow::Result<Lines> {
        let mut stream = self.connect()?;
        // The answer to a request of HTTP/1.0 is not cut into chunks.
        send(&mut stream, "1.0", "GET", path, "", "")?;
        let head = Head::read(&mut stream)?;
        if head.code != 200 {
            let body = head.body(&mut stream).unwrap_or_default();
            bail!("{} {}", head.code, String::from_utf8_lossy(&body));
        }
        stream.get_ref().sock.set_read_timeout(Some(patience))?;
        Ok(Lines { stream, line: Vec::new() })
    }
}

fn send(stream: &mut Stream, version: &str, method: &str, path: &str, head: &str, body: &str) -> anyhow::Result<()> {
    let text = format!(
        "{method} {path} HTTP/{version}\r\nHost: kubernetes\r\nAuthorization: Bearer {TOKEN}\r\n{head}\r\n{body}"
    );
    let out = stream.get_mut();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The head of an answer.
struct Head {
    code: u16,
    length: Option<usize>,
    chunked: bool,
    keeps: bool,
}

impl Head {
    fn read(stream: &mut Stream) -> anyhow::Result<Self> {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let code = line.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status line")?;
        let mut head = Self { code, length: None, chunked: false, keeps: true };
        loop {
            line.clear();
            ensure!(stream.read_line(&mut line)? > 0, "the head of an answer was cut");
            let lower = line.trim().to_ascii_lowercase();
            match lower.split_once(':') {
                None if lower.is_empty() => return Ok(head),
                Some(("content-length", n)) => head.length = n.trim().parse().ok(),
                Some(("transfer-encoding", how)) => head.chunked = how.contains("chunked"),
                Some(("connection", how)) => head.keeps = !how.contains("close"),
                _ => {}
            }
        }
    }

    fn body(&self, stream: &mut Stream) -> anyhow::Result<Vec<u8>> {
        let mut body = Vec::new();
        if let Some(length) = self.length {
            ensure!(length <= ANSWER_BYTES_MAX, "{length} bytes");
            body.resize(length, 0);
            stream.read_exact(&mut body)?;
        }
        let mut more = self.chunked;
        while more {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).context("the length of a chunk")?;
            ensure!(body.len() + length <= ANSWER_BYTES_MAX, "an answer is too large");
            let from = body.len();
            body.resize(from + length, 0);
            stream.read_exact(&mut body[from..])?;
            // The line break behind the chunk.
            stream.read_line(&mut line)?;
            more = length > 0;
        }
        Ok(body)
    }
}

/// The lines of a watch.
pub struct Lines {
    stream: Stream,
    line: Vec<u8>,
}

impl Lines {
    /// Returns the next event; `None` when none came within the watch's patience.
    ///
    /// # Errors
    /// The watch has ended.
    pub fn next(&mut self) -> anyhow::Result<Option<Value>> {
        use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        match self.stream.read_until(b'\n', &mut self.line) {
            Ok(_) if self.line.ends_with(b"\n") => {
                let event = serde_json::from_slice(&self.line).context("an event")?;
                self.line.clear();
                Ok(Some(event))
            }
            // What was cut is not an event.
            Ok(_) => bail!("the watch has ended"),
            Err(e) if matches!(e.kind(), WouldBlock | TimedOut | Interrupted) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}
