//! Asks the kubelets for the resource usage of their nodes and pods (`/metrics/resource`), for `metrics.k8s.io`. While an APIService
//! names another server for that, nothing is asked and nothing is kept. Upstream: metrics-server `pkg/scraper`.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::header;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use kelson_store::Resource;
use kelson_tasks::OnPanic;
use tokio::time::Instant;

use crate::catalog::record::parse;
use crate::connect::kubelet::Node;
use crate::shared::Server;
use crate::usage::exposition::{self, Report};
use crate::usage::{GROUP, RESOLUTION, ResourceMetrics, VERSION};

/// Interval while there is no node, or one that answers lacks its second sample, so that usage is known soon after a start.
const FIRST_WINDOW: Duration = Duration::from_secs(5);
/// Kubelets that are asked at once.
const CONCURRENT_MAX: usize = 8;
/// Timeout of one request, including the connection.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a kubelet's report: about 30,000 containers.
const REPORT_BYTES_MAX: usize = 4 << 20;
/// The time for which a node that is not ready and did not answer is left alone.
const RETRY_UNREADY: Duration = Duration::from_secs(120);
/// Reports after which a node counts as settled, also if they are incomplete.
const ANSWERS_SETTLED: u32 = 4;

/// Why a kubelet's report could not be read.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error("{0}")]
    Connection(String),
    #[error("the request failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("the request is invalid: {0}")]
    Request(#[from] http::Error),
    #[error("the kubelet answered with status {0}")]
    Code(http::StatusCode),
    #[error("the report cannot be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the report is not UTF-8: {0}")]
    Text(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Format(#[from] exposition::ExpositionError),
    #[error("no complete report within {TIMEOUT:?}")]
    Timeout,
}

/// The state of a node that is kept between rounds.
#[derive(Clone, Copy, Default)]
struct Attempt {
    /// When the last request failed; `None` after a success.
    failed_at: Option<Instant>,
    /// Reports since the last failure.
    answers: u32,
}

/// Runs until the server stops.
pub async fn run(server: Arc<Server>) {
    let Some(usage) = &server.usage else { return };
    let mut services = server.aggregation.subscribe();
    let mut attempts: HashMap<String, Attempt> = HashMap::new();
    loop {
        if server.aggregation.find(GROUP, VERSION).is_some() {
            attempts.clear();
            usage.samples.write().retain(|_| false);
            usage.show_points();
            if services.changed().await.is_err() {
                return;
            }
            continue;
        }
        let begun = Instant::now();
        // Nodes that a round does not reach keep their turn: those that answer come first.
        let round = ask_all(&server, usage, &mut attempts);
        let is_complete = tokio::time::timeout_at(begun + RESOLUTION, round).await.is_ok();
        usage.show_points();
        let settling = |(name, attempt): (&String, &Attempt)| {
            (1..ANSWERS_SETTLED).contains(&attempt.answers) && !usage.samples.read().has_node(name)
        };
        // Without any node, the first one is about to register.
        let is_settled = !is_complete || !attempts.is_empty() && !attempts.iter().any(settling);
        let next = begun + if is_settled { RESOLUTION } else { FIRST_WINDOW };
        while server.aggregation.find(GROUP, VERSION).is_none() {
            tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                changed = services.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// Asks all nodes once.
async fn ask_all(server: &Arc<Server>, usage: &ResourceMetrics, attempts: &mut HashMap<String, Attempt>) {
    let view = server.store.list(Resource::new("", "nodes"), None, None, None);
    let names: HashSet<String> = view.iter().map(|record| record.key().name.to_string()).collect();
    drop(view);
    usage.samples.write().retain(|name| names.contains(name));
    attempts.retain(|name, _| names.contains(name));
    let failed_at = |name: &String| attempts.get(name).and_then(|attempt| attempt.failed_at);
    let is_due =
        |name: &String| failed_at(name).is_none_or(|at| at.elapsed() >= RETRY_UNREADY) || is_ready(server, name);
    let mut due: Vec<(Option<Instant>, String)> =
        names.iter().filter(|name| is_due(name)).map(|name| (failed_at(name), name.clone())).collect();
    due.sort();
    let reports = stream::iter(due).map(|(_, name)| async {
        let asked = tokio::time::timeout(TIMEOUT, ask(server, &name)).await;
        (name, asked.unwrap_or(Err(ReportError::Timeout)))
    });
    let mut reports = std::pin::pin!(reports.buffer_unordered(CONCURRENT_MAX));
    while let Some((name, report)) = reports.next().await {
        usage.count_request(report.is_ok());
        match report {
            Ok(report) => {
                usage.samples.write().add(&name, report);
                let attempt = attempts.entry(name).or_default();
                *attempt = Attempt { failed_at: None, answers: attempt.answers.saturating_add(1) };
            }
            Err(error) => {
                usage.samples.write().remove(&name);
                let failed = Attempt { failed_at: Some(Instant::now()), answers: 0 };
                let was_failing = attempts.get(&name).is_some_and(|attempt| attempt.failed_at.is_some());
                if !was_failing && is_ready(server, &name) {
                    tracing::warn!(node = name, %error, "failed to read a node's resource usage; retrying");
                } else {
                    tracing::debug!(node = name, %error, "failed to read a node's resource usage");
                }
                attempts.insert(name, failed);
            }
        }
    }
}

fn is_ready(server: &Server, name: &str) -> bool {
    let Some(record) = server.store.get(Resource::new("", "nodes"), "", name) else { return false };
    let node = parse(&record);
    let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// One kubelet's report.
async fn ask(server: &Arc<Server>, name: &str) -> Result<Report, ReportError> {
    let node = Node::find(server, name).map_err(|status| ReportError::Connection(status.message))?;
    let io = node.connect(server).await.map_err(ReportError::Connection)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    server.tasks.spawn_graceful("api-resource-metrics-connection", OnPanic::Contain, async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection for a node's resource usage failed");
        }
    });
    let request = http::Request::get("/metrics/resource").header(header::HOST, node.authority());
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    if !response.status().is_success() {
        return Err(ReportError::Code(response.status()));
    }
    let body = Limited::new(response.into_body(), REPORT_BYTES_MAX).collect().await.map_err(ReportError::Body)?;
    let now = server.clock.now().as_millisecond();
    Ok(exposition::parse(std::str::from_utf8(&body.to_bytes())?, now)?)
}
