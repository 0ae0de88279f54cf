//! What admission does by way of the server itself, along the request path under the server's own identity: it makes
//! namespaces when they are first needed, and asks webhooks that this server answers for (by aggregation).
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Response};
use http_body_util::{BodyExt as _, Limited};
use kelson_admission::NamespaceMaker;
use kelson_meta::Status;
use kelson_webhook::{OwnCall, OwnServer};
use serde_json::json;

use super::client::SelfClient;
use crate::shared::Server;

/// The way from the admission chain, which is built first, to the server that it is a part of.
#[derive(Default)]
pub struct Own(OnceLock<Weak<Server>>);

impl Own {
    /// From now on this is the server.
    pub fn connect(&self, server: &Arc<Server>) {
        // A second server would need a chain of its own: the first one stays.
        let _ = self.0.set(Arc::downgrade(server));
    }
    fn client(&self) -> Result<SelfClient, Status> {
        let server = self.0.get().and_then(Weak::upgrade);
        let server = server.ok_or_else(|| Status::internal("the server is not there to be asked"))?;
        Ok(SelfClient::new(&server))
    }
}

#[async_trait]
impl NamespaceMaker for Own {
    async fn make(&self, name: &str) -> Result<(), Status> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.client()?.call(Method::POST, "/api/v1/namespaces", &namespace).await.map(drop)
    }
}

impl OwnServer for Own {
    fn post(&self, path_and_query: String, body: Bytes, answer_bytes_max: usize) -> OwnCall<'_> {
        Box::pin(async move {
            let client = self.client().map_err(|status| status.message)?;
            let answer = client.send(Method::POST, &path_and_query, body).await.map_err(|status| status.message)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, answer_bytes_max).collect().await.map_err(|e| e.to_string())?;
            Ok(Response::from_parts(head, body.to_bytes()))
        })
    }
}
