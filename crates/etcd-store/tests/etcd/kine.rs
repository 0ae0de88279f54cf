//! A store on what is not etcd: kine (the storage of k3s on SQL databases and NATS) answers the requests that upstream's API server
//! sends, and no others. A proxy before a real etcd rejects what kine 0.17 rejects (`pkg/server`), and reports progress as kine does on
//! NATS, where it does.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kelson_etcd::proto::{
    PutRequest, RangeRequest, RequestOp, StatusResponse, TxnRequest, compare, method, request_op,
};
use kelson_etcd_store::{EtcdOptions, EtcdStore};
use kelson_store::{PortChange, Precondition, StoreError, Write};
use prost::Message as _;
use tokio::net::{UnixListener, UnixStream};

use super::fixture::{Etcd, client, create, key, lines, options, resource, shown, until, update};

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// gRPC's head of a message: whether it is compressed, and its length.
const MESSAGE_HEAD_BYTES: usize = 5;
/// Requests that kine has no answer for.
const UNSUPPORTED: [&str; 11] = [
    method::DELETE_RANGE,
    method::LEASE_REVOKE,
    method::LEASE_KEEP_ALIVE,
    method::LEASE_TIME_TO_LIVE,
    method::LEASE_LEASES,
    method::ALARM,
    method::DEFRAGMENT,
    method::HASH,
    method::HASH_KV,
    method::SNAPSHOT,
    method::MOVE_LEADER,
];

enum Op {
    Put,
    Range,
    Delete,
    Other,
}

fn ops(list: &[RequestOp]) -> Vec<Op> {
    let op = |op: &RequestOp| match op.request {
        Some(request_op::Request::RequestPut(_)) => Op::Put,
        Some(request_op::Request::RequestRange(_)) => Op::Range,
        Some(request_op::Request::RequestDeleteRange(_)) => Op::Delete,
        _ => Op::Other,
    };
    list.iter().map(op).collect()
}

/// Whether a transaction is one of the four that kine knows.
fn is_known(txn: &TxnRequest) -> bool {
    let (success, failure) = (ops(&txn.success), ops(&txn.failure));
    let equal = |target: compare::CompareTarget| {
        let [one] = &txn.compare[..] else { return false };
        one.result == compare::CompareResult::Equal as i32 && one.target == target as i32
    };
    let at_revision = |revision: i64| {
        let union = txn.compare.first().and_then(|one| one.target_union.as_ref());
        matches!(union, Some(compare::TargetUnion::ModRevision(at)) if *at == revision)
    };
    let by_revision = equal(compare::CompareTarget::Mod);
    match (&success[..], &failure[..]) {
        ([Op::Put], []) => by_revision && at_revision(0),
        ([Op::Put], [Op::Range]) => by_revision || equal(compare::CompareTarget::Version),
        ([Op::Delete], [Op::Range]) => by_revision,
        ([Op::Range, Op::Delete], []) => txn.compare.is_empty(),
        _ => false,
    }
}

fn is_plain(range: &RangeRequest) -> bool {
    let RangeRequest { key, range_end, limit, revision, keys_only, count_only, .. } = range.clone();
    // Any other field that is set is rejected.
    let plain = RangeRequest { key, range_end, limit, revision, keys_only, count_only, ..RangeRequest::default() };
    plain == *range && (!plain.range_end.is_empty() || limit <= 1)
}

fn answers(path: &str, message: &[u8]) -> bool {
    match path {
        method::TXN => is_known(&TxnRequest::decode(message).unwrap()),
        method::RANGE => is_plain(&RangeRequest::decode(message).unwrap()),
        path => !UNSUPPORTED.contains(&path),
    }
}

fn refused() -> Response<Body> {
    let empty = Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync();
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", "3")
        .header("grpc-message", "etcdserver: unsupported operations in txn request")
        .body(empty)
        .unwrap()
}

