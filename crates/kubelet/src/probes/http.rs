//! HTTP probes and hooks. Certificates are not verified, as upstream promises: the pod's address is no name one could
//! be issued for. Redirects are not followed; a 3xx is a success (upstream: `pkg/probe/http`).
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

/// Bytes of an answer that are read.
const BODY_MAX: usize = 10 * 1024;

/// Sends HTTP probes, each over a connection of its own.
pub struct Prober {
    tls: Option<tokio_rustls::TlsConnector>,
}

impl Default for Prober {
    fn default() -> Self {
        Self::new()
    }
}

impl Prober {
    /// Ready to send.
    pub fn new() -> Self {
        let config = AnyServerCertificate::client_config().ok();
        Self { tls: config.map(|config| tokio_rustls::TlsConnector::from(Arc::new(config))) }
    }

    /// One GET, judged by its status.
    pub async fn get(&self, action: &HTTPGetAction, pod_ip: &str, port: u16, limit: Duration) -> Outcome {
        let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip);
        let https = action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
        let path = action.path.as_deref().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let url = format!("{}://{}{path}", if https { "https" } else { "http" }, address(host, port));
        match tokio::time::timeout(limit, self.send(action, host, port, &path, https)).await {
            Err(_) => Outcome::Failure(format!(
                "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            )),
            Ok(Err(e)) => Outcome::Failure(format!("Get {url:?}: {e}")),
            Ok(Ok(status)) if (200..400).contains(&status) => Outcome::Success,
            Ok(Ok(status)) => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        }
    }

    async fn send(&self, a: &HTTPGetAction, host: &str, port: u16, path: &str, https: bool) -> Result<u16, String> {
        let tcp = TcpStream::connect((host, port)).await;
        let tcp = tcp.map_err(|e| format!("dial tcp {}: connect: {}", address(host, port), os_text(&e)))?;
        let request = request(a, host, port, path)?;
        if !https {
            return exchange(tcp, request).await;
        }
        let tls = self.tls.as_ref().ok_or("TLS is not available")?;
        let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        exchange(tls.connect(name, tcp).await.map_err(|e| e.to_string())?, request).await
    }
}

fn request(a: &HTTPGetAction, host: &str, port: u16, path: &str) -> Result<hyper::Request<Empty<Bytes>>, String> {
    let mut builder = hyper::Request::get(path).header("connection", "close");
    let given = |name: &str| a.http_headers.iter().flatten().any(|h| h.name.eq_ignore_ascii_case(name));
    if !given("host") {
        builder = builder.header("host", address(host, port));
    }
    if !given("user-agent") {
        builder = builder.header("user-agent", "kube-probe/1.36");
    }
    if !given("accept") {
        builder = builder.header("accept", "*/*");
    }
    // An explicitly empty value leaves the header out.
    for h in a.http_headers.iter().flatten().filter(|h| !h.value.is_empty()) {
        builder = builder.header(&h.name, &h.value);
    }
    builder.body(Empty::new()).map_err(|e| e.to_string())
}

async fn exchange<T>(io: T, request: hyper::Request<Empty<Bytes>>) -> Result<u16, String>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(|e| e.to_string())?;
    let _driver = kelson_tasks::scoped("probe-connection", connection);
    let answer = sender.send_request(request).await.map_err(|e| e.to_string());
    match answer {
        Ok(a) => {
            let status = a.status().as_u16();
            let mut body = a.into_body();
            let mut read = 0;
            while read < BODY_MAX
                && let Some(Ok(frame)) = body.frame().await
            {
                read += frame.data_ref().map_or(0, Bytes::len);
            }
            Ok(status)
        }
        Err(e) => Err(e),
    }
}
