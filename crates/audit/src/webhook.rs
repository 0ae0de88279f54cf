//! The webhook output: batches as `EventList`s, sent to the server in a kubeconfig, with retries after growing pauses.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::Remote;
use kelson_transport::{BoxFuture, Request, Response, Transport, TransportError};

use crate::event::{Event, list};
use crate::output::{Entry, Output};

/// The timeout of one call, including its response.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of calls for one batch, including the first.
const CALLS_MAX: u32 = 5;
/// The factor by which each pause grows.
const BACKOFF_FACTOR: f64 = 1.5;
/// The maximum random addition to a pause, as a fraction of it.
const BACKOFF_JITTER: f64 = 0.2;
/// The number of response bytes that are read, so that the connection can be reused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of concurrent batches, which limits the effect of a slow server.
const BATCHES_AT_ONCE: usize = 16;

/// Returns the path for batches. Like upstream's client, it sends the timeout to the server.
fn with_timeout(path: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}timeout={}s", CALL_TIMEOUT.as_secs())
}

/// Sends events as EventLists to an external server.
#[derive(Clone)]
pub struct Webhook {
    transport: Arc<dyn Transport>,
    path: String,
    initial_backoff: Duration,
}

impl Webhook {
    /// Creates a client for the server of a kubeconfig's current context.
    ///
    /// # Errors
    /// Fails if the file is invalid.
    pub fn load(config_file: &Path, initial_backoff: Duration) -> Result<Self, String> {
        let config = Config::load(config_file).map_err(|e| e.to_string())?;
        let uri: Uri = config.server.parse().map_err(|e| format!("server {:?}: {e}", config.server))?;
        let path = with_timeout(uri.path_and_query().map_or("/", |p| p.as_str()));
        let transport: Arc<dyn Transport> = match uri.scheme_str() {
            // A collector without TLS. Nothing secret is sent except the events themselves.
            Some("http") if matches!(config.credentials, Credentials::None) => Arc::new(Plain::new(uri)),
            Some("http") => return Err(format!("server {:?}: credentials are sent over https only", config.server)),
            _ => Arc::new(Remote::new(config).map_err(|e| e.to_string())?),
        };
        Ok(Self::new(transport, path, initial_backoff))
    }

    fn new(transport: Arc<dyn Transport>, path: String, initial_backoff: Duration) -> Self {
        Self { transport, path, initial_backoff }
    }

    async fn post(&self, body: Bytes) -> Result<(), String> {
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(&self.path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-audit/kelson")
            .body(body)
            .map_err(|e| e.to_string())?;
        let call = async {
            let answer = self.transport.send(request).await.map_err(|e| e.to_string())?;
            let status = answer.status();
            let _ = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            if status.is_success() { Ok(()) } else { Err(format!("the server responded with {status}")) }
        };
        tokio::time::timeout(CALL_TIMEOUT, call)
            .await
            .unwrap_or_else(|_| Err("timed out waiting for the server".into()))
    }

    async fn deliver(&self, body: Bytes) -> Result<(), String> {
        let mut pause = self.initial_backoff;
        let mut called = 0;
        loop {
            let result = self.post(body.clone()).await;
            called += 1;
            if result.is_ok() || called >= CALLS_MAX {
                return result;
            }
            tokio::time::sleep(pause.mul_f64(1.0 + BACKOFF_JITTER * rand::random::<f64>())).await;
            pause = pause.mul_f64(BACKOFF_FACTOR);
        }
    }
}

impl Output for Webhook {
    fn name(&self) -> &'static str {
        "webhook"
    }
    fn entry(&self, _event: &Event, item: &Bytes) -> Entry {
        Entry(item.clone())
    }
    fn write(&self, batch: Vec<Entry>) -> BoxFuture<Result<(), String>> {
        let this = self.clone();
        Box::pin(async move {
            let items: Vec<Bytes> = batch.into_iter().map(|entry| entry.0).collect();
            this.deliver(list(items.iter())).await
        })
    }
    fn width(&self) -> usize {
        BATCHES_AT_ONCE
    }
}

/// A server without TLS.
struct Plain {
    base: Uri,
    pool: Client<HttpConnector, Full<Bytes>>,
}

impl Plain {
    fn new(base: Uri) -> Self {
        Self { base, pool: Client::builder(TokioExecutor::new()).build_http() }
    }
}

impl Transport for Plain {
    fn send(&self, mut request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let (pool, mut parts) = (self.pool.clone(), self.base.clone().into_parts());
        parts.path_and_query = request.uri().path_and_query().cloned();
        Box::pin(async move {
            *request.uri_mut() = Uri::from_parts(parts).map_err(TransportError::new)?;
            let answer = pool.request(request.map(Full::new)).await.map_err(TransportError::new)?;
            Ok(answer.map(|body| body.map_err(TransportError::new).boxed_unsync()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::sample;
    use kelson_transport::full_body;
    use parking_lot::Mutex;
    use tokio::time::Instant;

    /// Answers with these codes in order (0 closes the connection), and records the requests.
    #[derive(Default)]
    struct Server {
        codes: Mutex<Vec<u16>>,
        bodies: Mutex<Vec<Bytes>>,
    }

    impl Transport for Server {
        fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
            assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/events"));
            self.bodies.lock().push(request.into_body());
            let code = self.codes.lock().pop().unwrap_or(200);
            Box::pin(async move {
                if code == 0 {
                    return Err(TransportError("connection reset".into()));
                }
                Ok(http::Response::builder().status(code).body(full_body("")).expect("an answer"))
            })
        }
    }

    async fn deliver(codes: &[u16]) -> (Result<(), String>, usize, Duration) {
        let server = Arc::new(Server { codes: Mutex::new(codes.iter().rev().copied().collect()), ..Server::default() });
        let webhook = Webhook::new(server.clone(), "/events".into(), Duration::from_secs(10));
        let event = sample::full();
        let begun = Instant::now();
        let result = webhook.write(vec![webhook.entry(&event, &event.json())]).await;
        let bodies = server.bodies.lock();
        let first: serde_json::Value = serde_json::from_slice(&bodies[0]).expect("JSON");
        assert_eq!((first["kind"].as_str(), first["items"][0]["auditID"].as_str()), (Some("EventList"), Some("id-1")));
        (result, bodies.len(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_fails_is_repeated_after_growing_pauses() {
        assert_eq!(deliver(&[200]).await, (Ok(()), 1, Duration::ZERO));
        let (result, calls, took) = deliver(&[0, 500, 200]).await;
        assert_eq!((result, calls), (Ok(()), 3));
        assert!(took >= Duration::from_secs(25) && took <= Duration::from_secs(31), "{took:?}");
        let (result, calls, _) = deliver(&[400; 9]).await;
        assert_eq!((result, calls), (Err("the server responded with 400 Bad Request".to_owned()), 5));
    }

    #[test]
    fn credentials_are_not_sent_in_the_clear() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("config");
        let text = |user: &str| {
            format!(
                "current-context: c\nclusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:9/events?x=1'}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
            )
        };
        std::fs::write(&file, text("")).expect("written");
        let plain = Webhook::load(&file, Duration::ZERO).expect("a webhook");
        assert_eq!(plain.path, "/events?x=1&timeout=30s", "the server is told how long it is waited for");
        assert_eq!(with_timeout("/events"), "/events?timeout=30s");
        std::fs::write(&file, text("token: t")).expect("written");
        assert!(Webhook::load(&file, Duration::ZERO).err().is_some_and(|e| e.contains("https only")));
    }
}
