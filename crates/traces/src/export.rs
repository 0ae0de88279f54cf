//! The export of spans to a collector: a bounded queue, batches and retries (OTLP over gRPC without TLS, as upstream
//! does).
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use kelson_meta::Clock;
use kelson_metrics::{IntCounterVec, Registry};
use kelson_platform::sockets::{self, UnixStream};
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::config::{Target, TracingConfiguration};
use crate::otlp::{
    EXPORT, ExportTraceServiceRequest, ExportTraceServiceResponse, InstrumentationScope, KeyValue, Resource,
    ResourceSpans, ScopeSpans, SpanData,
};
use crate::sink::Sink;
use crate::tracer::{End, Tracer};

/// The maximum number of waiting spans (like the next two, a default of OpenTelemetry).
const QUEUE_MAX: usize = 2048;
/// The maximum number of spans in one call.
const BATCH_MAX: usize = 512;
/// The timeout of one batch with all retries.
const EXPORT_MAX: Duration = Duration::from_secs(30);
/// The timeout of one call.
const CALL_MAX: Duration = Duration::from_secs(10);
/// The timeout of the last batches when the process ends.
const END_MAX: Duration = Duration::from_secs(2);
/// The maximum size of a response in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The name of upstream's instrumentation scope.
const SCOPE: &str = "k8s.io/component-base/tracing";

/// The options of an exporter.
pub struct ExporterOptions {
    /// The configuration of the operator.
    pub configuration: TracingConfiguration,
    /// The attributes of the process: `service.name`, `service.instance.id`.
    pub resource: Vec<KeyValue>,
    /// The clock for the start times of spans.
    pub clock: Arc<dyn Clock>,
    /// The timing of batches and retries.
    pub pace: Pace,
    /// The owner of the export task, which ends with [`Tracer::close`] or when the tracer is dropped.
    pub tasks: Tasks,
}

/// The timing of batches and retries.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The wait before a batch that is not full is sent.
    pub batch_after: Duration,
    /// The wait before the first retry of a rejected batch. Each further wait is 1.5 times as long.
    pub retry_after: Duration,
}

impl Default for Pace {
    /// The defaults are OpenTelemetry's.
    fn default() -> Self {
        Self { batch_after: Duration::from_secs(5), retry_after: Duration::from_secs(5) }
    }
}

/// Sends spans to a collector. One task takes spans from a bounded queue and sends them in batches. It connects when
/// the first batch is ready, retries a batch for a limited time, and counts the spans that it could not deliver. A
/// slow or missing collector never delays requests.
pub struct Exporter {
    pace: Pace,
    channel: Channel,
    resource: Resource,
    end: End,
    spans: IntCounterVec,
}

impl Exporter {
    /// Starts an exporter. It connects to the collector when there are spans to send. The returned registry has its
    /// metrics.
    ///
    /// # Errors
    /// Fails when the collector's address is not supported.
    pub fn start(options: ExporterOptions) -> Result<(Arc<Tracer>, Registry), String> {
        let channel = channel_to(options.configuration.target()?)?;
        let registry = Registry::new();
        let spans = registry.counters(
            "kelson_tracing_spans_total",
            "Sampled request spans by result: exported, failed (rejected by the collector) or dropped (queue full).",
            &["result"],
        );
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let per_million = options.configuration.sampling_rate_per_million.unwrap_or(0);
        let end = End::default();
        let sink = Sink { queue, dropped: spans.with_label_values(&["dropped"]), clock: options.clock };
        let tracer = Tracer::new(per_million, sink, end.clone());
        let exporter =
            Self { pace: options.pace, channel, resource: Resource { attributes: options.resource }, end, spans };
        options.tasks.spawn_graceful("traces", OnPanic::Contain, exporter.run(waiting));
        Ok((Arc::new(tracer), registry))
    }

    async fn run(self, waiting: Receiver<SpanData>) {
        // Runs also after a panic, so that no caller waits for this task.
        let _done = self.end.done.clone().drop_guard();
        self.send_all(waiting).await;
    }

