//! An aggregated API server for tests: it serves one group version over TLS, trusts users only from the front proxy's
//! certificate, and publishes discovery and OpenAPI. It runs in the test process.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::issuer::Issued;
use crate::webhook::{identity, provider};

/// The API group.
pub const GROUP: &str = "flavours.example.com";
/// The resource of the group.
pub const PLURAL: &str = "flavours";
/// The path of the group version.
pub const PATH: &str = "/apis/flavours.example.com/v1";
/// The maximum time a connection waits for its next request, and a watch for its next event.
const IDLE: Duration = Duration::from_secs(120);
/// The maximum size of a request in bytes.
const REQUEST_MAX: u64 = 1 << 20;

type Stream = BufReader<StreamOwned<ServerConnection, TcpStream>>;

/// The trusted front proxies, from `extension-apiserver-authentication` in `kube-system`.
pub struct FrontProxy {
    roots: RootCertStore,
    names: Vec<String>,
    user: String,
    group: String,
    extra: String,
}

impl FrontProxy {
    /// Reads the ConfigMap's data.
    pub fn read(data: &Value) -> anyhow::Result<Self> {
        let text = |key: &str| data[key].as_str().with_context(|| format!("no {key}"));
        let list = |key: &str| -> anyhow::Result<Vec<String>> {
            serde_json::from_str(text(key)?).with_context(|| key.to_owned())
        };
        let first = |key: &str| -> anyhow::Result<String> {
            list(key)?.into_iter().next().map(|name| name.to_lowercase()).with_context(|| format!("{key} is empty"))
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(text("requestheader-client-ca-file")?.as_bytes()) {
            roots.add(certificate?)?;
        }
        Ok(Self {
            roots,
            names: list("requestheader-allowed-names")?,
            user: first("requestheader-username-headers")?,
            group: first("requestheader-group-headers")?,
            extra: first("requestheader-extra-headers-prefix")?,
        })
    }

    /// Returns the user of a request, as set by the front proxy.
    fn user(&self, request: &Request) -> Value {
        let extra: BTreeMap<&str, Vec<&str>> = request
            .headers
            .iter()
            .filter_map(|(name, values)| {
                Some((name.strip_prefix(&self.extra)?, values.iter().map(String::as_str).collect()))
            })
            .collect();
        json!({"user": request.headers.get(&self.user), "groups": request.headers.get(&self.group), "extra": extra})
    }
}

/// A running server; dropping it stops accepting connections.
pub struct ExtensionServer {
    /// The port on 127.0.0.1.
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    proxy: FrontProxy,
    tls: Arc<ServerConfig>,
    /// Added objects, which watches send one after the other.
    objects: Mutex<Vec<String>>,
    changed: Condvar,
    broken: AtomicBool,
    ended: AtomicBool,
}

/// Head and body of a request.
struct Request {
    method: String,
    target: String,
    /// Values by lower-case name.
    headers: BTreeMap<String, Vec<String>>,
    body: Vec<u8>,
}

impl ExtensionServer {
    /// Starts a server with this certificate.
    pub fn start(issued: &Issued, proxy: FrontProxy) -> anyhow::Result<Self> {
        let roots = Arc::new(proxy.roots.clone());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
        let (chain, key) = identity(issued)?;
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let tls = Arc::new(builder.with_client_cert_verifier(verifier).with_single_cert(chain, key)?);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            proxy,
            tls,
            objects: Mutex::new(vec!["plain".to_owned()]),
            changed: Condvar::new(),
            broken: AtomicBool::new(false),
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

    /// Adds an object.
    pub fn add(&self, name: &str) {
        self.shared.objects.lock().expect("no test panics while it holds this").push(name.to_owned());
        self.shared.changed.notify_all();
    }

    /// Makes every request fail with 500, or succeed again.
    pub fn break_down(&self, broken: bool) {
        self.shared.broken.store(broken, Ordering::SeqCst);
    }
}

impl Drop for ExtensionServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
        // One more connection ends the accepting thread.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl Shared {
    fn connection(&self, tcp: TcpStream) -> anyhow::Result<()> {
        tcp.set_read_timeout(Some(IDLE))?;
        let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(Arc::clone(&self.tls))?, tcp));
        while let Some(request) = read_request(&mut stream)? {
            let shown = stream.get_ref().conn.peer_certificates().and_then(|chain| chain.first());
            let name = shown.and_then(|certificate| common_name(certificate)).unwrap_or_default();
            let names = &self.proxy.names;
            if !names.is_empty() && !names.contains(&name) {
                answer(
                    &mut stream,
                    401,
                    &json!({"kind": "Status", "code": 401, "message": format!("who is {name}?")}),
                )?;
                continue;
            }
            if self.broken.load(Ordering::SeqCst) {
                answer(&mut stream, 500, &json!({"kind": "Status", "code": 500}))?;
                continue;
            }
            if request.headers.contains_key("upgrade") {
                return echo(&mut stream);
            }
            if request.target.contains("watch=") {
                return self.watch(&mut stream);
            }
            let (code, body) = self.answer(&request);
            answer(&mut stream, code, &body)?;
        }
        Ok(())
    }

    /// Returns the answer to a request that is not a stream.
    fn answer(&self, request: &Request) -> (u16, Value) {
        let path = request.target.split('?').next().unwrap_or_default();
        if let Some(document) = published(path) {
            return (200, document);
        }
        let names = self.objects.lock().expect("no test panics while it holds this").clone();
        match (request.method.as_str(), path.strip_prefix(PATH).unwrap_or_default()) {
            ("GET", "/flavours") => {
                let items: Vec<Value> = names.iter().map(|name| object(name)).collect();
                let kind = "FlavourList";
                (
                    200,
                    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"resourceVersion": "1"}, "items": items}),
                )
            }
            ("GET", "/flavours/whoami") => {
                let mut who = object("whoami");
                who["spec"] = self.proxy.user(request);
                who["spec"]["headers"] = request.headers.keys().cloned().collect();
                (200, who)
            }
            ("POST", "/flavours") => {
                let mut made: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                made["status"] = json!({"tasted": true});
                (201, made)
            }
            ("GET", rest) if names.iter().any(|n| rest.strip_prefix("/flavours/") == Some(n)) => {
                (200, object(rest.trim_start_matches("/flavours/")))
            }
            _ => (
                404,
                json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
                "message": format!("no flavour at {path}")}),
            ),
        }
    }

    /// Sends objects as they are added, until the client disconnects.
    fn watch(&self, to: &mut Stream) -> anyhow::Result<()> {
        write!(
            to.get_mut(),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )?;
        let mut reported = 0;
        while !self.ended.load(Ordering::SeqCst) {
            let known = self.objects.lock().expect("no test panics while it holds this");
            let (known, _) =
                self.changed.wait_timeout_while(known, IDLE, |known| known.len() <= reported).expect("as above");
            let new: Vec<String> = known[reported.min(known.len())..].to_vec();
            drop(known);
            reported += new.len();
            for name in new {
                let line = format!("{}\n", json!({"type": "ADDED", "object": object(&name)}));
                write!(to.get_mut(), "{:x}\r\n{line}\r\n", line.len())?;
            }
            to.get_mut().flush()?;
        }
        Ok(())
    }
}

