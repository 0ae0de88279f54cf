//! Connections to one server, as many as its streams need. A server limits the streams of an HTTP/2 connection, to a
//! hundred for upstream's API server, and watches never end: further requests on a single connection would wait without
//! end.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connector::TlsConnector;

/// A dead HTTP/2 connection is noticed after this plus [`PING_TIMEOUT`].
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The timeout of a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// The same where there is another server. One that does not answer at all is noticed sooner, by the monitor; this
/// finds a connection that alone is dead.
const CHOICE_PING_INTERVAL: Duration = Duration::from_secs(10);
const CHOICE_PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Streams on one connection; less than any server in use allows.
const STREAMS_MAX: usize = 80;

/// Sends requests over a connection that it keeps.
pub(super) type HttpPool = Client<TlsConnector, Full<Bytes>>;

/// A request's place; free again when the last of its clones is dropped.
#[derive(Clone, Debug)]
pub(super) struct PoolSlot(#[allow(dead_code, reason = "held, never read: that it is there is what counts")] Arc<()>);

/// Pools that each hold one connection of HTTP/2.
pub(super) struct Pools {
    connector: TlsConnector,
    pools: Vec<(HttpPool, Arc<()>)>,
}

impl Pools {
    /// Creates a pool without connections.
    pub fn new(connector: TlsConnector) -> Self {
        Self { connector, pools: Vec::new() }
    }

    /// Has later requests use other connections. Those that are open end after their last answer.
    pub fn renew(&mut self) {
        self.pools.clear();
    }

    /// Returns the number of connections.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.pools.len()
    }

    /// The first pool with a place, and the place.
    pub fn take(&mut self) -> (HttpPool, PoolSlot) {
        let free = |(_, taken): &&(HttpPool, Arc<()>)| Arc::strong_count(taken) <= STREAMS_MAX;
        let (pool, taken) = match self.pools.iter().find(free) {
            Some(found) => found.clone(),
            None => {
                let made = (pool(self.connector.clone()), Arc::new(()));
                self.pools.push(made.clone());
                made
            }
        };
        (pool, PoolSlot(taken))
    }
}

fn pool(connector: TlsConnector) -> HttpPool {
    let (interval, timeout) = match connector.has_choice() {
        true => (CHOICE_PING_INTERVAL, CHOICE_PING_TIMEOUT),
        false => (PING_INTERVAL, PING_TIMEOUT),
    };
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(interval)
        .http2_keep_alive_timeout(timeout)
        .build(connector)
}
