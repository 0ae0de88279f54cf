//! One aggregated API server: how it is reached, and how requests are forwarded. The authenticated user is sent in headers, which the
//! server trusts because of the front proxy certificate; the client's credentials are not sent. Redirects are neither followed nor
//! passed on. Upstream: `kube-aggregator/pkg/apiserver/handler_proxy.go`.
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_auth::UserInfo;
use kelson_meta::Status;
use kelson_meta::url::encode_header_name;
use kelson_pki::{AnyServerCertificate, SwappableCertificate, provider};
use kelson_tasks::{OnPanic, Tasks};
use kelson_traces::KeyValue;
use kelson_transport::TransportError;
use kelson_webhook::{Backend, CertificateFaults, ServiceResolver, handshake_fault};
use parking_lot::{Mutex, RwLock};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio_rustls::TlsConnector;

use crate::aggregate::service::{ApiService, ApiServiceSpec, ServiceReference};
use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::request::headers::DROPPED;
use crate::request::routes::{RemoteHandler, RemoteRequest};
use crate::request::upgrade::wait_for_upgrade;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The parts that connections to aggregated API servers need.
#[derive(Clone)]
pub struct ConnectionParts {
    /// Resolves services to addresses.
    pub resolver: Arc<dyn ServiceResolver>,
    /// The front proxy's client certificate, by which servers trust the user headers.
    pub certificate: Option<Arc<SwappableCertificate>>,
    /// Parent of the connections' tasks.
    pub tasks: Tasks,
}

/// The aggregated API server of a group version.
pub struct Remote {
    name: String,
    spec: ApiServiceSpec,
    service: ServiceReference,
    connector: Result<TlsConnector, ConnectorError>,
    means: ConnectionParts,
    available: AtomicBool,
    /// The last `APIResourceList` that it returned.
    resources: RwLock<Option<Value>>,
}

