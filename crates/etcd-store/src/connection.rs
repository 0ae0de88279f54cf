//! Calls to whichever member answers: reads are asked again, writes only where they certainly were not sent.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kelson_etcd::client::Client;
use kelson_etcd::endpoint::{Connector, Endpoints};
use kelson_etcd::proto::{self, compare, request_op};
use kelson_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::metrics::Metrics;

/// The longest time that a call may take, including the wait for a connection.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause before a read is asked again that waited while etcd elected a leader. Etcd answers so when there is one.
const ELECTED_PAUSE: Duration = Duration::from_millis(5);
/// Largest answer: a page of the largest objects.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// The time after which a silently dead connection is detected, the same as in upstream's storage.
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
    /// Etcd is busy, has no leader or could not be reached. It is unknown whether a write took effect.
    #[error("{0}")]
    Failed(String),
    /// Etcd does not accept the call, such as one without permission. Another attempt has the same result.
    #[error("{0}")]
    Rejected(String),
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        Self::Elsewhere(error.to_string())
    }
}

/// The number of members that were left before the one in use; it identifies the connection that a call was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(usize);

/// A connection to one of the members at a time.
pub(crate) struct Connection {
    endpoints: Arc<Endpoints>,
    used: Mutex<(Turn, Channel)>,
    /// Notifies the users of long-lived connections that other calls have left the member.
    turns: watch::Sender<Turn>,
    metrics: Arc<Metrics>,
}

impl Connection {
    /// Connects when it is first used.
    pub fn new(endpoints: Endpoints, metrics: Arc<Metrics>) -> Self {
        let (endpoints, first) = (Arc::new(endpoints), Turn(0));
        let used = Mutex::new((first, channel(&endpoints, first)));
        Self { used, endpoints, turns: watch::Sender::new(first), metrics }
    }

    /// A client of the member that is in use, and which turn that is.
    pub fn client(&self) -> (Client<Channel>, Turn) {
        let (turn, channel) = self.used.lock().clone();
        (Client::new(channel, ANSWER_BYTES_MAX), turn)
    }

    /// Moves on to another member, if there is one, because the member of this turn has failed. Of several calls that
    /// failed together, only the first one moves on.
    pub fn leave(&self, failed: Turn) {
        let mut used = self.used.lock();
        if self.endpoints.len() < 2 || used.0 != failed {
            return;
        }
        let next = Turn(failed.0.wrapping_add(1));
        *used = (next, channel(&self.endpoints, next));
        tracing::info!(member = %self.endpoints.name(next.0), "switched to another etcd member");
        drop(used);
        self.turns.send_replace(next);
    }

