//! Static pods from a URL, as one pod or a list (`staticPodURL`; upstream: `pkg/kubelet/config/http.go`).
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kelson_tasks::FILES;
use rustls_pki_types::ServerName;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::inbox::{ManagerInbox, ManifestSource};
use super::manifests::{self, MANIFESTS_MAX, Origin};
use crate::config::PublishedPods;
use crate::probes::http::At;
use crate::probes::words::address;

/// Timeout of one request, redirects included.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Maximum size of the document in bytes.
const BYTES_MAX: usize = 10 << 20;
/// Maximum number of redirects.
const REDIRECTS_MAX: usize = 10;
/// Number of consecutive failures that are logged as warnings.
const REPORTED_MAX: u32 = 4;
/// Headers that are not sent to another host after a redirect.
const PRIVATE: [&str; 4] = ["authorization", "www-authenticate", "cookie", "cookie2"];

/// The source and its last response.
struct Published {
    from: PublishedPods,
    node: String,
    tls: TlsConnector,
    /// Digest of the newest document.
    digest: Option<[u8; 32]>,
}

/// A response: the document, or the target of a redirect.
enum FetchResult {
    Body(Bytes),
    Elsewhere(String),
}

/// Polls the URL and sends the pods to the manager when they change. On errors the pods of the last valid document stay.
pub async fn run(from: PublishedPods, node: String, to: ManagerInbox) {
    let every = from.every;
    let tls = loop {
        match tls().await {
            Ok(tls) => break tls,
            Err(error) => tracing::warn!(error, "cannot set up TLS to fetch static pods; retrying"),
        }
        tokio::time::sleep(every).await;
    };
    let mut published = Published { from, node, tls, digest: None };
    let mut failures = 0u32;
    loop {
        match published.look(&to).await {
            Ok(()) if failures > 0 => {
                tracing::info!(url = published.from.url, "fetching static pods from the URL succeeded again");
                failures = 0;
            }
            Ok(()) => {}
            Err(error) => {
                failures = failures.saturating_add(1);
                // Later failures are logged at debug level only.
                if failures <= REPORTED_MAX {
                    tracing::warn!(
                        url = published.from.url,
                        error,
                        "fetching static pods from the URL failed; retrying"
                    );
                } else {
                    tracing::debug!(
                        url = published.from.url,
                        error,
                        "fetching static pods from the URL failed; retrying"
                    );
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

async fn tls() -> Result<TlsConnector, String> {
    let roots = FILES.run(kelson_pki::system_roots).await.map_err(|e| e.to_string())?;
    let chains = kelson_pki::ServerChains::of(kelson_pki::Pool::of_readable(roots));
    let config = rustls::ClientConfig::builder_with_provider(kelson_pki::provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(chains.verifier())
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Published {
    /// Requests the document once and sends changed pods to the manager.
    async fn look(&mut self, to: &ManagerInbox) -> Result<(), String> {
        let url = &self.from.url;
        let fetched = tokio::time::timeout(LOOK_MAX, self.fetch()).await;
        let body =
            fetched.unwrap_or_else(|_| Err("context deadline exceeded".into())).map_err(|e| format!("{url}: {e}"))?;
        if body.is_empty() {
            to.statics(ManifestSource::Url, Vec::new());
            self.digest = None;
            return Err(format!("zero-length data received from {url}"));
        }
        let digest = Some(<[u8; 32]>::from(Sha256::digest(&body)));
        if digest == self.digest {
            return Ok(());
        }
        self.digest = digest;
        let pods = pods(&body, url, &self.node).map_err(|e| format!("{url}: {e}"))?;
        to.statics(ManifestSource::Url, pods.into_iter().map(Arc::new).collect());
        Ok(())
    }

    async fn fetch(&self) -> Result<Bytes, String> {
        let mut at = At::of(&self.from.url).ok_or("not an HTTP or HTTPS URL")?;
        let first = at.clone();
        for _ in 0..=REDIRECTS_MAX {
            match self.ask(&at, at.host == first.host).await? {
                FetchResult::Body(body) => return Ok(body),
                FetchResult::Elsewhere(location) => {
                    at = at.join(&location).ok_or_else(|| format!("failed to parse Location header {location:?}"))?;
                }
            }
        }
        Err(format!("stopped after {REDIRECTS_MAX} redirects"))
    }

    async fn ask(&self, at: &At, is_first_host: bool) -> Result<FetchResult, String> {
        let mut request = Request::get(&at.path).header(header::CONNECTION, "close");
        let headers = self.from.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        let headers: Vec<_> = headers.filter(|(name, _)| is_first_host || !PRIVATE.contains(&name.as_str())).collect();
        let given = |name: &str| headers.iter().any(|(n, _)| n == name);
        if !given("host") {
            request = request.header(header::HOST, address(&at.host, at.port));
        }
        if !given("user-agent") {
            request = request.header(header::USER_AGENT, format!("kubelet/{}", kelson_meta::version::SHORT));
        }
        for (name, value) in &headers {
            request = request.header(name.as_str(), value.as_str());
        }
        let request = request.body(Empty::new()).map_err(|e| e.to_string())?;
        let tcp = TcpStream::connect((at.host.as_str(), at.port)).await;
        let tcp = tcp.map_err(|e| format!("dial tcp {}: {e}", address(&at.host, at.port)))?;
        if !at.https {
            return exchange(tcp, request).await;
        }
        let name = ServerName::try_from(at.host.clone()).map_err(|e| e.to_string())?;
        exchange(self.tls.connect(name, tcp).await.map_err(|e| e.to_string())?, request).await
    }
}

async fn exchange<T>(io: T, request: Request<Empty<Bytes>>) -> Result<FetchResult, String>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let made = hyper::client::conn::http1::handshake(TokioIo::new(io)).await;
    let (mut sender, connection) = made.map_err(|e| e.to_string())?;
    let _driver = kelson_tasks::scoped("published-pods", connection);
    let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let location = answer.headers().get(header::LOCATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
    match (answer.status(), location) {
        (status, Some(location)) if matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) => {
            Ok(FetchResult::Elsewhere(location))
        }
        (StatusCode::OK, _) => {
            let body = Limited::new(answer.into_body(), BYTES_MAX).collect().await;
            Ok(FetchResult::Body(body.map_err(|e| e.to_string())?.to_bytes()))
        }
        (status, _) => Err(status.to_string()),
    }
}

/// Parses the pods of a document. If one pod is invalid, all are rejected.
fn pods(document: &[u8], url: &str, node: &str) -> Result<Vec<Pod>, String> {
    let (value, _) = kelson_codec::yaml::to_value(document).map_err(|e| e.to_string())?;
    let items = match (value["apiVersion"].as_str(), value["kind"].as_str()) {
        (Some("v1"), Some("Pod")) => vec![value],
        (Some("v1"), Some("PodList")) => value["items"].as_array().cloned().unwrap_or_default(),
        _ => {
            return Err(format!("expected a v1 Pod or PodList, got {} {}", value["apiVersion"], value["kind"]));
        }
    };
    if items.len() > MANIFESTS_MAX {
        return Err(format!("more than {MANIFESTS_MAX} pods"));
    }
    let whole = |mut item: serde_json::Value| {
        if let Some(fields) = item.as_object_mut() {
            // Items of a list may omit `apiVersion` and `kind`.
            fields.entry("apiVersion").or_insert("v1".into());
            fields.entry("kind").or_insert("Pod".into());
        }
        manifests::of(item, Origin::Url(url), node)
    };
    items.into_iter().map(whole).collect()
}

#[cfg(test)]
mod tests;
