//! HTTP probes and hooks. Certificates are not verified, as upstream documents, because no certificate can be issued for the pod's address
//! (upstream: `pkg/probe/http`).
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use kelson_pki::AnyServerCertificate;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;

use super::target::Outcome;
use super::words::{address, os_text};

/// Maximum number of redirects.
const REDIRECTS_MAX: usize = 10;
/// User agent of probes, before the version.
const PROBE_AGENT: &str = "kube-probe";
/// User agent of lifecycle hooks, before the version.
const HOOK_AGENT: &str = "kube-lifecycle";
/// Maximum number of bytes of a response that are read.
const BODY_MAX: usize = 10 * 1024;

/// Sends HTTP probes, each over a new connection.
pub struct Prober {
    tls: Option<tokio_rustls::TlsConnector>,
}

impl Default for Prober {
    fn default() -> Self {
        Self::new()
    }
}

impl Prober {
    /// Creates a prober with its TLS configuration.
    pub fn new() -> Self {
        let config = AnyServerCertificate::client_config().ok();
        Self { tls: config.map(|config| tokio_rustls::TlsConnector::from(Arc::new(config))) }
    }

    /// Sends the GET request of a probe; the status code decides. Redirects to the same host are followed. A redirect to another host is a
    /// success with a warning, because the server responded.
    pub async fn get(&self, action: &HTTPGetAction, pod_ip: &str, port: u16, limit: Duration) -> Outcome {
        let asked = At::new(action, pod_ip, port);
        match tokio::time::timeout(limit, self.follow(action, asked.clone())).await {
            Err(_) => timed_out(&asked),
            Ok(Err((at, e))) => Outcome::Failure(format!("Get {:?}: {e}", at.url())),
            Ok(Ok(answer)) => match answer.status {
                200..300 => Outcome::Success,
                // A redirect that is not followed is a success with a warning in an event.
                300..400 => Outcome::Warning(format!("Probe terminated redirects, Response body: {}", answer.body)),
                status => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
            },
        }
    }

    /// Sends the GET request of a lifecycle hook; any response is a success (upstream: `pkg/kubelet/lifecycle/handlers.go`).
    pub async fn call(&self, action: &HTTPGetAction, pod_ip: &str, port: u16, limit: Duration) -> Outcome {
        let at = At::new(action, pod_ip, port);
        let plain = At { https: false, ..at.clone() };
        let calls = async {
            match self.send(action, &at, HOOK_AGENT).await {
                Ok(_) => Outcome::Success,
                Err(Fault::NoTls) if self.send(action, &plain, HOOK_AGENT).await.is_ok() => {
                    let host = address(&at.host, at.port);
                    Outcome::FellBack(format!(
                        "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                    ))
                }
                Err(e) => Outcome::Failure(format!("Get {:?}: {e}", at.url())),
            }
        };
        tokio::time::timeout(limit, calls).await.unwrap_or_else(|_| timed_out(&at))
    }

    async fn follow(&self, action: &HTTPGetAction, mut at: At) -> Result<HttpAnswer, (At, String)> {
        let asked = at.host.clone();
        for _ in 0..REDIRECTS_MAX {
            let answer = self.send(action, &at, PROBE_AGENT).await.map_err(|e| (at.clone(), e.to_string()))?;
            let leads = matches!(answer.status, 301 | 302 | 303 | 307 | 308);
            let next = answer.location.as_deref().filter(|l| leads && !l.is_empty());
            let Some(location) = next else { return Ok(answer) };
            let next = at
                .join(location)
                .ok_or_else(|| (at.clone(), format!("failed to parse Location header {location:?}")))?;
            if next.host != asked {
                return Ok(answer);
            }
            at = next;
        }
        Err((at, format!("stopped after {REDIRECTS_MAX} redirects")))
    }

    async fn send(&self, a: &HTTPGetAction, at: &At, agent: &str) -> Result<HttpAnswer, Fault> {
        let tcp = TcpStream::connect((at.host.as_str(), at.port)).await;
        let tcp = tcp
            .map_err(|e| Fault::Other(format!("dial tcp {}: connect: {}", address(&at.host, at.port), os_text(&e))))?;
        let request = request(a, at, agent)?;
        if !at.https {
            return Ok(exchange(tcp, request).await?);
        }
        let tls = self.tls.as_ref().ok_or_else(|| Fault::Other("TLS is not available".into()))?;
        let name = ServerName::try_from(at.host.clone()).map_err(|e| Fault::Other(e.to_string()))?;
        let tls = tls.connect(name, tcp).await.map_err(|e| Fault::of_handshake(&e))?;
        Ok(exchange(tls, request).await?)
    }
}

fn timed_out(at: &At) -> Outcome {
    let url = at.url();
    Outcome::Failure(format!("Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"))
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
enum Fault {
    /// The server responded to the TLS handshake with something else.
    #[error("http: server gave HTTP response to HTTPS client")]
    NoTls,
    #[error("{0}")]
    Other(String),
}

impl From<String> for Fault {
    fn from(text: String) -> Self {
        Self::Other(text)
    }
}

impl Fault {
    fn of_handshake(e: &std::io::Error) -> Self {
        let tls = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => Self::NoTls,
            _ => Self::Other(e.to_string()),
        }
    }
}

/// The parts of a response that are used.
struct HttpAnswer {
    status: u16,
    location: Option<String>,
    /// The first bytes of the body, at most [`BODY_MAX`].
    body: String,
}

/// Target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub https: bool,
    pub host: String,
    pub port: u16,
    /// Path and query, with a leading slash.
    pub path: String,
}

impl At {
    /// Parses an absolute URL; `None` if it is not an HTTP URL.
    pub fn of(url: &str) -> Option<Self> {
        let nowhere = Self { https: false, host: String::new(), port: 0, path: "/".to_owned() };
        nowhere.join(url).filter(|at| !at.host.is_empty())
    }

