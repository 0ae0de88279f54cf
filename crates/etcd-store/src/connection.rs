//! Calls to whichever member answers: reads are asked again, writes only where they certainly were not sent.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kelson_etcd::client::Client;
use kelson_etcd::proto;
use kelson_store::StoreError;
use parking_lot::RwLock;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::endpoint::{Connector, Endpoints};
use crate::metrics::Metrics;

/// How long a call may take, waiting for a connection included.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Largest answer: a page of the largest objects.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// How soon a connection that is dead without a word is found out (upstream's storage has the same).
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(10);
/// Window of a stream: a page is sent without waiting for each piece of it to be taken.
const WINDOW_BYTES: u32 = 4 << 20;

const ANY_KEY: &str = "health";

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The revision is not there any more.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// Etcd refused, or could not be asked. Nobody knows whether a write happened.
    #[error("{0}")]
    Failed(String),
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        Self::Elsewhere(error.to_string())
    }
}

/// A connection to one of the members at a time.
pub(crate) struct Connection {
    endpoints: Arc<Endpoints>,
    channel: RwLock<Channel>,
    metrics: Arc<Metrics>,
}

impl Connection {
    /// Connects when it is first used.
    pub fn new(endpoints: Endpoints, metrics: Arc<Metrics>) -> Self {
        let endpoints = Arc::new(endpoints);
        Self { channel: RwLock::new(channel(&endpoints)), endpoints, metrics }
    }

    /// A client of the member that is in use.
    pub fn client(&self) -> Client<Channel> {
        Client::new(self.channel.read().clone(), ANSWER_BYTES_MAX)
    }

    /// Uses another member from now on, where there is one.
    pub fn leave_member(&self) {
        if self.endpoints.len() > 1 {
            self.endpoints.next();
            *self.channel.write() = channel(&self.endpoints);
        }
    }

    /// A call that changes nothing: asked again until it is answered or [`CALL_MAX`] is over.
    pub async fn read<A, F>(&self, operation: &'static str, call: impl Fn(Client<Channel>) -> F) -> Result<A, CallError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        self.call(operation, call, may_be_repeated).await
    }

    /// A call that changes something: sent once.
    pub async fn write<A, F>(
        &self,
        operation: &'static str,
        call: impl Fn(Client<Channel>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        self.call(operation, call, was_not_sent).await
    }

    async fn call<A, F>(
        &self,
        operation: &'static str,
        call: impl Fn(Client<Channel>) -> F,
        again: fn(&Status) -> bool,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let begun = Instant::now();
        let attempts = async {
            loop {
                let status = match call(self.client()).await {
                    Ok(answer) => return Ok(answer),
                    Err(status) => status,
                };
                if !again(&status) || begun.elapsed() + PAUSE > CALL_MAX {
                    return Err(failed(&status));
                }
                self.leave_member();
                tokio::time::sleep(PAUSE).await;
            }
        };
        let done = match tokio::time::timeout(CALL_MAX, attempts).await {
            Ok(done) => done,
            Err(_) => Err(CallError::Failed("etcdserver: request timed out".to_owned())),
        };
        self.metrics.called(operation, begun.elapsed(), done.is_ok());
        done
    }

    /// The revision that etcd is at, by a read that no member answers from what it merely remembers.
    pub async fn revision(&self) -> Result<u64, CallError> {
        // A key that need not be there: what counts is in the answer's header.
        let request = proto::RangeRequest { key: ANY_KEY.into(), keys_only: true, ..Default::default() };
        let answer = self.range("get", request).await?;
        Ok(revision_of(answer.header.as_ref()))
    }

    /// Keys and values of a range.
    pub async fn range(
        &self,
        operation: &'static str,
        request: proto::RangeRequest,
    ) -> Result<proto::RangeResponse, CallError> {
        let call = |mut client: Client<Channel>| {
            let request = request.clone();
            async move { client.range(request).await }
        };
        self.read(operation, call).await
    }

    /// Sends a transaction, once.
    pub async fn txn(
        &self,
        operation: &'static str,
        request: proto::TxnRequest,
    ) -> Result<proto::TxnResponse, CallError> {
        let call = |mut client: Client<Channel>| {
            let request = request.clone();
            async move { client.txn(request).await }
        };
        self.write(operation, call).await
    }
}

fn channel(endpoints: &Arc<Endpoints>) -> Channel {
    // The connector knows the real address.
    Endpoint::from_static("http://etcd")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_MAX)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect_with_connector_lazy(Connector(Arc::clone(endpoints)))
}

/// The revision in an answer's header.
pub(crate) fn revision_of(header: Option<&proto::ResponseHeader>) -> u64 {
    header.map_or(0, |header| u64::try_from(header.revision).unwrap_or(0))
}

fn was_not_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn may_be_repeated(status: &Status) -> bool {
    status.code() == Code::Unavailable || was_not_sent(status)
}

fn failed(status: &Status) -> CallError {
    if status.code() == Code::OutOfRange && status.message().contains("compacted") {
        return CallError::Compacted;
    }
    let mut message = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    // What etcd itself says is shown as it is, what the transport says in the words of gRPC.
    let own = status.message().starts_with("etcdserver: ");
    CallError::Failed(if own { message } else { format!("rpc error: code = {:?} desc = {message}", status.code()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_is_told_as() {
        let told = |status: Status| failed(&status).to_string();
        assert_eq!(told(Status::unavailable("etcdserver: no leader")), "etcdserver: no leader");
        assert_eq!(told(Status::internal("x")), "rpc error: code = Internal desc = x");
        let gone = Status::out_of_range("etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(failed(&gone), CallError::Compacted));
        assert!(may_be_repeated(&Status::unavailable("x")) && !was_not_sent(&Status::unavailable("x")));
        let refused = tonic::ConnectError(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        assert!(was_not_sent(&Status::from_error(Box::new(refused))));
    }
}