/// Why the spec of an APIService allows no TLS connections to its server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectorError {
    /// The CA bundle is not base64.
    #[error("caBundle: {0}")]
    CaBundle(#[from] base64::DecodeError),
    /// TLS cannot be configured.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Reason why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// Its service cannot be resolved.
    #[error("{0}")]
    Service(String),
    /// TLS connections to it are not possible.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
    /// The request has no valid target.
    #[error(transparent)]
    Target(#[from] http::uri::InvalidUri),
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
}

impl Remote {
    /// The server of an APIService.
    pub fn new(service: &ApiService, means: &ConnectionParts) -> Self {
        Self {
            name: service.metadata.name.clone(),
            service: service.spec.service.clone().unwrap_or_default(),
            connector: connector(&service.spec, means),
            spec: service.spec.clone(),
            means: means.clone(),
            available: AtomicBool::new(service.is_available()),
            resources: RwLock::default(),
        }
    }
    /// Name of its APIService.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The spec of its APIService.
    pub fn spec(&self) -> &ApiServiceSpec {
        &self.spec
    }
    /// The service of the server.
    pub fn service(&self) -> &ServiceReference {
        &self.service
    }
    /// Whether requests are forwarded.
    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }
    /// Sets whether requests are forwarded. Returns whether that changed.
    pub fn set_available(&self, available: bool) -> bool {
        self.available.swap(available, Ordering::AcqRel) != available
    }
    /// The last list of its resources.
    pub fn resources(&self) -> Option<Value> {
        self.resources.read().clone()
    }
    /// Sets the list of its resources. Returns whether it changed.
    pub fn set_resources(&self, list: Value) -> bool {
        let mut have = self.resources.write();
        let new = have.as_ref() != Some(&list);
        *have = Some(list);
        new
    }
    /// The current address.
    ///
    /// # Errors
    /// The service cannot be resolved.
    pub fn resolve(&self) -> Result<Backend, String> {
        self.means.resolver.resolve(&self.service.namespace, &self.service.name, self.service.port())
    }

    /// Sends a request. The body of the response is not read yet.
    ///
    /// # Errors
    /// See [`Unreachable`].
    pub async fn send(&self, request: http::Request<Full<Bytes>>) -> Result<Response<Incoming>, Unreachable> {
        let connector = self.connector.as_ref().map_err(Clone::clone)?;
        let backend = self.resolve().map_err(Unreachable::Service)?;
        let failed = |e: &dyn std::fmt::Display| Unreachable::Connection(e.to_string());
        let name = format!("{}.{}.svc", self.service.name, self.service.namespace);
        let name = ServerName::try_from(name).map_err(|e| Unreachable::Connection(e.to_string()))?;
        let connect = async {
            let tcp = backend.dial().await.map_err(|e| failed(&e))?;
            tcp.set_nodelay(true).map_err(|e| failed(&e))?;
            connector.connect(name, tcp).await.map_err(|e| Unreachable::Connection(handshake_fault(&e)))
        };
        let io = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| failed(&format!("dial tcp {backend}: i/o timeout")))??;
        let broken = |e: hyper::Error| Unreachable::Connection(e.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(broken)?;
        self.means.tasks.spawn_graceful("api-aggregated", OnPanic::Contain, async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to an aggregated API server failed");
            }
        });
        sender.send_request(request).await.map_err(broken)
    }

    /// A request with the headers of a user.
    fn request(
        &self,
        method: &Method,
        target: &str,
        headers: &HeaderMap,
        user: &UserInfo,
        body: Bytes,
    ) -> Result<http::Request<Full<Bytes>>, Unreachable> {
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = target.parse().map_err(Unreachable::Target)?;
        let kept = headers.iter().filter(|(name, _)| {
            let name = name.as_str();
            // The body's length may differ after decoding. The user's headers come only from this server.
            !DROPPED.contains(&name) && name != "content-length" && !name.starts_with("x-remote-")
        });
        let out = request.headers_mut();
        for (name, value) in kept {
            out.append(name.clone(), value.clone());
        }
        identify(user, out);
        if let Ok(host) = HeaderValue::from_str(&self.authority()) {
            out.insert(header::HOST, host);
        }
        Ok(request)
    }

    /// Host name and port, as in its certificate and URLs.
    fn authority(&self) -> String {
        format!("{}.{}.svc:{}", self.service.name, self.service.namespace, self.service.port())
    }

    /// Fetches a document with the server's own identity.
    ///
    /// # Errors
    /// See [`Unreachable`].
    pub async fn fetch(&self, path: &str, user: &UserInfo, limit: usize) -> Result<(StatusCode, Bytes), Unreachable> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let request = self.request(&Method::GET, path, &headers, user, Bytes::new())?;
        let response = self.send(request).await?;
        let code = response.status();
        let body = http_body_util::Limited::new(response.into_body(), limit).collect().await;
        Ok((code, body.map_err(|e| Unreachable::Connection(e.to_string()))?.to_bytes()))
    }

    async fn carry(&self, request: RemoteRequest<'_>) -> Result<Answer, Status> {
        if !self.is_available() {
            return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "service unavailable"));
        }
        let wants_upgrade = kelson_streams::is_upgrade_request(request.headers);
        let body = request.body.read().await?;
        let target = request.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let made = self.request(request.method, target, request.headers, request.user, body);
        let mut made = match made {
            Ok(made) => made,
            Err(why) => return Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string())),
        };
        if wants_upgrade {
            made.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        } else {
            made.headers_mut().remove(header::UPGRADE);
        }
        let span = kelson_traces::client(&format!("HTTP {}", request.method), || {
            let method = KeyValue::text("http.request.method", request.method.as_str());
            vec![method, KeyValue::text("url.full", format!("https://{}{target}", self.authority()))]
        });
        span.pass_on(made.headers_mut());
        let sent = self.send(made).await;
        match &sent {
            Ok(response) => {
                span.set(|| vec![KeyValue::number("http.response.status_code", response.status().as_u16())]);
            }
            Err(why) => span.fail(&why.to_string()),
        }
        drop(span);
        let response = match sent {
            Ok(response) => response,
            Err(Unreachable::Service(why)) => {
                tracing::warn!(service = self.name, %why, "cannot resolve the service of an aggregated API server");
                return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "service unavailable"));
            }
            Err(why) => {
                let text = format!("error trying to reach service: {why}");
                return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, &text));
            }
        };
        self.pass_on(response, request.headers, request.upgrade, request.reservation, wants_upgrade)
    }

    /// The server's response for the client.
    fn pass_on(
        &self,
        mut response: Response<Incoming>,
        asked: &HeaderMap,
        client: &Mutex<Option<hyper::upgrade::OnUpgrade>>,
        reservation: Arc<dyn Any + Send + Sync>,
        wants_upgrade: bool,
    ) -> Result<Answer, Status> {
        let code = response.status();
        if code.is_redirection() && code != StatusCode::NOT_MODIFIED {
            let why = "the backend attempted to redirect this request, which is not permitted";
            return Err(Status::failure(502, kelson_meta::Reason::Unknown, why));
        }
        if code == StatusCode::SWITCHING_PROTOCOLS {
            let same = response.headers().get(header::UPGRADE) == asked.get(header::UPGRADE);
            let Some(client) = client.lock().take().filter(|_| wants_upgrade && same) else {
                let text = "the backend switched to a protocol that was not requested";
                return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, text));
            };
            let backend = hyper::upgrade::on(&mut response);
            self.means.tasks.spawn("api-aggregated-stream", OnPanic::Contain, async move {
                let (Some(client), Some(backend)) = (wait_for_upgrade(client).await, wait_for_upgrade(backend).await)
                else {
                    return;
                };
                if let Err(error) = kelson_streams::splice(client, backend).await {
                    tracing::debug!(%error, "stream of an aggregated API server failed");
                }
                drop(reservation);
            });
            return Ok(response.map(|_| ApiBody::empty()));
        }
        let (mut parts, body) = response.into_parts();
        for name in ["connection", "keep-alive", "transfer-encoding", "trailer"] {
            parts.headers.remove(HeaderName::from_static(name));
        }
        let chunks = stream::unfold(body, |mut body| async move {
            loop {
                match body.frame().await? {
                    Ok(frame) => {
                        let Ok(data) = frame.into_data() else { continue };
                        return Some((Ok(data), body));
                    }
                    Err(error) => return Some((Err(TransportError::new(error)), body)),
                }
            }
        });
        Ok(Response::from_parts(parts, ApiBody::stream(chunks).hold(reservation)))
    }
}

