//! The time for which a leader may write. A process that was paused does not know yet that another one became leader,
//! and a component needs time to stop. Their writes are rejected here, by this machine's monotonic clock.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kelson_client::leader::{LEASE, Times};
use kelson_client::{BoxFuture, Request, Response, Transport, TransportError};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The term of one leader. Another candidate acquires a lease not before it has been unchanged for the duration in it.
/// So a leader may write for that duration after it sent the last request that renewed the lease.
#[derive(Clone)]
pub struct Term(Option<Arc<Lease>>);

struct Lease {
    duration: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    until: Option<Instant>,
    ended: bool,
}

impl Term {
    /// A term without an election, in which all writes are allowed.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// A term that begins with the first renewal of a lease.
    pub fn of(times: Times) -> Self {
        // The lease has its duration in whole seconds.
        let duration = Duration::from_secs(times.lease.as_secs());
        Self(Some(Arc::new(Lease { duration, state: Mutex::default() })))
    }

    /// Returns the transport for the candidate, whose successful writes extend the term.
    pub fn observe(&self, transport: Arc<dyn Transport>) -> Arc<dyn Transport> {
        match &self.0 {
            Some(lease) => Arc::new(Observed { lease: Arc::clone(lease), transport }),
            None => transport,
        }
    }

    /// Returns the transport for the component, whose writes fail outside of the term.
    pub fn guard(&self, transport: Arc<dyn Transport>) -> Arc<dyn Transport> {
        match &self.0 {
            Some(lease) => Arc::new(Guarded { lease: Arc::clone(lease), transport }),
            None => transport,
        }
    }

    /// Returns for how long the leader may still act; zero outside of the term.
    pub fn remaining(&self) -> Duration {
        let Some(lease) = &self.0 else { return LEASE };
        let state = lease.state.lock();
        let until = state.until.filter(|_| !state.ended);
        until.map(|until| until.saturating_duration_since(Instant::now())).unwrap_or_default()
    }

    /// Ends the term now.
    pub fn end(&self) {
        if let Some(lease) = &self.0 {
            lease.state.lock().ended = true;
        }
    }
}

impl Lease {
    fn extend(&self, sent: Instant) {
        let until = sent + self.duration;
        let mut state = self.state.lock();
        state.until = state.until.max(Some(until));
    }

    fn is_held(&self) -> bool {
        let state = self.state.lock();
        !state.ended && state.until.is_some_and(|until| Instant::now() < until)
    }
}

fn writes(request: &Request) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD)
}

struct Observed {
    lease: Arc<Lease>,
    transport: Arc<dyn Transport>,
}

impl Transport for Observed {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let (lease, writes, sent) = (Arc::clone(&self.lease), writes(&request), Instant::now());
        let answer = self.transport.send(request);
        Box::pin(async move {
            let answer = answer.await?;
            if writes && answer.status().is_success() {
                lease.extend(sent);
            }
            Ok(answer)
        })
    }
}

struct Guarded {
    lease: Arc<Lease>,
    transport: Arc<dyn Transport>,
}

impl Transport for Guarded {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        if writes(&request) && !self.lease.is_held() {
            let why = TransportError("this server does not hold the leader election lease".to_owned());
            return Box::pin(std::future::ready(Err(why)));
        }
        self.transport.send(request)
    }
}
