//! Requests that admission makes to the server itself, through the request path with the server's own identity: it creates namespaces
//! (NamespaceAutoProvision), and calls webhooks that this server serves (by aggregation).
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

/// Connects the admission chain, which is built first, with its server.
#[derive(Default)]
pub struct ServerCalls(OnceLock<Weak<Server>>);

impl ServerCalls {
    /// Sets the server.
    pub fn connect(&self, server: &Arc<Server>) {
        // The first server stays: a second one would have its own chain.
        let _ = self.0.set(Arc::downgrade(server));
    }
    fn client(&self) -> Result<SelfClient, Status> {
        let server = self.0.get().and_then(Weak::upgrade);
        let server = server.ok_or_else(|| Status::internal("cannot call the API server: it is not running"))?;
        Ok(SelfClient::new(&server))
    }
}

#[async_trait]
impl NamespaceMaker for ServerCalls {
    async fn make(&self, name: &str) -> Result<(), Status> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.client()?.call(Method::POST, "/api/v1/namespaces", &namespace).await.map(drop)
    }
}

impl OwnServer for ServerCalls {
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
