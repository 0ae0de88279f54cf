//! The client for webhooks: one pool of connections per target, a limit of concurrent calls, timeouts and size limits.
use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kelson_tasks::FILES;
use kelson_traces::KeyValue;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::answer;
use crate::connect::{Connector, ServiceResolver};
use crate::credentials::Credentials;
use crate::error::CallError;
use crate::own::{self, OwnServer};
use crate::target::{Location, Target};
use crate::tls::{Protocols, client_config};

/// The maximum number of targets in the cache. The least recently used target is dropped for a new one.
const TARGETS_MAX: usize = 200;
/// The maximum number of concurrent calls to one target. It also limits the connections, together with the idle ones.
const CALLS_MAX: usize = 100;
/// The maximum number of idle connections that are kept for each target.
const IDLE_MAX: usize = 25;
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// The interval after which credentials in files are read again.
const REREAD_AFTER: Duration = Duration::from_secs(60);
/// The maximum size of a request body in bytes. Two objects of the API's maximum size fit.
const REQUEST_BYTES_MAX: usize = 16 << 20;
/// The `User-Agent` of upstream's calls to webhooks.
const USER_AGENT: HeaderValue = HeaderValue::from_static("kube-apiserver-admission");

/// A POST request with a JSON body.
#[derive(Clone, Debug)]
pub struct Call {
    /// The request body as JSON.
    pub body: Bytes,
    /// The timeout of the whole call. The server receives it in whole seconds (`?timeout=10s`).
    pub timeout: Duration,
    /// The maximum size of the response body in bytes.
    pub answer_bytes_max: usize,
}

/// The client that calls webhooks. A process needs only one: it caches connections and TLS configuration per target,
/// limits concurrent calls, sizes and times, and reads credentials from files again at intervals. Targets are compared
/// by their whole configuration, so a changed CA bundle takes effect with the next call.
pub struct WebhookClient {
    resolver: Arc<dyn ServiceResolver>,
    credentials: Credentials,
    /// The API server itself, for webhooks that it serves through aggregation.
    own: Option<Arc<dyn OwnServer>>,
    /// The cached targets, ordered by use: the most recently used target is last.
    targets: Mutex<Vec<Arc<TargetState>>>,
}

/// The state of one target: its connection pool and TLS configuration.
struct TargetState {
    target: Target,
    pool: Pool<Connector, Full<Bytes>>,
    url: Uri,
    authorization: Option<HeaderValue>,
    calls: Semaphore,
    made: Instant,
    reread: bool,
}

impl WebhookClient {
    /// Creates a client that resolves services with `resolver` and authenticates with `credentials`.
    pub fn new(resolver: Arc<dyn ServiceResolver>, credentials: Credentials) -> Self {
        Self { resolver, credentials, own: None, targets: Mutex::default() }
    }

    /// Sets the server that answers calls to `kubernetes.default.svc` within the process.
    pub fn with_own_server(self, own: Arc<dyn OwnServer>) -> Self {
        Self { own: Some(own), ..self }
    }

    /// Sends a call and returns the body of a successful response. The connection pool belongs to the whole target, so
    /// a changed target (for example a new CA bundle) takes effect with the next call.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(&self, target: &Target, call: Call) -> Result<Bytes, CallError> {
        let late = |url: &Uri| {
            CallError::Timeout(format!("Post \"{}\": context deadline exceeded", with_timeout(url, call.timeout)))
        };
        if let Some((own, path)) = self.own.as_ref().zip(own::path(target)) {
            return self.call_own(own.as_ref(), &path, call).await;
        }
        let begun = tokio::time::Instant::now();
        let known = tokio::time::timeout(call.timeout, self.known(target)).await;
        let known = known.map_err(|_| CallError::Timeout("context deadline exceeded".to_owned()))??;
        let left = call.timeout.saturating_sub(begun.elapsed());
        match tokio::time::timeout(left, known.exchange(&call)).await {
            Ok(answer) => answer,
            Err(_) => Err(late(&known.url)),
        }
    }

    async fn call_own(&self, own: &dyn OwnServer, path: &str, call: Call) -> Result<Bytes, CallError> {
        let uri: Uri = path.parse().map_err(|e| CallError::Configuration(format!("Unparsable URL: {e}")))?;
        let path = with_timeout(&uri, call.timeout);
        let failed = |why: &str| format!("Post \"{path}\": {why}");
        let answer = own.post(path.clone(), call.body, call.answer_bytes_max);
        match tokio::time::timeout(call.timeout, answer).await {
            Err(_) => Err(CallError::Timeout(failed("context deadline exceeded"))),
            Ok(Err(why)) => Err(CallError::Transport(failed(&why))),
            Ok(Ok(answer)) => {
                let (head, body) = answer.into_parts();
                answer::judge(head.status, &head.headers, body)
            }
        }
    }

    async fn known(&self, target: &Target) -> Result<Arc<TargetState>, CallError> {
        {
            let mut targets = self.targets.lock();
            if let Some(at) = targets.iter().position(|k| k.target == *target) {
                let known = targets.remove(at);
                if !known.reread || known.made.elapsed() < REREAD_AFTER {
                    targets.push(Arc::clone(&known));
                    return Ok(known);
                }
            }
        }
        let known = Arc::new(self.open(target).await.map_err(CallError::Configuration)?);
        let mut targets = self.targets.lock();
        // Another call may have created the entry meanwhile. All calls to a target share one entry and its limit.
        if let Some(there) = targets.iter().find(|k| k.target == *target) {
            return Ok(Arc::clone(there));
        }
        if targets.len() == TARGETS_MAX {
            targets.remove(0);
        }
        targets.push(Arc::clone(&known));
        Ok(known)
    }

    async fn open(&self, target: &Target) -> Result<TargetState, String> {
        let url = target.url()?;
        let host = url.host().unwrap_or_default();
        let user = self.credentials.of(host, url.port_u16().unwrap_or(443)).cloned();
        let reread = user.as_ref().is_some_and(crate::credentials::User::has_files);
        let protocols = if is_local(target, host) { Protocols::Http2 } else { Protocols::Http1 };
        let bundle = target.ca_bundle.clone();
        let read = FILES.run(move || {
            let authorization = match &user {
                Some(user) => user.authorization()?,
                None => None,
            };
            Ok::<_, String>((client_config(&bundle, user.as_ref(), protocols)?, authorization))
        });
        let (tls, authorization) = read.await.map_err(|e| e.to_string())??;
        let connector = Connector::new(&target.location, &url, Arc::clone(&self.resolver), tls)?;
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .http2_max_header_list_size(16 << 10)
            .build(connector);
        let calls = Semaphore::new(CALLS_MAX);
        Ok(TargetState { target: target.clone(), pool, url, authorization, calls, made: Instant::now(), reread })
    }
}