    fn new(action: &HTTPGetAction, pod_ip: &str, port: u16) -> Self {
        let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip);
        let path = action.path.as_deref().unwrap_or_default();
        Self {
            https: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host: host.to_owned(),
            port,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        }
    }

    fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", address(&self.host, self.port), self.path)
    }

    /// Resolves a `Location` header; `None` if the result is not an HTTP URL.
    pub fn join(&self, location: &str) -> Option<Self> {
        let location = location.split('#').next().unwrap_or_default();
        let (path, _) = self.path.split_once('?').unwrap_or((&self.path, ""));
        if let Some(rest) = location.strip_prefix("//") {
            return self.absolute(self.https, rest);
        }
        if let Some((scheme, rest)) = location.split_once("://") {
            return match scheme.to_ascii_lowercase().as_str() {
                "http" => self.absolute(false, rest),
                "https" => self.absolute(true, rest),
                _ => None,
            };
        }
        let path = if location.starts_with('/') {
            location.to_owned()
        } else if location.is_empty() || location.starts_with('?') {
            format!("{path}{location}")
        } else {
            let (dir, _) = path.rsplit_once('/').unwrap_or(("", ""));
            format!("{dir}/{location}")
        };
        Some(Self { path: without_dots(&path), ..self.clone() })
    }

    fn absolute(&self, https: bool, rest: &str) -> Option<Self> {
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) if rest[at..].starts_with('/') => (&rest[..at], rest[at..].to_owned()),
            Some(at) => (&rest[..at], format!("/{}", &rest[at..])),
            None => (rest, "/".to_owned()),
        };
        let authority: http::uri::Authority = authority.parse().ok()?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let usual = if https { 443 } else { 80 };
        Some(Self { https, host, port: authority.port_u16().unwrap_or(usual), path: without_dots(&path) })
    }
}

/// Removes `.` and `..` segments from a path; the query stays.
fn without_dots(path: &str) -> String {
    let (path, query) = path.find('?').map_or((path, ""), |at| path.split_at(at));
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        parts.push("");
    }
    format!("/{}{query}", parts.join("/"))
}

fn request(a: &HTTPGetAction, at: &At, agent: &str) -> Result<hyper::Request<Empty<Bytes>>, String> {
    let mut builder = hyper::Request::get(&at.path).header("connection", "close");
    let given = |name: &str| a.http_headers.iter().flatten().any(|h| h.name.eq_ignore_ascii_case(name));
    if !given("host") {
        builder = builder.header("host", address(&at.host, at.port));
    }
    if !given("user-agent") {
        builder = builder.header("user-agent", format!("{agent}/{}", kelson_meta::version::SHORT));
    }
    if !given("accept") {
        builder = builder.header("accept", "*/*");
    }
    // A header with an explicitly empty value is omitted.
    for h in a.http_headers.iter().flatten().filter(|h| !h.value.is_empty()) {
        builder = builder.header(&h.name, &h.value);
    }
    builder.body(Empty::new()).map_err(|e| e.to_string())
}