/// The storage of the data that kine serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Sql,
    /// A deletion takes two revisions. No event has the second one, and no request for progress is answered while it is the newest.
    Nats,
}

/// A release that reports progress, which the etcd of the test need not be.
fn with_progress(status: &[u8]) -> Bytes {
    let mut status = StatusResponse::decode(&status[MESSAGE_HEAD_BYTES..]).unwrap();
    status.version = "3.6.11".to_owned();
    let message = status.encode_to_vec();
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend(message);
    bytes.into()
}

/// The first message of a watch, which creates it; the others ask for progress.
fn without_questions(body: Incoming) -> Body {
    let mut first = true;
    let filtered = body.map_frame(move |frame| {
        let is_first = std::mem::replace(&mut first, false);
        if is_first || !frame.is_data() { frame } else { hyper::body::Frame::data(Bytes::new()) }
    });
    filtered.boxed_unsync()
}

async fn answer(
    request: Request<Incoming>,
    etcd: (hyper::client::conn::http2::SendRequest<Body>, &Path),
    backend: Backend,
    refusals: &AtomicUsize,
) -> Result<Response<Body>, hyper::Error> {
    let (mut sender, socket) = etcd;
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let mut deletes = false;
    let body = match &*path {
        // Its request never ends.
        method::WATCH if backend == Backend::Nats => without_questions(body),
        method::WATCH => body.boxed_unsync(),
        path => {
            let bytes = body.collect().await?.to_bytes();
            let message = bytes.get(MESSAGE_HEAD_BYTES..).unwrap_or_default();
            if !answers(path, message) {
                refusals.fetch_add(1, Ordering::SeqCst);
                return Ok(refused());
            }
            deletes = path == method::TXN
                && ops(&TxnRequest::decode(message).unwrap().success).iter().any(|op| matches!(op, Op::Delete));
            Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
        }
    };
    let response = sender.send_request(Request::from_parts(head, body)).await?;
    if backend == Backend::Sql || path == method::WATCH {
        return Ok(response.map(|body| body.boxed_unsync()));
    }
    let (head, body) = response.into_parts();
    let whole = body.collect().await?;
    let trailers = whole.trailers().cloned();
    let mut bytes = whole.to_bytes();
    if path == method::STATUS {
        bytes = with_progress(&bytes);
    }
    if deletes {
        let put = PutRequest { key: "elsewhere".into(), value: "tombstone".into(), ..Default::default() };
        client(socket).put(put).await.unwrap();
    }
    let body = Full::new(bytes).with_trailers(std::future::ready(trailers.map(Ok)));
    Ok(Response::from_parts(head, body.map_err(|never| match never {}).boxed_unsync()))
}

/// Serves at `listener` what kine would answer, by the etcd at the socket. Counts the rejected requests.
async fn serve(listener: UnixListener, etcd: PathBuf, backend: Backend, refusals: Arc<AtomicUsize>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(upstream) = UnixStream::connect(&etcd).await else { continue };
        let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(upstream)).await;
        let (sender, connection) = connected.unwrap();
        tokio::spawn(connection);
        let (refusals, etcd) = (Arc::clone(&refusals), etcd.clone());
        let service = service_fn(move |request| {
            let (sender, etcd, refusals) = (sender.clone(), etcd.clone(), Arc::clone(&refusals));
            async move { answer(request, (sender, &etcd), backend, &refusals).await }
        });
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
    }
}

/// The address of a proxy in front of etcd that behaves like kine, and the number of its rejections.
fn kine(dir: &Path, etcd: &Etcd, backend: Backend) -> (String, Arc<AtomicUsize>) {
    let socket = dir.join("kine");
    let listener = UnixListener::bind(&socket).unwrap();
    let refusals = Arc::new(AtomicUsize::new(0));
    let upstream = etcd.address().trim_start_matches("unix://").into();
    tokio::spawn(serve(listener, upstream, backend, Arc::clone(&refusals)));
    (format!("unix://{}", socket.display()), refusals)
}

