//! Fetches documents over HTTPS with one GET, within a timeout and a size limit.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::Empty;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioExecutor;
use kelson_tasks::FILES;

use crate::backend::Backend;
use crate::connect::{Connector, ServiceResolver};
use crate::target::Location;
use crate::tls::{Protocols, client_config};

/// Fetches the body of a document. An empty bundle selects the system's CAs; `bearer` is sent as a bearer token.
/// Redirects are not followed.
///
/// # Errors
/// Fails when no successful response arrives within `timeout`, or when the body is longer than `bytes_max`.
pub async fn fetch(
    url: &str,
    ca_bundle: &[u8],
    bearer: Option<&str>,
    timeout: Duration,
    bytes_max: usize,
) -> Result<Bytes, String> {
    let failed = |why: String| format!("Get \"{url}\": {why}");
    let read = tokio::time::timeout(timeout, get(url, ca_bundle.to_vec(), bearer, bytes_max)).await;
    read.unwrap_or_else(|_| Err("context deadline exceeded".into())).map_err(failed)
}

async fn get(url: &str, ca_bundle: Vec<u8>, bearer: Option<&str>, bytes_max: usize) -> Result<Bytes, String> {
    let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
    if uri.scheme_str() != Some("https") {
        return Err("must be an https URL".into());
    }
    let tls =
        FILES.run(move || client_config(&ca_bundle, None, Protocols::Http1)).await.map_err(|e| e.to_string())??;
    let connector = Connector::new(&Location::Url(url.to_owned()), &uri, Arc::new(NoServices), tls)?;
    let pool: Pool<_, Empty<Bytes>> = Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let request = Request::get(uri).header(header::ACCEPT, "application/json").body(Empty::new());
    let mut request = request.map_err(|e| e.to_string())?;
    if let Some(token) = bearer {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value =
            value.map_err(|_| "the access token has characters that are not valid in a header".to_owned())?;
        value.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
    let response = pool.request(request).await.map_err(|e| crate::client::cause(&e))?;
    if !response.status().is_success() {
        return Err(format!("the server responded with {}", response.status()));
    }
    crate::client::read(response, bytes_max).await.map_err(|e| e.to_string())
}

/// A resolver without services, for targets that are named by host only.
pub struct NoServices;

impl ServiceResolver for NoServices {
    fn resolve(&self, _: &str, name: &str, _: u16) -> Result<Backend, String> {
        Err(format!("service {name:?} not found"))
    }
}