    /// Resolves when the member of this turn is in use no more.
    pub async fn left(&self, turn: Turn) {
        let mut turns = self.turns.subscribe();
        // The sender lives as long as this.
        let _ = turns.wait_for(|now| *now != turn).await;
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
        let done = loop {
            let (client, turn) = self.client();
            let left = CALL_MAX.saturating_sub(begun.elapsed());
            let status = match tokio::time::timeout(left, call(client)).await {
                Ok(Ok(answer)) => break Ok(answer),
                Ok(Err(status)) => status,
                Err(_) => {
                    self.leave(turn);
                    break Err(CallError::Failed("etcdserver: request timed out".to_owned()));
                }
            };
            let has_elected = has_elected(&status);
            if may_be_repeated(&status) && !has_elected {
                self.leave(turn);
            }
            if !again(&status) || begun.elapsed() + PAUSE > CALL_MAX {
                break Err(failed(&status));
            }
            tokio::time::sleep(if has_elected { ELECTED_PAUSE } else { PAUSE }).await;
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

fn channel(endpoints: &Arc<Endpoints>, turn: Turn) -> Channel {
    // The connector knows the real address.
    Endpoint::from_static("http://etcd")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_MAX)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect_with_connector_lazy(Connector::new(endpoints, turn.0))
}

/// The revision in an answer's header.
pub(crate) fn revision_of(header: Option<&proto::ResponseHeader>) -> u64 {
    header.map_or(0, |header| u64::try_from(header.revision).unwrap_or(0))
}

/// Returns a transaction that applies `op` if the key is at this revision, where 0 means that the key does not exist.
///
/// Servers other than etcd (kine) accept exactly the transactions that upstream's client sends
/// (`client/v3/kubernetes`): a create has no other branch, and an update or a deletion reads the key there.
pub(crate) fn when_at(name: &Bytes, revision: u64, op: request_op::Request) -> proto::TxnRequest {
    let revision = i64::try_from(revision).unwrap_or(i64::MAX);
    let is_create = revision == 0 && matches!(op, request_op::Request::RequestPut(_));
    let read = || {
        let range = proto::RangeRequest { key: name.clone(), ..Default::default() };
        proto::RequestOp { request: Some(request_op::Request::RequestRange(range)) }
    };
    proto::TxnRequest {
        compare: vec![proto::Compare {
            key: name.clone(),
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Mod as i32,
            target_union: Some(compare::TargetUnion::ModRevision(revision)),
            ..Default::default()
        }],
        success: vec![proto::RequestOp { request: Some(op) }],
        failure: if is_create { Vec::new() } else { vec![read()] },
    }
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

/// Reports whether a call failed because the cluster has elected another leader meanwhile. The member is in order.
fn has_elected(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.message() == "etcdserver: leader changed"
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
    let text = if own { message } else { format!("rpc error: code = {:?} desc = {message}", status.code()) };
    match status.code() {
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented => {
            CallError::Rejected(text)
        }
        _ => CallError::Failed(text),
    }
}

#[cfg(test)]
mod tests {
    use kelson_etcd::endpoint::ClientTlsFiles as TlsFiles;

    use super::*;

    fn connection(members: &[&str]) -> Connection {
        let members: Vec<String> = members.iter().map(|url| (*url).to_owned()).collect();
        Connection::new(Endpoints::new(&members, &TlsFiles::default()).unwrap(), Arc::new(Metrics::new()))
    }

    #[tokio::test]
    async fn a_member_is_left_once_by_all_whose_calls_failed_there() {
        let connection = connection(&["http://a:1", "http://b:1"]);
        let (_, first) = connection.client();
        let waits = connection.left(first);
        for _ in 0..2 {
            connection.leave(first);
        }
        let (_, second) = connection.client();
        assert_eq!(second, Turn(1), "two that failed together do not lead back to where they failed");
        waits.await;
        connection.leave(second);
        assert_eq!(connection.client().1, Turn(2), "the first may be well again");
    }

    #[tokio::test]
    async fn the_only_member_is_not_left() {
        let connection = connection(&["http://a:1"]);
        let (_, only) = connection.client();
        connection.leave(only);
        assert_eq!(connection.client().1, only);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_during_an_election_is_asked_again_there_and_at_once() {
        let connection = connection(&["http://a:1", "http://b:1"]);
        let (asked, begun) = (std::cell::Cell::new(0), tokio::time::Instant::now());
        let read = connection.read("get", |_| {
            asked.set(asked.get() + 1);
            let is_first = asked.get() == 1;
            async move { if is_first { Err(Status::unavailable("etcdserver: leader changed")) } else { Ok(7) } }
        });
        assert_eq!(read.await.unwrap(), 7);
        assert_eq!(connection.client().1, Turn(0), "the member is not left");
        assert!(begun.elapsed() < PAUSE, "{:?}", begun.elapsed());
    }

    #[test]
    fn each_failure_has_its_status() {
        let reported = |status: Status| failed(&status).to_string();
        assert_eq!(reported(Status::unavailable("etcdserver: no leader")), "etcdserver: no leader");
        assert_eq!(reported(Status::internal("x")), "rpc error: code = Internal desc = x");
        let gone = Status::out_of_range("etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(failed(&gone), CallError::Compacted));
        let busy = Status::resource_exhausted("etcdserver: too many requests");
        assert!(matches!(failed(&busy), CallError::Failed(_)), "another attempt can succeed");
        let denied = Status::permission_denied("etcdserver: permission denied");
        assert!(matches!(failed(&denied), CallError::Rejected(_)));
        assert!(may_be_repeated(&Status::unavailable("x")) && !was_not_sent(&Status::unavailable("x")));
        let refused = tonic::ConnectError(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        assert!(was_not_sent(&Status::from_error(Box::new(refused))));
    }
}
