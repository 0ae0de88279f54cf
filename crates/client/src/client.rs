//! The API's verbs over a [`Transport`]. Typed by what the caller wants to read back; bodies go out as given, so that a
//! slim reader can never drop fields it does not know: prefer `patch` and `apply` to `update`.
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, header};
use http_body_util::BodyExt as _;
use kelson_meta::{Status, StatusCause, StatusDetails, version};
use kelson_transport::{TakesObjects, WatchItems};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::UNEXPECTED_RESPONSE;
use crate::params::{DeleteOptions, List, ListParams, PatchKind, Query, WriteOptions};
use crate::traced::TracedTransport;
use crate::watch::RawWatch;
use crate::{
    ClientError, Metered, Object, RateLimit, Request, ResourceType, Response, Transport, TransportError, WatchStream,
};

/// The maximum response that is read into memory for a request other than a watch. A full list of a large cluster fits.
const ANSWER_MAX_BYTES: usize = 1 << 30;

/// Media type of objects and watches that carry metadata alone (`meta.k8s.io/v1` `PartialObjectMetadata`).
pub const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// The media type of lists that carry metadata only.
pub const METADATA_ONLY_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Returns the user agent of a component, with the release of Kubernetes and the platform, as client-go does.
fn user_agent(component: &str) -> String {
    let name = match component {
        "controller-manager" | "scheduler" | "proxy" => format!("kube-{component}"),
        "kubelet" | "kube-controller-manager" | "kube-scheduler" | "kube-proxy" => component.to_owned(),
        other => format!("kelson-{other}"),
    };
    format!("{name}/{} ({})", version::GIT_VERSION, version::platform())
}

/// A client of the API server with one identity. Cloning is cheap and shares the connections.
///
/// The verbs are typed by what the caller reads back, and request bodies are sent as given. Use [`patch`](Self::patch)
/// instead of [`update`](Self::update) with types that have only some of an object's fields, since an update would drop
/// the others. Errors are [`ClientError`], which has the server's `Status` if there is one.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    user_agent: http::HeaderValue,
    /// The impersonated user.
    acting_as: Option<http::HeaderValue>,
}

impl Client {
    /// Returns a client over `transport` with the user agent of upstream's component, or `kelson-COMPONENT` for one
    /// that upstream does not have. The part before the slash is the field manager of the client's writes.
    pub fn new(transport: Arc<dyn Transport>, component: &str) -> Self {
        let user_agent = user_agent(component).parse();
        let user_agent = user_agent.unwrap_or_else(|_| http::HeaderValue::from_static("kelson"));
        Self { transport, user_agent, acting_as: None }
    }

    /// Returns the client with metrics of its requests.
    pub fn counted(self, metered: &Metered) -> Self {
        Self { transport: metered.over(self.transport), ..self }
    }

    /// Returns the client with trace propagation: its requests become part of the current trace.
    pub fn traced(self) -> Self {
        Self { transport: Arc::new(TracedTransport(self.transport)), ..self }
    }

    /// Returns the client with a rate limit.
    pub fn limited(self, limit: &Arc<RateLimit>) -> Self {
        Self { transport: limit.over(self.transport), ..self }
    }

    /// Returns a client that impersonates another user.
    ///
    /// # Errors
    /// The name is not valid in a header.
    pub fn acting_as(&self, user: &str) -> Result<Self, ClientError> {
        let acting_as = user.parse().map_err(|_| ClientError::Request(format!("user {user:?}")))?;
        Ok(Self { acting_as: Some(acting_as), ..self.clone() })
    }