/// Switches to a protocol that echoes everything.
fn echo(stream: &mut Stream) -> anyhow::Result<()> {
    write!(stream.get_mut(), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")?;
    stream.get_mut().flush()?;
    let mut line = String::new();
    while stream.read_line(&mut line)? > 0 {
        stream.get_mut().write_all(line.as_bytes())?;
        stream.get_mut().flush()?;
        line.clear();
    }
    Ok(())
}

fn object(name: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Flavour", "metadata": {"name": name, "uid": format!("uid-{name}"),
        "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"sweet": true}})
}

/// Returns discovery and OpenAPI documents.
fn published(path: &str) -> Option<Value> {
    let version = json!({"groupVersion": format!("{GROUP}/v1"), "version": "v1"});
    let group = json!({"name": GROUP, "versions": [version], "preferredVersion": version});
    let definition = json!({"type": "object", "description": "Flavour is a taste that an extension server knows.", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {"sweet": {"type": "boolean", "description": "Whether it is sweet."}}}},
        "x-kubernetes-group-version-kind": [{"group": GROUP, "version": "v1", "kind": "Flavour"}]});
    let name = "com.example.flavours.v1.Flavour";
    let get = |schema: Value| {
        json!({"get": {"operationId": "listFlavour", "responses": {"200": schema},
        "x-kubernetes-action": "list", "x-kubernetes-group-version-kind": {"group": GROUP, "version": "v1", "kind": "Flavour"}}})
    };
    Some(match path {
        PATH => {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": [{
            "name": PLURAL, "singularName": "flavour", "namespaced": false, "kind": "Flavour", "shortNames": ["fl"],
            "verbs": ["create", "get", "list", "watch"]}]})
        }
        "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}),
        "/apis/flavours.example.com" => {
            let mut group = group;
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        "/openapi/v2" => json!({"swagger": "2.0", "info": {"title": "flavours", "version": "v1"},
            "paths": {format!("{PATH}/{PLURAL}"): get(json!({"description": "OK", "schema": {"$ref": format!("#/definitions/{name}")}}))},
            "definitions": {name: definition}}),
        "/openapi/v3" => json!({"paths": {"apis/flavours.example.com/v1": {
            "serverRelativeURL": "/openapi/v3/apis/flavours.example.com/v1?hash=1"}}}),
        "/openapi/v3/apis/flavours.example.com/v1" => {
            json!({"openapi": "3.0.0", "info": {"title": "flavours", "version": "v1"},
            "paths": {format!("{PATH}/{PLURAL}"): get(json!({"description": "OK", "content": {"application/json": {
                "schema": {"$ref": format!("#/components/schemas/{name}")}}}}))},
            "components": {"schemas": {name: definition}}})
        }
        _ => return None,
    })
}

fn answer(to: &mut Stream, code: u16, body: &Value) -> anyhow::Result<()> {
    let body = body.to_string();
    let length = body.len();
    write!(
        to.get_mut(),
        "HTTP/1.1 {code} Some\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    Ok(to.get_mut().flush()?)
}

/// Reads the next request of a connection; `None` at its end.
fn read_request(stream: &mut Stream) -> anyhow::Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().context("a method")?, words.next().context("a target")?);
    let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.entry(name.to_ascii_lowercase()).or_default().push(value.trim().to_owned());
    }
    ensure!(!headers.contains_key("transfer-encoding"), "a body of unknown length is not read here");
    let length = headers.get("content-length").and_then(|v| v.first()?.parse::<u64>().ok()).unwrap_or(0);
    let mut body = Vec::new();
    stream.take(length.min(REQUEST_MAX)).read_to_end(&mut body)?;
    Ok(Some(Request { method, target, headers, body }))
}

/// Returns the common name of a certificate's subject: the last one in it, since the issuer's precedes it.
fn common_name(certificate: &[u8]) -> Option<String> {
    const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
    let at = certificate.windows(COMMON_NAME.len()).rposition(|window| window == COMMON_NAME)? + COMMON_NAME.len();
    let length = usize::from(*certificate.get(at + 1)?);
    String::from_utf8(certificate.get(at + 2..at + 2 + length)?.to_vec()).ok()
}
