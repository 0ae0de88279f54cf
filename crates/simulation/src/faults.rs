//! Requests that fail as a network and a busy server make them fail, at a rate and by a seed.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body::Frame;
use http_body_util::BodyExt as _;
use kelson_transport::{Body, BoxFuture, Request, Response, Transport, TransportError, full_body};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Sleep;

use crate::Trace;

/// Longest pause of a slow request.
const SLOW_MAX: Duration = Duration::from_secs(5);
/// A watch that is to be cut is cut after so many frames or so long at the latest.
const CUT_FRAMES_MAX: u32 = 40;
const CUT_AFTER_MAX: Duration = Duration::from_secs(60);

/// How likely each fault is for one request, from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// The request never arrives.
    pub refused: f64,
    /// The request is carried out, its answer is lost.
    pub lost_answer: f64,
    /// The server is busy: 429, 500, 503 or 504.
    pub unavailable: f64,
    /// A write meets somebody else's: 409.
    pub conflict: f64,
    /// The request takes its time.
    pub slow: f64,
    /// A watch ends early: between two events, or inside one.
    pub cut: f64,
    /// One call of the container runtime fails.
    pub runtime: f64,
}

impl Rates {
    /// A bad day: about one request in ten has a fault.
    pub const BAD: Self = Self {
        refused: 0.02,
        lost_answer: 0.02,
        unavailable: 0.03,
        conflict: 0.03,
        slow: 0.05,
        cut: 0.5,
        runtime: 0.05,
    };
}

struct State {
    rng: StdRng,
    rates: Rates,
}

/// Decides which requests fail; cheap to clone, all clones draw from one seed.
#[derive(Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    trace: Trace,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Refused,
    LostAnswer,
    Answer(u16, &'static str),
    Slow(Duration),
}

impl Faults {
    /// No faults yet. What becomes of each request goes to `trace`.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let state = State { rng: StdRng::seed_from_u64(seed), rates: Rates::default() };
        Self { state: Arc::new(Mutex::new(state)), trace }
    }

    /// From now on faults happen at these rates; the default ends them.
    pub fn set(&self, rates: Rates) {
        self.state.lock().rates = rates;
    }

    /// A transport that fails in the place of `inner` at times. `who` names the component in the trace.
    pub fn wrap(&self, who: &str, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(FaultyTransport { who: who.into(), inner, faults: self.clone() })
    }

    /// Whether this call of the container runtime fails.
    pub fn runtime_fails(&self) -> bool {
        let mut s = self.state.lock();
        let rate = s.rates.runtime;
        s.rng.random_bool(rate)
    }

    fn draw(&self, method: &Method) -> Option<Fault> {
        let State { rng, rates } = &mut *self.state.lock();
        if rng.random_bool(rates.refused) {
            return Some(Fault::Refused);
        }
        if rng.random_bool(rates.lost_answer) {
            return Some(Fault::LostAnswer);
        }
        if rng.random_bool(rates.unavailable) {
            let all = [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")];
            let (code, reason) = all[rng.random_range(0..all.len())];
            return Some(Fault::Answer(code, reason));
        }
        if matches!(*method, Method::PUT | Method::PATCH) && rng.random_bool(rates.conflict) {
            return Some(Fault::Answer(409, "Conflict"));
        }
        rng.random_bool(rates.slow).then(|| Fault::Slow(SLOW_MAX.mul_f64(rng.random())))
    }

    fn cut(&self) -> Option<(u32, Duration, bool)> {
        let State { rng, rates } = &mut *self.state.lock();
        let rate = rates.cut;
        rng.random_bool(rate)
            .then(|| (rng.random_range(0..CUT_FRAMES_MAX), CUT_AFTER_MAX.mul_f64(rng.random()), rng.random()))
    }
}

/// See [`Faults::wrap`].
pub struct FaultyTransport {
    who: Arc<str>,
    inner: Arc<dyn Transport>,
    faults: Faults,
}

impl Transport for FaultyTransport {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let (who, inner, faults) = (Arc::clone(&self.who), Arc::clone(&self.inner), self.faults.clone());
        Box::pin(async move {
            let what = format!("{} {}", request.method(), request.uri());
            let watch = request.uri().query().is_some_and(|q| q.contains("watch=true"));
            let fault = faults.draw(request.method());
            match fault {
                Some(Fault::Refused) => {
                    faults.trace.note(&who, format_args!("{what} -> refused"));
                    return Err(TransportError("simulated: connection refused".into()));
                }
                Some(Fault::Answer(code, reason)) => {
                    faults.trace.note(&who, format_args!("{what} -> simulated {code}"));
                    return Ok(status(code, reason));
                }
                Some(Fault::Slow(pause)) => tokio::time::sleep(pause).await,
                Some(Fault::LostAnswer) | None => {}
            }
            let body = request.body().clone();
            let answer = inner.send(request).await;
            let code = answer.as_ref().map_or(0, |a| a.status().as_u16());
            faults.trace.note(&who, format_args!("{what} -> {code}"));
            if !body.is_empty() {
                faults.trace.detail(&body);
            }
            if matches!(fault, Some(Fault::LostAnswer)) {
                return Err(TransportError("simulated: connection reset".into()));
            }
            match faults.cut().filter(|_| watch) {
                Some((frames, after, inside)) => answer.map(|a| a.map(|body| Cut::after(body, frames, after, inside))),
                None => answer,
            }
        })
    }
}

fn status(code: u16, reason: &str) -> Response {
    let body = serde_json::json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": reason, "message": "simulated"});
    let mut response = Response::new(full_body(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).expect("a status code");
    response
}

/// A body that ends early.
struct Cut {
    inner: Body,
    frames: u32,
    at: Pin<Box<Sleep>>,
    inside: bool,
    ended: bool,
}

impl Cut {
    fn after(inner: Body, frames: u32, after: Duration, inside: bool) -> Body {
        let at = Box::pin(tokio::time::sleep(after));
        Self { inner, frames, at, inside, ended: false }.boxed_unsync()
    }
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = TransportError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        if self.ended || self.at.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) if self.frames == 0 => {
                self.ended = true;
                match frame.into_data() {
                    Ok(data) if self.inside => Poll::Ready(Some(Ok(Frame::data(data.slice(..data.len() / 2))))),
                    _ => Poll::Ready(Some(Err(TransportError("simulated: connection reset".into())))),
                }
            }
            Poll::Ready(Some(Ok(frame))) => {
                self.frames -= 1;
                Poll::Ready(Some(Ok(frame)))
            }
            other => other,
        }
    }
}
