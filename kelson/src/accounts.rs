//! Service accounts of single controllers, for a controller manager without an API server in its process: it creates
//! the accounts and requests their tokens (upstream's `--use-service-account-credentials`).
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use kelson_client::kubeconfig::{Config as Kubeconfig, Credentials};
use kelson_client::remote::Remote;
use kelson_client::{Client, ClientError, Request, Response, Transport, TransportError};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The requested lifetime of a token. The server may shorten it.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// A token is replaced after this part of its lifetime: 4 of 5.
const REPLACE_AT: (u32, u32) = (4, 5);

/// Sends requests as a service account, with a token that is replaced before it expires.
pub struct Account {
    inner: Arc<Inner>,
}

struct Inner {
    manager: Client,
    server: Kubeconfig,
    namespace: String,
    name: String,
    current: Mutex<Option<Current>>,
}

#[derive(Clone)]
struct Current {
    remote: Arc<Remote>,
    until: Instant,
}

impl Account {
    /// Creates the account `namespace`/`name` at the server of `config`, whose own credentials are not used.
    pub fn new(manager: Client, config: &Kubeconfig, namespace: &str, name: &str) -> Self {
        let server = Kubeconfig { credentials: Credentials::None, ..config.clone() };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { inner: Arc::new(Inner { manager, server, namespace, name, current: Mutex::new(None) }) }
    }
}

impl Transport for Account {
    fn send(&self, request: Request) -> kelson_transport::BoxFuture<Result<Response, TransportError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let current = inner.current().await?;
            let response = current.remote.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                // The account may have been recreated, or the server's keys replaced: the next request gets another
                // token.
                inner.forget(&current).await;
            }
            Ok(response)
        })
    }
}

impl Inner {
    async fn current(&self) -> Result<Current, TransportError> {
        let mut current = self.current.lock().await;
        if let Some(now) = current.as_ref().filter(|c| Instant::now() < c.until) {
            return Ok(now.clone());
        }
        let (token, life) = self
            .token()
            .await
            .map_err(|e| TransportError(format!("token of service account {}/{}: {e}", self.namespace, self.name)))?;
        let config = Kubeconfig { credentials: Credentials::Token(token), ..self.server.clone() };
        let until = Instant::now() + life * REPLACE_AT.0 / REPLACE_AT.1;
        let new = Current { remote: Arc::new(Remote::new(config)?), until };
        *current = Some(new.clone());
        Ok(new)
    }

    async fn forget(&self, used: &Current) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(&c.remote, &used.remote)) {
            *current = None;
        }
    }

    async fn token(&self) -> Result<(String, Duration), ClientError> {
        match self.request().await {
            Err(e) if e.is_not_found() => {
                let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", self.namespace);
                let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.name}});
                match self.manager.call(Method::POST, &accounts, "application/json", body(&account)).await {
                    Err(e) if !e.is_already_exists() => return Err(e),
                    _ => {}
                }
                self.request().await
            }
            other => other,
        }
    }

    async fn request(&self) -> Result<(String, Duration), ClientError> {
        let uri = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", self.namespace, self.name);
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": TOKEN_LIFE.as_secs()}});
        let answer = self.manager.call(Method::POST, &uri, "application/json", body(&request)).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|e| ClientError::Decode(format!("{uri}: {e}")))?;
        let Some(token) = answer["status"]["token"].as_str() else {
            return Err(ClientError::Decode(format!("{uri}: the response has no token")));
        };
        // The clocks may differ, so the lifetime counts and not the expiry.
        let seconds = answer["spec"]["expirationSeconds"].as_u64().unwrap_or(0);
        Ok((token.to_owned(), Duration::from_secs(seconds).min(TOKEN_LIFE)))
    }
}

fn body(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}