    /// Sends any request and returns the raw response, regardless of its status. The URI is path and query.
    pub async fn raw(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response, ClientError> {
        self.raw_accepting(method, uri, content_type, "application/json", body).await
    }

    /// Like [`raw`](Self::raw), with an `Accept` header such as [`METADATA_ONLY`].
    pub async fn raw_accepting(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Response, ClientError> {
        let request = self.request(method, uri, content_type, accept, body)?;
        Ok(self.transport.send(request).await?)
    }

    fn request(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Request, ClientError> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().map_err(|e| ClientError::Request(format!("{uri}: {e}")))?;
        let headers = request.headers_mut();
        headers.insert(header::USER_AGENT, self.user_agent.clone());
        headers.insert(header::ACCEPT, http::HeaderValue::from_static(accept));
        if let Some(user) = &self.acting_as {
            headers.insert("impersonate-user", user.clone());
        }
        if !content_type.is_empty() {
            let value = content_type.parse().map_err(|_| ClientError::Request("content type".into()))?;
            headers.insert(header::CONTENT_TYPE, value);
        }
        Ok(request)
    }

    /// Sends a request and returns the response body, or the server's `Status` as the error.
    pub async fn call(&self, method: Method, uri: &str, content_type: &str, body: Bytes) -> Result<Bytes, ClientError> {
        answer_of(self.raw(method, uri, content_type, body).await?).await
    }

    /// Like [`call`](Self::call), but discards the response body.
    pub async fn call_unread(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<(), ClientError> {
        discard(self.raw(method, uri, content_type, body).await?).await
    }

    /// Returns a response's body, or the server's `Status` as the error.
    pub async fn read(response: Response) -> Result<Bytes, ClientError> {
        answer_of(response).await
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let bytes = self.call(method, uri, content_type, body).await?;
        kelson_meta::from_json(&bytes).map_err(|e| ClientError::Decode(format!("{uri}: {e}")))
    }

    /// Reads one object.
    pub async fn get<T: Object>(&self, namespace: &str, name: &str) -> Result<T, ClientError> {
        self.json(Method::GET, &path(&T::TYPE, namespace, name, ""), "", Bytes::new()).await
    }

    /// Reads one object. Returns `None` if it does not exist.
    pub async fn get_opt<T: Object>(&self, namespace: &str, name: &str) -> Result<Option<T>, ClientError> {
        match self.get(namespace, name).await {
            Ok(o) => Ok(Some(o)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Lists objects; an empty namespace means all.
    pub async fn list<T: Object>(&self, namespace: &str, params: &ListParams) -> Result<List<T>, ClientError> {
        self.json(Method::GET, &format!("{}{}", T::TYPE.path(namespace), params.query()), "", Bytes::new()).await
    }

    /// As [`list`](Self::list), of a resource known only at run time by its path, in the form `accept` asks for.
    pub async fn list_at<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: &'static str,
        params: &ListParams,
    ) -> Result<List<T>, ClientError> {
        let bytes = self.list_raw(path, accept, params).await?;
        kelson_meta::from_json(&bytes).map_err(|e| ClientError::Decode(format!("{path}: {e}")))
    }

    /// As [`list_at`](Self::list_at), not decoded yet.
    pub(crate) async fn list_raw(
        &self,
        path: &str,
        accept: &'static str,
        params: &ListParams,
    ) -> Result<Bytes, ClientError> {
        let uri = format!("{path}{}", params.query());
        answer_of(self.raw_accepting(Method::GET, &uri, "", accept, Bytes::new()).await?).await
    }

    /// Watches from `params.resource_version`; with `initial` the server sends what exists first (watch-list), closed
    /// by a bookmark.
    pub async fn watch<T: Object>(
        &self,
        namespace: &str,
        params: &ListParams,
        initial: bool,
    ) -> Result<WatchStream<T>, ClientError> {
        self.watch_at(&T::TYPE.path(namespace), "application/json", params, initial).await
    }

    /// As [`watch`](Self::watch), of a resource known only at run time by its path, in the form `accept` asks for.
    pub async fn watch_at<T: Object>(
        &self,
        path: &str,
        accept: &'static str,
        params: &ListParams,
        initial: bool,
    ) -> Result<WatchStream<T>, ClientError> {
        let taken = TakesObjects { managed_fields: T::READS_MANAGED_FIELDS };
        self.watch_raw(path, accept, params, initial, taken).await.map(WatchStream::new)
    }

    /// As [`watch_at`](Self::watch_at), with objects that are not decoded yet.
    pub(crate) async fn watch_raw(
        &self,
        path: &str,
        accept: &'static str,
        params: &ListParams,
        initial: bool,
        taken: TakesObjects,
    ) -> Result<RawWatch, ClientError> {
        let mut q = Query(params.query());
        q.add("watch", "true").add("allowWatchBookmarks", "true");
        if initial {
            q.add("sendInitialEvents", "true").add("resourceVersionMatch", "NotOlderThan");
        }
        let uri = format!("{path}{}", q.0);
        let mut request = self.request(Method::GET, &uri, "", accept, Bytes::new())?;
        request.extensions_mut().insert(taken);
        let response = self.transport.send(request).await?;
        let code = response.status();
        if code.is_success() {
            let items = response.extensions().get::<WatchItems>().and_then(WatchItems::take);
            return Ok(RawWatch::new(response.into_body(), items));
        }
        let body = response.into_body().collect().await?.to_bytes();
        Err(status_of(code, &body))
    }

    /// Creates `body` and returns the stored object.
    pub async fn create<T: Object>(&self, namespace: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.send(Method::POST, &T::TYPE.path(namespace), "application/json", body).await
    }

    /// Creates a subresource object, e.g. a Binding, an Eviction or a TokenRequest.
    pub async fn create_sub<R: DeserializeOwned>(
        &self,
        resource: &ResourceType,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &impl Serialize,
    ) -> Result<R, ClientError> {
        self.send(Method::POST, &path(resource, namespace, name, subresource), "application/json", body).await
    }

    /// Replaces an object. `subresource` may be empty.
    pub async fn update<T: Object>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(Method::PUT, &path(&T::TYPE, namespace, name, subresource), "application/json", body).await
    }

    /// Patches an object. `subresource` may be empty. The response body is discarded, since most callers observe the
    /// change through their informer; see [`patch_and_read`](Self::patch_and_read).
    pub async fn patch<T: Object>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        kind: PatchKind,
        patch: &impl Serialize,
        options: &WriteOptions,
    ) -> Result<(), ClientError> {
        let uri = format!("{}{}", path(&T::TYPE, namespace, name, subresource), options.query());
        discard(self.raw(Method::PATCH, &uri, kind.media_type(), encode(patch)?).await?).await
    }

    /// Like [`patch`](Self::patch), and returns the stored object.
    pub async fn patch_and_read<T: Object>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        kind: PatchKind,
        patch: &impl Serialize,
        options: &WriteOptions,
    ) -> Result<T, ClientError> {
        let uri = format!("{}{}", path(&T::TYPE, namespace, name, subresource), options.query());
        self.send(Method::PATCH, &uri, kind.media_type(), patch).await
    }

    /// As [`patch_and_read`](Self::patch_and_read), of an object known only at run time by its path.
    pub async fn patch_at<R: DeserializeOwned>(
        &self,
        path: &str,
        kind: PatchKind,
        patch: &impl Serialize,
        options: &WriteOptions,
    ) -> Result<R, ClientError> {
        self.send(Method::PATCH, &format!("{path}{}", options.query()), kind.media_type(), patch).await
    }

    /// Deletes an object. The object may still exist afterwards because of finalizers or its grace period.
    pub async fn delete<T: Object>(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ClientError> {
        let body = encode(options)?;
        self.call(Method::DELETE, &path(&T::TYPE, namespace, name, ""), "application/json", body).await.map(|_| ())
    }

    async fn send<R: DeserializeOwned>(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        body: &impl Serialize,
    ) -> Result<R, ClientError> {
        self.json(method, uri, content_type, encode(body)?).await
    }
}

fn encode(body: &impl Serialize) -> Result<Bytes, ClientError> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|e| ClientError::Request(e.to_string()))
}

/// Reads a complete response. The error of a failed request is the server's `Status`.
async fn answer_of(response: Response) -> Result<Bytes, ClientError> {
    let code = response.status();
    let body = http_body_util::Limited::new(response.into_body(), ANSWER_MAX_BYTES)
        .collect()
        .await
        .map_err(|e| TransportError(e.to_string()))?
        .to_bytes();
    if code.is_success() { Ok(body) } else { Err(status_of(code, &body)) }
}

/// Reads and discards a response body, so that its connection can carry the next request.
async fn discard(response: Response) -> Result<(), ClientError> {
    if !response.status().is_success() {
        return answer_of(response).await.map(|_| ());
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}

fn path(resource: &ResourceType, namespace: &str, name: &str, subresource: &str) -> String {
    let mut p = resource.path(namespace);
    p.push('/');
    p.push_str(name);
    if !subresource.is_empty() {
        p.push('/');
        p.push_str(subresource);
    }
    p
}

fn status_of(code: http::StatusCode, body: &[u8]) -> ClientError {
    let status = kelson_meta::from_json::<Status>(body).ok().filter(|s| s.code != 0).unwrap_or_else(|| {
        const SHOWN_MAX: usize = 256;
        let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN_MAX)]).into_owned();
        let cause = StatusCause { reason: UNEXPECTED_RESPONSE.to_owned(), message: text.clone(), field: String::new() };
        let mut status = Status::failure(code.as_u16(), kelson_meta::Reason::Unknown, text);
        status.details = Some(Box::new(StatusDetails { causes: vec![cause], ..StatusDetails::default() }));
        status
    });
    ClientError::Status(Box::new(status))
}

#[cfg(test)]
mod tests {
    use super::user_agent;

    #[test]
    fn components_have_the_names_that_tools_match() {
        for (component, manager) in [
            ("controller-manager", "kube-controller-manager"),
            ("scheduler", "kube-scheduler"),
            ("kube-scheduler", "kube-scheduler"),
            ("kubelet", "kubelet"),
            ("proxy", "kube-proxy"),
            ("agent", "kelson-agent"),
        ] {
            let agent = user_agent(component);
            assert_eq!(agent.split('/').next(), Some(manager));
            assert!(agent.contains("/v1."), "{agent}");
        }
    }
}