#[tokio::test(flavor = "multi_thread")]
async fn kine_takes_everything_that_a_store_asks_of_it() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), Etcd::start().await);
    let (address, refusals) = kine(dir.path(), &etcd, Backend::Sql);
    let tasks = kelson_tasks::Tasks::root("test");
    let options = EtcdOptions { compaction_every: Duration::from_millis(100), ..options(vec![address], &tasks, None) };
    let store = EtcdStore::open(options).await.unwrap().store;
    let mut watch = store.watch(resource("configmaps"), store.current_revision()).unwrap();

    let made = create(&store, "m", "1").await.unwrap();
    assert!(matches!(create(&store, "m", "2").await, Err(StoreError::AlreadyExists { .. })));
    // Another client changes it: the condition fails in the storage, not in the mirror.
    let changed = update(&store, "m", made.revision, "2").await.unwrap();
    assert!(matches!(update(&store, "m", made.revision, "3").await, Err(StoreError::Conflict { .. })));
    assert_eq!(shown(&store, "m").as_deref(), Some("2"));
    let gone = store.commit(Write::delete(key("configmaps", "m"), Precondition::Any)).await.unwrap();
    store.catch_up().await.unwrap();
    let want = [("Added", made.revision), ("Modified", changed.revision), ("Deleted", gone.revision)];
    assert_eq!(lines(&watch.next().await.unwrap()), want.map(|(kind, at)| format!("{kind} m {at}")));

    let server = IpAddr::from([192, 0, 2, 7]);
    for _ in 0..2 {
        store.announce(server, Duration::from_secs(60)).await.unwrap();
    }
    assert_eq!(store.living().await.unwrap(), Some(vec![server]));
    assert_eq!((store.withdraw(server).await.unwrap(), store.withdraw(server).await.unwrap()), (true, false));
    assert_eq!(store.living().await.unwrap(), Some(vec![]));

    let ports = |take: &[u16]| PortChange {
        take: take.to_vec(),
        give_back: Vec::new(),
        only_free: true,
        range: (30000, 32767),
    };
    assert_eq!(store.change_ports(ports(&[30001])).await.unwrap(), None);
    assert_eq!(store.change_ports(ports(&[30001])).await.unwrap(), Some(30001));

    // What was before is forgotten some rounds later.
    until("what is forgotten is not listed", || {
        let list = store.list_at(made.revision, resource("configmaps"), None, None, None);
        matches!(list, Err(StoreError::Compacted { .. }))
    })
    .await;
    assert_eq!((store.health().not_ready(), refusals.load(Ordering::SeqCst)), (None, 0));
}

/// Kine on NATS: reads and writes continue after a deletion, though nothing reports that its second revision was reached.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_without_an_event_holds_up_no_reader() {
    let (dir, etcd) = (tempfile::tempdir().unwrap(), Etcd::start().await);
    let (address, refusals) = kine(dir.path(), &etcd, Backend::Nats);
    let tasks = kelson_tasks::Tasks::root("test");
    let store = EtcdStore::open(options(vec![address.clone()], &tasks, None)).await.unwrap().store;
    for round in 0..3 {
        create(&store, "m", "1").await.unwrap();
        store.commit(Write::delete(key("configmaps", "m"), Precondition::Any)).await.unwrap();
        let (one, other) = tokio::join!(store.catch_up(), store.catch_up());
        assert!(one.is_ok() && other.is_ok(), "round {round}: {one:?} {other:?}");
    }
    // Another server deletes what this one changes.
    let made = create(&store, "n", "1").await.unwrap();
    let other = EtcdStore::open(options(vec![address], &tasks, None)).await.unwrap().store;
    other.commit(Write::delete(key("configmaps", "n"), Precondition::Any)).await.unwrap();
    assert!(matches!(update(&store, "n", made.revision, "2").await, Err(StoreError::NotFound)));
    assert_eq!((store.health().not_ready(), refusals.load(Ordering::SeqCst)), (None, 0));
}
