//! Bootstrap: the objects a cluster has from its first moment.
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, header};
use kelson_auth::{UserInfo, user};
use kelson_meta::Status;
use serde_json::{Value, json};

use crate::body::RequestBody;
use crate::config::StartError;
use crate::handle::{self, Identity};
use crate::server::Server;

/// Namespaces every cluster has.
pub const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Makes what is missing.
///
/// # Errors
/// [`StartError::Bootstrap`].
pub async fn run(server: &Arc<Server>, _address: Option<SocketAddr>) -> Result<(), StartError> {
    let own = Own::new(server);
    for name in NAMESPACES {
        own.ensure("/api/v1/namespaces", name, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
    }
    Ok(())
}

/// The server as a client of itself.
pub struct Own {
    server: Arc<Server>,
    user: Arc<UserInfo>,
}

impl Own {
    /// Under the server's own identity.
    pub fn new(server: &Arc<Server>) -> Self {
        let user = UserInfo::new(user::API_SERVER, [user::MASTERS, user::AUTHENTICATED]);
        Self { server: Arc::clone(server), user: Arc::new(user) }
    }

    /// Sends a request along the whole path.
    ///
    /// # Errors
    /// The answer's `Status` when it is none of success.
    pub async fn call(&self, method: Method, uri: &str, body: &Value) -> Result<Value, Status> {
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "kelson-apiserver/1")
            .body(());
        let (parts, ()) = request.map_err(|e| Status::internal(e.to_string()))?.into_parts();
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let identity = Identity::Known(Arc::clone(&self.user));
        let answer = handle::handle(&self.server, parts, RequestBody::Whole(bytes), identity).await;
        let ok = answer.status().is_success();
        let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.map_err(Status::internal)?.to_bytes();
        if ok {
            return serde_json::from_slice(&bytes).map_err(|e| Status::internal(e.to_string()));
        }
        Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| Status::internal("an answer that is no Status")))
    }

    /// Creates an object unless one of that name is there.
    ///
    /// # Errors
    /// [`StartError::Bootstrap`].
    pub async fn ensure(&self, collection: &str, name: &str, object: Value) -> Result<(), StartError> {
        match self.call(Method::GET, &format!("{collection}/{name}"), &Value::Null).await {
            Ok(_) => return Ok(()),
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(StartError::Bootstrap(format!("{name}: {status}"))),
        }
        match self.call(Method::POST, collection, &object).await {
            Ok(_) => Ok(()),
            Err(status) if status.code == 409 => Ok(()),
            Err(status) => Err(StartError::Bootstrap(format!("{name}: {status}"))),
        }
    }
}