    async fn send_all(&self, mut waiting: Receiver<SpanData>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut due = interval(self.pace.batch_after);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = BATCH_MAX - batch.len();
            let ended = tokio::select! {
                () = self.end.asked.cancelled() => true,
                taken = waiting.recv_many(&mut batch, room) => match batch.len() {
                    BATCH_MAX => false,
                    _ if taken > 0 => continue,
                    _ => true,
                },
                _ = due.tick() => false,
            };
            if ended {
                break;
            }
            due.reset();
            self.export(std::mem::take(&mut batch)).await;
        }
        // Spans that end from now on are dropped.
        waiting.close();
        let rest = async {
            loop {
                let room = BATCH_MAX - batch.len();
                let taken = waiting.recv_many(&mut batch, room).await;
                if taken == 0 || taken == room {
                    self.export(std::mem::take(&mut batch)).await;
                }
                if taken == 0 {
                    return;
                }
            }
        };
        if timeout(END_MAX, rest).await.is_err() {
            tracing::warn!("exporting the last spans timed out");
        }
    }

    async fn export(&self, batch: Vec<SpanData>) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let scope = InstrumentationScope { name: SCOPE.to_owned() };
        let spans = ScopeSpans { scope: Some(scope), spans: batch };
        let resource = Some(self.resource.clone());
        let request =
            ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans: vec![spans] }] };
        let refused = self.tried(request).await.unwrap_or_else(|error| {
            tracing::warn!(%error, spans = count, "exporting traces failed");
            count
        });
        let refused = refused.min(count);
        self.spans.with_label_values(&["failed"]).inc_by(refused);
        self.spans.with_label_values(&["exported"]).inc_by(count - refused);
    }

    /// Sends a batch, with retries where they may help and time is left. Returns the number of spans that the
    /// collector rejected.
    async fn tried(&self, request: ExportTraceServiceRequest) -> Result<u64, Status> {
        let begun = Instant::now();
        let mut pause = self.pace.retry_after;
        loop {
            let limit = CALL_MAX.min(EXPORT_MAX.saturating_sub(begun.elapsed()));
            let failed = match timeout(limit, self.call(request.clone())).await {
                Ok(Ok(answer)) => {
                    let partial = answer.partial_success.unwrap_or_default();
                    if !partial.error_message.is_empty() {
                        tracing::warn!(
                            error = partial.error_message,
                            refused = partial.rejected_spans,
                            "exporting traces"
                        );
                    }
                    return Ok(u64::try_from(partial.rejected_spans).unwrap_or(0));
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("context deadline exceeded"),
            };
            if !may_pass(failed.code()) || begun.elapsed() + pause >= EXPORT_MAX {
                return Err(failed);
            }
            // During shutdown there are no retries.
            if self.end.asked.run_until_cancelled(sleep(pause)).await.is_none() {
                return Err(failed);
            }
            pause = pause * 3 / 2;
        }
    }

    async fn call(&self, request: ExportTraceServiceRequest) -> Result<ExportTraceServiceResponse, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let path = PathAndQuery::from_static(EXPORT);
        let answer = grpc
            .unary(
                Request::new(request),
                path,
                ProstCodec::<ExportTraceServiceRequest, ExportTraceServiceResponse>::default(),
            )
            .await?;
        Ok(answer.into_inner())
    }
}

/// Returns a connection that is opened on its first use.
fn channel_to(target: Target) -> Result<Channel, String> {
    match target {
        Target::Uri(uri) => {
            let to = Endpoint::from_shared(uri).map_err(|e| e.to_string())?;
            Ok(to.connect_timeout(CALL_MAX).connect_lazy())
        }
        Target::Abstract(name) => {
            let to = Endpoint::from_static("http://localhost").connect_timeout(CALL_MAX);
            Ok(to.connect_with_connector_lazy(Abstract(name)))
        }
    }
}

/// Connects to an abstract Unix socket.
struct Abstract(String);

impl Service<Uri> for Abstract {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        // An abstract name begins with a zero byte. Systems without abstract names return an error.
        let name = format!("\0{}", self.0);
        Box::pin(async move { Ok(TokioIo::new(sockets::connect(Path::new(&name)).await?)) })
    }
}

/// Returns whether a retry may succeed after this code, according to the protocol.
fn may_pass(code: Code) -> bool {
    use Code::{Aborted, Cancelled, DataLoss, DeadlineExceeded, OutOfRange, Unavailable};
    matches!(code, Cancelled | DeadlineExceeded | Aborted | OutOfRange | Unavailable | DataLoss)
}