/// Returns whether the target is on this machine. Local servers are called over HTTP/2, because their calls need no
/// spreading over endpoints.
fn is_local(target: &Target, host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    matches!(target.location, Location::Url(_))
        && (host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.is_loopback()))
}

/// Returns the URL of a call with its timeout, rounded to whole seconds and never shortened.
fn with_timeout(url: &Uri, timeout: Duration) -> String {
    let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
    let after = if url.query().is_some() { '&' } else { '?' };
    format!("{url}{after}timeout={}", go_duration(seconds))
}

/// Formats whole seconds as Go formats a duration: 90 becomes `1m30s`.
fn go_duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

impl TargetState {
    async fn exchange(&self, call: &Call) -> Result<Bytes, CallError> {
        let url = with_timeout(&self.url, call.timeout);
        let failed = |why: String| CallError::Transport(format!("Post \"{url}\": {why}"));
        if call.body.len() > REQUEST_BYTES_MAX {
            return Err(failed(format!("the request is larger than {REQUEST_BYTES_MAX} bytes")));
        }
        // The semaphore is never closed: it lives as long as this value.
        let _place = self.calls.acquire().await.map_err(|e| failed(e.to_string()))?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(url.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, USER_AGENT)
            .body(Full::new(call.body.clone()))
            .map_err(|e| failed(e.to_string()))?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        let span = kelson_traces::client("HTTP POST", || {
            vec![KeyValue::text("http.request.method", "POST"), KeyValue::text("url.full", url.as_str())]
        });
        span.pass_on(request.headers_mut());
        let response = self.pool.request(request).await.map_err(|e| {
            span.fail(&cause(&e));
            failed(cause(&e))
        })?;
        let (head, body) = response.into_parts();
        span.set(|| vec![KeyValue::number("http.response.status_code", head.status.as_u16())]);
        if head.status.as_u16() >= 400 {
            span.fail("");
        }
        let body = read(Response::new(body), call.answer_bytes_max).await?;
        answer::judge(head.status, &head.headers, body)
    }
}

/// Reads a response body up to the size limit.
pub(crate) async fn read(response: Response<Incoming>, bytes_max: usize) -> Result<Bytes, CallError> {
    const BROKEN: &str = "unexpected error when reading response body. Please retry. Original error:";
    let mut body = response.into_body();
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| {
            let why = if e.is_incomplete_message() { "unexpected EOF".to_owned() } else { innermost(&e) };
            CallError::Transport(format!("{BROKEN} {why}"))
        })?;
        if let Some(data) = frame.data_ref() {
            if read.len() + data.len() > bytes_max {
                return Err(CallError::Transport(format!("{BROKEN} response body is larger than {bytes_max} bytes")));
            }
            read.extend_from_slice(data);
        }
    }
    Ok(read.freeze())
}

/// Describes shortly why the pool failed. The message of hyper names only the step that failed.
pub(crate) fn cause(error: &PoolError) -> String {
    let hyper = error.source().and_then(|e| e.downcast_ref::<hyper::Error>());
    match hyper {
        Some(e) if e.is_incomplete_message() || e.is_closed() || e.is_canceled() => "EOF".to_owned(),
        _ if ends_early(error) => "EOF".to_owned(),
        _ => innermost(error),
    }
}

/// Returns whether the server closed the connection before the response was complete. TLS has a separate error for
/// this.
fn ends_early(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|e| e.kind() == std::io::ErrorKind::UnexpectedEof) {
            return true;
        }
        next = error.source();
    }
    false
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_receives_the_timeout() {
        let reported = |url: &str, ms| with_timeout(&url.parse().unwrap(), Duration::from_millis(ms));
        assert_eq!(reported("https://h/p", 10_000), "https://h/p?timeout=10s");
        assert_eq!(reported("https://h/p?a=b", 9_001), "https://h/p?a=b&timeout=10s");
        assert_eq!(reported("https://h", 60_000), "https://h/?timeout=1m0s");
    }
}
