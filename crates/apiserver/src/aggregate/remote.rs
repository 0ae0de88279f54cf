//! One aggregated API server: how it is reached, and what it last listed. Upstream: `kube-aggregator/pkg/apiserver/handler_proxy.go`.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use kelson_auth::UserInfo;
use kelson_meta::Status;
use kelson_pki::{AnyServerCertificate, SwappableCertificate};
use kelson_tasks::Tasks;
use kelson_webhook::{Backend, CertificateFaults, ServiceResolver, handshake_fault};
use parking_lot::RwLock;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio_rustls::TlsConnector;

use crate::aggregate::forward::{self, ConnectorError, Outgoing, Unreachable, refusal};
use crate::aggregate::service::{ApiService, ApiServiceSpec, ServiceReference};
use crate::request::answer::Answer;
use crate::request::routes::{RemoteHandler, RemoteRequest};

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
    pub async fn send(&self, request: Outgoing) -> Result<Response<Incoming>, Unreachable> {
        let connector = self.connector.as_ref().map_err(Clone::clone)?;
        let backend = self.resolve().map_err(Unreachable::Service)?;
        let name = format!("{}.{}.svc", self.service.name, self.service.namespace);
        let name = ServerName::try_from(name).map_err(|e| Unreachable::connection(&e))?;
        let connect = async {
            let tcp = backend.dial().await.map_err(|e| Unreachable::connection(&e))?;
            tcp.set_nodelay(true).map_err(|e| Unreachable::connection(&e))?;
            connector.connect(name, tcp).await.map_err(|e| Unreachable::Connection(handshake_fault(&e)))
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| Unreachable::Connection(format!("dial tcp {backend}: i/o timeout")))??;
        forward::exchange(stream, request, &self.means.tasks).await
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
        let request = forward::outgoing((&Method::GET, path), &headers, user, Bytes::new(), &self.authority())?;
        forward::collect(self.send(request).await?, limit).await
    }

    async fn carry(&self, request: RemoteRequest<'_>) -> Result<Answer, Status> {
        if !self.is_available() {
            return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, "service unavailable"));
        }
        let sent = forward::carry(request, &self.authority(), &self.means.tasks, |made| self.send(made)).await?;
        Ok(match sent {
            Ok(answer) => answer,
            Err(Unreachable::Service(why)) => {
                tracing::warn!(service = self.name, %why, "cannot resolve the service of an aggregated API server");
                refusal(StatusCode::SERVICE_UNAVAILABLE, "service unavailable")
            }
            Err(why @ Unreachable::Target(_)) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
            Err(why) => refusal(StatusCode::SERVICE_UNAVAILABLE, &format!("error trying to reach service: {why}")),
        })
    }
}

impl RemoteHandler for Remote {
    fn serve<'a>(&'a self, request: RemoteRequest<'a>) -> BoxFuture<'a, Result<Answer, Status>> {
        Box::pin(self.carry(request))
    }
}

fn connector(spec: &ApiServiceSpec, means: &ConnectionParts) -> Result<TlsConnector, ConnectorError> {
    let verifier = if spec.insecure_skip_tls_verify {
        AnyServerCertificate::verifier()
    } else {
        let bundle = STANDARD.decode(&spec.ca_bundle)?;
        kelson_webhook::verifier(&bundle, CertificateFaults::of_aggregated())
    };
    Ok(forward::connector(verifier, means.certificate.as_ref())?)
}
