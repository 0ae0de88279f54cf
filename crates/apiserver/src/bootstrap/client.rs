//! A client for the server itself: requests take the whole request path with the server's own identity.
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, header};
use kelson_auth::{UserInfo, user};
use kelson_meta::Status;
use kelson_meta::url::encode;
use serde_json::Value;

use crate::config::StartError;
use crate::front::handle;
use crate::front::identify::Identity;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::Server;

/// The API path of an object's collection.
pub(super) fn collection(object: &Value) -> Option<String> {
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = api_version.split_once('/')?;
    let resource = kelson_schema::resource::resource_of_kind(group, version, &kind)?;
    let namespace = text(&object["metadata"]["namespace"]);
    Some(if resource.namespaced {
        format!("/apis/{api_version}/namespaces/{namespace}/{}", resource.plural)
    } else {
        format!("/apis/{api_version}/{}", resource.plural)
    })
}

/// Whether the group version is served. Objects of others are not created.
pub(super) fn is_served(server: &Server, group: &str, version: &str) -> bool {
    server.catalog.generation_of(group, version) > 0
}

/// A client for the server itself.
pub struct SelfClient {
    pub(super) server: Arc<Server>,
    user: Arc<UserInfo>,
}

impl SelfClient {
    /// Requests with the server's own identity.
    pub fn new(server: &Arc<Server>) -> Self {
        let user = UserInfo::new(user::API_SERVER, [user::MASTERS, user::AUTHENTICATED]);
        Self { server: Arc::clone(server), user: Arc::new(user) }
    }

    /// Sends a request along the whole request path.
    ///
    /// # Errors
    /// The response's `Status` if it is not a success.
    pub async fn call(&self, method: Method, uri: &str, body: &Value) -> Result<Value, Status> {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let answer = self.send(method, uri, bytes).await?;
        let ok = answer.status().is_success();
        let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.map_err(Status::internal)?.to_bytes();
        if ok {
            return kelson_meta::from_json(&bytes).map_err(|e| Status::internal(e.to_string()));
        }
        Err(kelson_meta::from_json(&bytes).unwrap_or_else(|_| Status::internal("the answer is not a Status")))
    }

    /// Sends a request with JSON and returns any response.
    ///
    /// # Errors
    /// The request is invalid.
    pub async fn send(&self, method: Method, uri: &str, body: Bytes) -> Result<Answer, Status> {
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "kube-apiserver/kelson")
            .body(());
        let (parts, ()) = request.map_err(|e| Status::internal(e.to_string()))?.into_parts();
        let identity = Identity::Known(Arc::clone(&self.user));
        Ok(handle::handle(&self.server, parts, RequestBody::Whole(body), identity).await)
    }

    /// Creates an object. An existing one is not an error.
    pub(super) async fn create(&self, collection: &str, object: &Value) -> Result<(), Status> {
        match self.call(Method::POST, collection, object).await {
            Err(status) if status.code != 409 => Err(status),
            _ => Ok(()),
        }
    }

    /// The stored object, if it exists.
    pub(super) async fn stored(&self, object: &Value) -> Option<Value> {
        let path = collection(object)?;
        let name = encode(object["metadata"]["name"].as_str()?);
        self.call(Method::GET, &format!("{path}/{name}"), &Value::Null).await.ok()
    }

    /// Creates an object unless one with this name exists.
    ///
    /// # Errors
    /// [`StartError::Bootstrap`].
    pub async fn ensure(&self, collection: &str, name: &str, object: Value) -> Result<(), StartError> {
        let fault = |status: Status| StartError::Bootstrap(format!("{collection}/{name}: {status}"));
        match self.call(Method::GET, &format!("{collection}/{name}"), &Value::Null).await {
            Ok(_) => Ok(()),
            Err(status) if status.code == 404 => self.create(collection, &object).await.map_err(fault),
            Err(status) => Err(fault(status)),
        }
    }

    /// Creates an object, or replaces the existing one.
    ///
    /// # Errors
    /// [`StartError::Bootstrap`].
    pub async fn put(&self, collection: &str, object: Value) -> Result<(), StartError> {
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        self.ensure(collection, &name, object.clone()).await?;
        let path = format!("{collection}/{name}");
        let put = self.call(Method::PUT, &path, &object).await;
        put.map(|_| ()).map_err(|status| StartError::Bootstrap(format!("{path}: {status}")))
    }
}
