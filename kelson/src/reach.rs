//! Requests of a machine that joins a cluster, to a server that may not be up yet.
//!
//! Temporary errors are retried: without limit for a server that is not up yet, for [`PATIENCE`] for objects that the cluster has not
//! published yet. Other errors end with a message that says what to do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::ConfigMap;
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::Remote;
use kelson_client::{Client, ClientError};
use tokio::time::Instant;

use crate::cluster::CLUSTER_INFO;

/// The timeout of one request to the server.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The first and the longest pause between attempts; it doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long to wait for objects that the cluster has not published yet.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often an unchanged error is logged.
const REPEAT: Duration = Duration::from_secs(60);
/// A part of every TLS error about the server's certificate.
pub const CERTIFICATE_FAULT: &str = "invalid peer certificate";

/// Whether another attempt can help.
pub enum Fault {
    /// It can, at any time.
    Wait(anyhow::Error),
    /// It can, soon or never.
    Soon(anyhow::Error),
    /// The error is permanent.
    Never(anyhow::Error),
}

/// Retries until there is an answer or a permanent error.
///
/// # Errors
/// The permanent one, or the last one after [`PATIENCE`].
pub async fn persist<T, F>(server: &str, mut attempt: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, Fault>>,
{
    let (started, mut pause) = (Instant::now(), PAUSE_FIRST);
    let mut logged: Option<(String, Instant)> = None;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(Fault::Never(e)) => return Err(e),
            Err(Fault::Soon(e)) if started.elapsed() >= PATIENCE => return Err(e),
            Err(Fault::Soon(e) | Fault::Wait(e)) => format!("{e:#}"),
        };
        if logged.as_ref().is_none_or(|(text, at)| *text != error || at.elapsed() >= REPEAT) {
            tracing::warn!(server, error, "joining the cluster failed; retrying");
            logged = Some((error, Instant::now()));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns a client, the component `component`, of a server whose certificate `ca_pem` verifies.
///
/// # Errors
/// The URL or the CA is invalid.
pub fn client(component: &str, server: &str, ca_pem: &str, credentials: Credentials) -> anyhow::Result<Client> {
    let config = Config { server: server.to_owned(), ca_pem: ca_pem.into(), credentials, ..Config::default() };
    Ok(Client::new(Arc::new(Remote::new(config).context("--server")?), component))
}

/// Returns a client without credentials that accepts any certificate, for what is verified otherwise.
///
/// # Errors
/// The URL is invalid.
pub fn unverified(component: &str, server: &str) -> anyhow::Result<Client> {
    let config = Config { server: server.to_owned(), insecure_skip_tls_verify: true, ..Config::default() };
    Ok(Client::new(Arc::new(Remote::new(config).context("--server")?), component))
}

/// Sends one request, with a time limit.
///
/// # Errors
/// Those of the request, or it timed out.
pub async fn ask<T>(question: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    let late = || kelson_client::TransportError(format!("timed out after {} s", ANSWER_LIMIT.as_secs()));
    tokio::time::timeout(ANSWER_LIMIT, question).await.map_err(|_| late())?
}

/// Reads the URL and the CA that the cluster publishes for machines that join.
///
/// # Errors
/// It is not published (yet), or the server cannot be reached.
pub async fn cluster_info(server: &str, client: &Client) -> Result<ConfigMap, Fault> {
    let (namespace, name) = CLUSTER_INFO;
    ask(client.get::<ConfigMap>(namespace, name)).await.map_err(|e| match e.status().map(|s| s.code) {
        // The role that allows reading it is one of the last objects that a new cluster creates.
        Some(401 | 403) => Fault::Soon(anyhow!(
            "{server} does not allow anonymous reads of {namespace}/{name} ({e}); give the server's CA (DIR/pki/ca.crt) with --server-ca"
        )),
        Some(404) => Fault::Soon(anyhow!("{server} has no {namespace}/{name}; machines cannot join with a token")),
        _ => unreachable(server, e),
    })
}

/// Reads the same as an administrator of the server, which publishes it soon after it is ready.
///
/// # Errors
/// Those of the request, or it is not published within [`PATIENCE`].
pub async fn own_cluster_info(client: &Client) -> Result<ConfigMap, ClientError> {
    let ((namespace, name), started, mut pause) = (CLUSTER_INFO, Instant::now(), PAUSE_FIRST);
    loop {
        match ask(client.get::<ConfigMap>(namespace, name)).await {
            Err(e) if e.status().is_some_and(|s| s.code == 404) && started.elapsed() < PATIENCE => {}
            done => return done,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Classifies a request without an answer: an invalid certificate is permanent, everything else is not.
pub fn unreachable(server: &str, e: ClientError) -> Fault {
    let text = e.to_string();
    match e {
        ClientError::Transport(_) if text.contains(CERTIFICATE_FAULT) => Fault::Never(anyhow!(
            "the certificate of {server} is not valid for this address: {text}; add the address on the server with --tls-san"
        )),
        ClientError::Transport(_) => Fault::Wait(anyhow!("{server} is not reachable: {text}")),
        ClientError::Status(s) if s.code < 500 && s.code != 429 => Fault::Never(anyhow!("{server}: {s}")),
        ClientError::Status(_) => Fault::Wait(anyhow!("{server}: {text}")),
        _ => Fault::Never(anyhow!("{server} is not a Kubernetes API server: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn temporary_errors_are_retried() {
        let mut left = 100;
        let done = persist("s", || {
            left -= 1;
            std::future::ready(if left == 0 { Ok(7) } else { Err(Fault::Wait(anyhow!("down"))) })
        });
        assert_eq!(done.await.unwrap(), 7);
        let started = Instant::now();
        let never: anyhow::Result<()> = persist("s", async || Err(Fault::Soon(anyhow!("unknown token")))).await;
        assert_eq!(never.unwrap_err().to_string(), "unknown token");
        assert!(started.elapsed() >= PATIENCE && started.elapsed() < PATIENCE + PAUSE_MAX);
        let at_once: anyhow::Result<()> = persist("s", async || Err(Fault::Never(anyhow!("bad")))).await;
        assert_eq!(at_once.unwrap_err().to_string(), "bad");
    }

    /// A server that answers with these codes in turn, and then with an empty `cluster-info`.
    struct Scripted(parking_lot::Mutex<Vec<u16>>);

    impl kelson_client::Transport for Scripted {
        fn send(&self, request: kelson_client::Request) -> kelson_transport::BoxFuture<Answer> {
            assert_eq!(request.uri().path(), "/api/v1/namespaces/kube-public/configmaps/cluster-info");
            let mut codes = self.0.lock();
            let code = if codes.is_empty() { 200 } else { codes.remove(0) };
            let body = match code {
                200 => json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubeconfig": "here"}}),
                _ => {
                    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "not yet", "code": code})
                }
            };
            let mut answer = kelson_client::Response::new(kelson_client::full_body(body.to_string()));
            *answer.status_mut() = http::StatusCode::from_u16(code).unwrap();
            Box::pin(std::future::ready(Ok(answer)))
        }
    }

    type Answer = Result<kelson_client::Response, kelson_client::TransportError>;

    #[tokio::test(start_paused = true)]
    async fn a_new_cluster_without_a_readable_cluster_info_is_waited_for() {
        let read = async |codes: Vec<u16>| {
            let started = Instant::now();
            let server = std::sync::Arc::new(Scripted(parking_lot::Mutex::new(codes)));
            let client = Client::new(server.clone(), "agent");
            let found = persist("https://h:1", async || cluster_info("https://h:1", &client).await).await;
            (found.map(|info| info.data.unwrap()["kubeconfig"].clone()), started.elapsed())
        };
        for codes in [vec![403; 4], vec![401, 403, 404, 503]] {
            let (found, took) = read(codes.clone()).await;
            assert_eq!(found.unwrap(), "here", "{codes:?}");
            assert_eq!(took, Duration::from_millis(500 + 1_000 + 2_000 + 4_000), "{codes:?}");
        }
        // If a cluster never allows it, the error names the alternative.
        let (found, took) = read(vec![403; 1_000]).await;
        let error = found.unwrap_err().to_string();
        assert!(error.contains("does not allow anonymous reads") && error.contains("--server-ca"), "{error}");
        assert!(took >= PATIENCE && took < PATIENCE + PAUSE_MAX, "{took:?}");
        let (found, took) = read(vec![400]).await;
        assert!(found.is_err() && took.is_zero(), "a request that is no good does not get better");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_can_be_printed_right_after_the_start() {
        let read = async |codes: Vec<u16>| {
            let started = Instant::now();
            let client = Client::new(std::sync::Arc::new(Scripted(parking_lot::Mutex::new(codes))), "token");
            (own_cluster_info(&client).await.map(drop).map_err(|e| e.status().map(|s| s.code)), started.elapsed())
        };
        assert_eq!(read(vec![404, 404]).await, (Ok(()), Duration::from_millis(500 + 1_000)));
        assert_eq!(read(vec![403]).await, (Err(Some(403)), Duration::ZERO));
        let (found, took) = read(vec![404; 1_000]).await;
        assert_eq!(found, Err(Some(404)));
        assert!(took >= PATIENCE && took < PATIENCE + PAUSE_MAX, "{took:?}");
    }
}