impl RemoteHandler for Remote {
    fn serve<'a>(&'a self, request: RemoteRequest<'a>) -> BoxFuture<'a, Result<Answer, Status>> {
        Box::pin(self.carry(request))
    }
}

/// An error in plain text, as upstream's aggregator returns.
fn refusal(code: StatusCode, text: &str) -> Answer {
    answer(code, "text/plain; charset=utf-8", ApiBody::full(format!("{text}\n")))
}

fn connector(spec: &ApiServiceSpec, means: &ConnectionParts) -> Result<TlsConnector, ConnectorError> {
    let verifier = if spec.insecure_skip_tls_verify {
        AnyServerCertificate::verifier()
    } else {
        let bundle = STANDARD.decode(&spec.ca_bundle)?;
        kelson_webhook::verifier(&bundle, CertificateFaults::of_aggregated())
    };
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &means.certificate {
        Some(certificate) => builder.with_client_cert_resolver(Arc::clone(certificate) as _),
        None => builder.with_no_client_auth(),
    };
    // Upgrades require HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Adds the headers with the user for a server that trusts the front proxy.
fn identify(user: &UserInfo, headers: &mut HeaderMap) {
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid);
    }
    user.groups.iter().for_each(|group| add("x-remote-group", group));
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", encode_header_name(key));
        values.iter().for_each(|value| add(&name, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_sent_in_headers() {
        let mut user = UserInfo::new("jane", ["a", "b"]);
        user.uid = "7".into();
        user.extra.insert("example.com/Scope".into(), vec!["x".into(), "y".into()]);
        let mut headers = HeaderMap::new();
        identify(&user, &mut headers);
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(all("x-remote-user"), ["jane"]);
        assert_eq!(all("x-remote-uid"), ["7"]);
        assert_eq!(all("x-remote-group"), ["a", "b"]);
        assert_eq!(all("x-remote-extra-example.com%2fscope"), ["x", "y"]);
    }
}