async fn exchange<T>(io: T, request: hyper::Request<Empty<Bytes>>) -> Result<HttpAnswer, String>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    // Header names are written in title case like in Go, because some servers compare them case-sensitively.
    let made = hyper::client::conn::http1::Builder::new().title_case_headers(true).handshake(TokioIo::new(io)).await;
    let (mut sender, connection) = made.map_err(|e| e.to_string())?;
    let _driver = kelson_tasks::scoped("probe-connection", connection);
    let answer = sender.send_request(request).await.map_err(|e| e.to_string());
    match answer {
        Ok(a) => {
            let location = a.headers().get(http::header::LOCATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
            let status = a.status().as_u16();
            let (mut body, mut read) = (a.into_body(), Vec::new());
            while read.len() < BODY_MAX
                && let Some(Ok(frame)) = body.frame().await
            {
                read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            }
            read.truncate(BODY_MAX);
            Ok(HttpAnswer { status, location, body: String::from_utf8_lossy(&read).into_owned() })
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A server with scripted responses by path, which records path and user agent of requests. Like Go's server, it responds to bytes that
    /// are not HTTP with a bad request.
    async fn server(
        answers: &'static [(&'static str, u16, &'static str)],
    ) -> (u16, Arc<parking_lot::Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut io, _)) = listener.accept().await {
                let mut bytes = [0; 4096];
                let n = io.read(&mut bytes).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                let path = text.strip_prefix("GET ").and_then(|t| t.split(' ').next()).unwrap_or_default().to_owned();
                let agent = text.lines().find_map(|l| l.strip_prefix("User-Agent: ")).unwrap_or_default().to_owned();
                let found = answers.iter().find(|(p, ..)| *p == path);
                let (_, status, location) = found.unwrap_or(&("", 400, ""));
                seen.lock().push(format!("{path} {agent}"));
                let location = location.replace("PORT", &port.to_string());
                let head = format!("HTTP/1.1 {status} x\r\nlocation: {location}\r\n");
                let answer = match status {
                    // A status without a body.
                    304 => format!("{head}\r\n"),
                    _ => format!("{head}content-length: 4\r\n\r\nbody"),
                };
                let _ = io.write_all(answer.as_bytes()).await;
            }
        });
        (port, asked)
    }

    fn action(value: serde_json::Value) -> HTTPGetAction {
        serde_json::from_value(value).expect("an action")
    }

    #[tokio::test]
    async fn redirects_are_followed_on_the_host_that_was_asked() {
        let (port, asked) = server(&[
            ("/a", 302, "/dir/b?x=1"),
            ("/dir/b?x=1", 301, "../c"),
            ("/c", 307, "http://127.0.0.1:PORT/bad"),
            ("/bad", 503, ""),
            ("/away", 302, "http://192.0.2.1/x"),
            ("/round", 302, "/round"),
            ("/none", 302, ""),
            ("/same", 304, ""),
            ("/fine", 200, ""),
        ])
        .await;
        let prober = Prober::new();
        let get =
            async |path: &str| prober.get(&action(json!({"path": path, "port": 1})), "127.0.0.1", port, LIMIT).await;
        let failed = Outcome::Failure("HTTP probe failed with statuscode: 503".into());
        assert_eq!(get("/a").await, failed, "what is at the end of the way counts");
        let paths: Vec<String> =
            asked.lock().iter().map(|a| a.split(' ').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(paths, ["/a", "/dir/b?x=1", "/c", "/bad"]);
        for (path, body) in [("/away", "body"), ("/none", "body"), ("/same", "")] {
            let text = format!("Probe terminated redirects, Response body: {body}");
            assert_eq!(get(path).await, Outcome::Warning(text), "{path}");
        }
        assert_eq!(get("/fine").await, Outcome::Success);
        let Outcome::Failure(why) = get("/round").await else { panic!("it goes round for ever") };
        assert!(why.ends_with("stopped after 10 redirects"), "{why}");
        assert!(matches!(get("/missing").await, Outcome::Failure(_)));
    }

    #[tokio::test]
    async fn any_response_to_a_hook_is_a_success_and_https_falls_back_to_http() {
        let (port, asked) = server(&[("/stop", 500, ""), ("/moved", 302, "/stop")]).await;
        let prober = Prober::new();
        let call = async |path: &str, scheme: &str| {
            let action = action(json!({"path": path, "port": 1, "scheme": scheme}));
            prober.call(&action, "127.0.0.1", port, LIMIT).await
        };
        assert_eq!(call("/stop", "HTTP").await, Outcome::Success);
        assert_eq!(asked.lock().clone(), [format!("/stop kube-lifecycle/{}", kelson_meta::version::SHORT)]);
        let text =
            format!("request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded");
        assert_eq!(call("/stop", "HTTPS").await, Outcome::FellBack(text));
        let refused = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let unused = refused.local_addr().expect("an address").port();
        drop(refused);
        let action = action(json!({"path": "/", "port": 1}));
        assert!(matches!(prober.call(&action, "127.0.0.1", unused, LIMIT).await, Outcome::Failure(_)));
    }

    #[test]
    fn location_headers_are_resolved() {
        let at = At { https: true, host: "h".into(), port: 8443, path: "/a/b?q".into() };
        for (location, wanted) in [
            ("/x", Some("https://h:8443/x")),
            ("x", Some("https://h:8443/a/x")),
            ("../x", Some("https://h:8443/x")),
            ("?y=1", Some("https://h:8443/a/b?y=1")),
            ("//other/x", Some("https://other:443/x")),
            ("http://h", Some("http://h:80/")),
            ("HTTP://h:81?z#f", Some("http://h:81/?z")),
            ("https://[::1]:9/../..", Some("https://[::1]:9/")),
            ("ftp://h/x", None),
            ("http://", None),
        ] {
            assert_eq!(at.join(location).map(|a| a.url()).as_deref(), wanted, "{location}");
        }
    }
}
