//! The way of spans to a collector: a bounded queue, batches, calls that are tried again (OTLP over gRPC, without TLS, as upstream
//! has it).
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

/// Spans that wait (as the next two, a default of OpenTelemetry's).
const QUEUE_MAX: usize = 2048;
/// Spans of one call.
const BATCH_MAX: usize = 512;
/// How long one batch may take, with all tries.
const EXPORT_MAX: Duration = Duration::from_secs(30);
/// How long one call may take.
const CALL_MAX: Duration = Duration::from_secs(10);
/// How long the last batches may take when the process ends.
const END_MAX: Duration = Duration::from_secs(2);
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Who upstream says records the spans.
const SCOPE: &str = "k8s.io/component-base/tracing";

/// Whose spans are sent, and where to.
pub struct ExporterOptions {
    /// What the operator says.
    pub configuration: TracingConfiguration,
    /// Who records: `service.name`, `service.instance.id`.
    pub resource: Vec<KeyValue>,
    /// Tells when spans begin.
    pub clock: Arc<dyn Clock>,
    /// When they are sent.
    pub pace: Pace,
    /// The task that sends belongs to it. It ends when [`Tracer::close`] asks, or with the tracer.
    pub tasks: Tasks,
}

/// What a batch waits for.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long one waits that is not full.
    pub batch_after: Duration,
    /// How long one waits that was refused; each pause after the first is half as long again.
    pub retry_after: Duration,
}

impl Default for Pace {
    /// OpenTelemetry's.
    fn default() -> Self {
        Self { batch_after: Duration::from_secs(5), retry_after: Duration::from_secs(5) }
    }
}

/// Sends spans to a collector.
pub struct Exporter {
    pace: Pace,
    channel: Channel,
    resource: Resource,
    end: End,
    spans: IntCounterVec,
}

impl Exporter {
    /// Starts one; the collector is connected to when there is something to send. What is counted is in the registry.
    ///
    /// # Errors
    /// The collector's name cannot be used.
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
        // Also where this panics: nobody shall wait for it.
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
        // What is recorded from now on finds nobody.
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

    /// Sends, again where that may help and there is time; answers how many spans were refused.
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
            // Whoever ends does not wait for better times.
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

/// A connection that is made when there is something to send.
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

/// Connects to the socket of a name that is no path.
struct Abstract(String);

impl Service<Uri> for Abstract {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        // What begins with a zero is no path; where the system has no such names it says so.
        let name = format!("\0{}", self.0);
        Box::pin(async move { Ok(TokioIo::new(sockets::connect(Path::new(&name)).await?)) })
    }
}

/// Whether a call that ended so may do better later, as the protocol says.
fn may_pass(code: Code) -> bool {
    use Code::{Aborted, Cancelled, DataLoss, DeadlineExceeded, OutOfRange, Unavailable};
    matches!(code, Cancelled | DeadlineExceeded | Aborted | OutOfRange | Unavailable | DataLoss)
}
