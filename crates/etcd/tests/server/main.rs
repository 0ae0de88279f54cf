//! The server over sockets, by gRPC and by plain HTTP; and its data after `kill -9`.
#![allow(missing_docs, clippy::unwrap_used)]

mod gateway;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use kelson_etcd::client::Client;
use kelson_etcd::mvcc::Limits;
use kelson_etcd::proto::watch_request::RequestUnion;
use kelson_etcd::proto::*;
use kelson_etcd::server::{Address, Endpoint, Server, ServerOptions};
use kelson_etcd::store::{Options, Store};
use kelson_metrics::Registry;
use kelson_tasks::Tasks;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;

const REQUEST_BYTES_MAX: usize = 100_000;

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: text(key), value: text(value), ..PutRequest::default() }
}

fn get(key: &str, end: &str) -> RangeRequest {
    RangeRequest { key: text(key), range_end: text(end), ..RangeRequest::default() }
}

async fn open(dir: Option<&Path>, tasks: &Tasks) -> Store {
    let limits = Limits { txn_ops_max: 128, request_bytes_max: REQUEST_BYTES_MAX, quota_bytes: None };
    let options = Options { data_dir: dir.map(Path::to_path_buf), syncs: true, limits, auto_compaction: None };
    Store::open(options, tasks).await.unwrap()
}

async fn serve(tasks: &Tasks) -> SocketAddr {
    match serve_at(Address::Tcp("127.0.0.1:0".parse().unwrap()), tasks).await {
        Address::Tcp(address) => address,
        Address::Unix(path) => panic!("{}", path.display()),
    }
}

async fn serve_at(address: Address, tasks: &Tasks) -> Address {
    let any = Endpoint { address, tls: false };
    let options = ServerOptions {
        name: "one".to_owned(),
        clients: vec![any],
        metrics: vec![],
        client_urls: vec!["http://127.0.0.1:1".to_owned()],
        peer_urls: vec![],
        tls: None,
        watch_progress_every: Duration::from_secs(600),
        streams_max: 1000,
        registry: Registry::of_component(),
    };
    Server::start(open(None, tasks).await, options, tasks).await.unwrap().clients.remove(0)
}

async fn client(address: SocketAddr) -> Client<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    Client::new(channel, 1 << 30)
}

#[tokio::test]
async fn a_socket_of_the_file_system() {
    use std::os::unix::fs::PermissionsExt as _;
    let (tasks, dir) = (Tasks::root("test"), tempfile::tempdir().unwrap());
    let path = dir.path().join("etcd.sock");
    // A socket left by a killed process.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = Address::Unix(path.clone());
    assert_eq!(serve_at(address.clone(), &tasks).await, address);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let channel =
        tonic::transport::Endpoint::from_shared(format!("unix://{}", path.display())).unwrap().connect().await.unwrap();
    assert_eq!(Client::new(channel, 1 << 30).put(put("a", "1")).await.unwrap().header.unwrap().revision, 2);
}

/// etcd's own client sends the socket's path as the host, percent-encoded.
#[tokio::test]
async fn a_socket_whose_path_is_taken_for_a_host() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (tasks, dir) = (Tasks::root("test"), tempfile::tempdir().unwrap());
    let path = dir.path().join("etcd.sock");
    serve_at(Address::Unix(path.clone()), &tasks).await;
    let mut socket = tokio::net::UnixStream::connect(&path).await.unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    // A GET of /health whose host is added to the header table, and one that refers to it.
    let first = b"\x82\x86\x04\x07/health\x41\x10%2Ftmp%2Fetcd.so";
    let second = b"\x82\x86\x04\x07/health\xbe";
    for (stream, head) in [(1, first.as_slice()), (3, second)] {
        let length = u8::try_from(head.len()).unwrap();
        socket.write_all(&[&[0, 0, length, 1, 5, 0, 0, 0, stream], head].concat()).await.unwrap();
    }
    let mut kinds = Vec::new();
    while kinds.len() < 4 {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, .., stream] = head;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        socket.read_exact(&mut payload).await.unwrap();
        if stream != 0 {
            kinds.push((stream, kind));
        }
    }
    kinds.sort_unstable();
    // Headers and data of each stream, and no reset.
    assert_eq!(kinds, [(1, 0), (1, 1), (3, 0), (3, 1)]);
}

/// Clients of etcd 3.4 send their endpoint with its scheme as the host in calls of Maintenance.
#[tokio::test]
async fn an_authority_with_a_scheme() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let tasks = Tasks::root("test");
    let mut socket = tokio::net::TcpStream::connect(serve(&tasks).await).await.unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let head = b"\x82\x86\x04\x07/health\x41\x15http://127.0.0.1:2379";
    let length = u8::try_from(head.len()).unwrap();
    socket.write_all(&[&[0, 0, length, 1, 5, 0, 0, 0, 1], &head[..]].concat()).await.unwrap();
    loop {
        let mut frame = [0; 9];
        socket.read_exact(&mut frame).await.unwrap();
        let [a, b, c, kind, .., stream] = frame;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        socket.read_exact(&mut payload).await.unwrap();
        if stream == 1 {
            assert_eq!(kind, 1, "headers, and no reset");
            break;
        }
    }
}

#[tokio::test]
async fn calls_of_one_answer() {
    let tasks = Tasks::root("test");
    let mut client = client(serve(&tasks).await).await;
    let head = client.put(put("a", "1")).await.unwrap().header.unwrap();
    assert!(head.revision == 2 && head.cluster_id != 0 && head.member_id != 0 && head.raft_term != 0);
    let answer = client.range(get("a", "")).await.unwrap();
    assert_eq!((answer.count, answer.kvs[0].value.clone(), answer.header), (1, text("1"), Some(head)));
    let txn = TxnRequest {
        compare: vec![Compare {
            target: compare::CompareTarget::Mod as i32,
            key: text("a"),
            target_union: Some(compare::TargetUnion::ModRevision(2)),
            ..Compare::default()
        }],
        success: vec![RequestOp { request: Some(request_op::Request::RequestPut(put("a", "2"))) }],
        failure: vec![RequestOp { request: Some(request_op::Request::RequestRange(get("a", ""))) }],
    };
    assert!(client.txn(txn.clone()).await.unwrap().succeeded);
    assert!(!client.txn(txn).await.unwrap().succeeded);
    let lease = client.lease_grant(LeaseGrantRequest { ttl: 1, id: 0 }).await.unwrap();
    assert_eq!(lease.ttl, 2);
    client.put(PutRequest { lease: lease.id, ..put("l", "") }).await.unwrap();
    let left = client.lease_time_to_live(LeaseTimeToLiveRequest { id: lease.id, keys: true }).await.unwrap();
    assert_eq!((left.granted_ttl, left.keys), (2, vec![text("l")]));
    let none = client.lease_time_to_live(LeaseTimeToLiveRequest { id: 1, keys: false }).await.unwrap();
    assert_eq!(none.ttl, -1);
    client.lease_revoke(LeaseRevokeRequest { id: lease.id }).await.unwrap();
    assert_eq!(client.lease_leases().await.unwrap().leases, []);
    let deleted = DeleteRangeRequest { key: text("a"), range_end: text("\0"), prev_kv: true };
    assert_eq!(client.delete_range(deleted).await.unwrap().prev_kvs[0].value, text("2"));
    client.compact(CompactionRequest { revision: 4, physical: true }).await.unwrap();
    let status = client.status().await.unwrap();
    assert!(status.version.starts_with("3.6.") && status.leader == head.member_id && status.errors.is_empty());
    let members = client.member_list(MemberListRequest::default()).await.unwrap().members;
    assert_eq!((members.len(), members[0].name.as_str()), (1, "one"));
    client.defragment().await.unwrap();
    assert_eq!(client.hash_kv(HashKvRequest::default()).await.unwrap().compact_revision, 4);
    tasks.shutdown(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn refusals_have_etcds_codes_and_words() {
    let tasks = Tasks::root("test");
    let mut client = client(serve(&tasks).await).await;
    let check = |status: tonic::Status, code, message| assert_eq!((status.code(), status.message()), (code, message));
    let empty = client.put(put("", "")).await.unwrap_err();
    check(empty, Code::InvalidArgument, "etcdserver: key is not provided");
    let future = client.range(RangeRequest { revision: 99, ..get("a", "") }).await.unwrap_err();
    check(future, Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
    let large = client.put(put("a", &"x".repeat(REQUEST_BYTES_MAX))).await.unwrap_err();
    check(large, Code::InvalidArgument, "etcdserver: request is too large");
    let lease = client.lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap_err();
    check(lease, Code::NotFound, "etcdserver: requested lease not found");
    tasks.shutdown(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn streams() {
    let tasks = Tasks::root("test");
    let mut client = client(serve(&tasks).await).await;
    let (ask, requests) = mpsc::channel(8);
    let create = WatchCreateRequest { key: text("a"), range_end: text("b"), ..WatchCreateRequest::default() };
    ask.try_send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).unwrap();
    let mut watch = client.watch(ReceiverStream::new(requests)).await.unwrap();
    assert!(watch.next().await.unwrap().unwrap().created);
    for i in 0..100 {
        client.put(put(&format!("a{i}"), &"v".repeat(1000))).await.unwrap();
        client.put(put(&format!("z{i}"), "")).await.unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 100 {
        let answer = watch.next().await.unwrap().unwrap();
        seen.extend(answer.events.into_iter().map(|event| event.kv.unwrap().mod_revision));
    }
    assert_eq!(seen, (0..100).map(|i| 2 + 2 * i).collect::<Vec<i64>>());
    let lease = client.lease_grant(LeaseGrantRequest { ttl: 100, id: 5 }).await.unwrap();
    let renew = [LeaseKeepAliveRequest { id: lease.id }, LeaseKeepAliveRequest { id: 6 }];
    let renewed = client.lease_keep_alive(tokio_stream::iter(renew)).await.unwrap();
    let seconds: Vec<i64> = renewed.map(|answer| answer.unwrap().ttl).collect().await;
    assert_eq!(seconds, [100, 0], "a lease that is not there has no time left");
    let copy: Vec<SnapshotResponse> = client.snapshot().await.unwrap().map(Result::unwrap).collect().await;
    let bytes: usize = copy.iter().map(|piece| piece.blob.len()).sum();
    assert_eq!(bytes % 4096, 32, "pages, and behind them the sum");
    assert_eq!((copy[0].remaining_bytes as usize + copy[0].blob.len()) % 4096, 0);
    assert_eq!(copy.last().unwrap().remaining_bytes, 0);
    // The end of the server ends open streams.
    let ended = tokio::spawn(async move { watch.next().await });
    tasks.shutdown(Duration::from_secs(60)).await;
    assert!(matches!(ended.await.unwrap(), Some(Err(_)) | None));
}

async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut send, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(path).body(http_body_util::Empty::<Bytes>::new()).unwrap();
    let answer = send.send_request(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn pages_of_browsers_reach_no_keys() {
    let tasks = Tasks::root("test");
    let address = serve(&tasks).await;
    let grpc = ("content-type", "application/grpc");
    let (host, origin) = (("host", "evil.example"), ("origin", "http://evil.example"));
    for (path, headers, code) in [
        ("/etcdserverpb.KV/Range", vec![grpc, host], 505),
        ("/etcdserverpb.KV/Range", vec![("content-type", "application/grpc-web+proto"), host], 505),
        ("/etcdserverpb.KV/Put", vec![grpc, host, origin], 403),
        ("/health", vec![host, origin], 403),
    ] {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut send, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::post(path);
        for (name, value) in &headers {
            request = request.header(*name, *value);
        }
        let answer = send.send_request(request.body(http_body_util::Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(answer.status().as_u16(), code, "{path} {headers:?}");
    }
    tasks.shutdown(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn health_and_version() {
    let tasks = Tasks::root("test");
    let address = serve(&tasks).await;
    let check = async |path: &str, wanted: (u16, &str)| {
        let (status, body) = fetch(address, path).await;
        assert_eq!((status, body.as_str()), wanted, "{path}");
    };
    check("/health", (200, r#"{"health":"true","reason":""}"#)).await;
    check("/version", (200, r#"{"etcdcluster":"3.6.0","etcdserver":"3.6.8","storage":"3.6.0"}"#)).await;
    check("/livez", (200, "ok\n")).await;
    check(
        "/readyz?verbose&exclude=data_corruption&exclude=linearizable_read&exclude=non_learner",
        (200, "[+]serializable_read ok\nok\n"),
    )
    .await;
    check("/readyz/non_learner", (200, "ok\n")).await;
    check("/readyz/nonsense", (404, "404 page not found\n")).await;
    check("/other", (404, "404 page not found\n")).await;
    let mut client = client(address).await;
    let member_id = client.status().await.unwrap().header.unwrap().member_id;
    let alarm = AlarmRequest { action: 1, member_id, alarm: AlarmType::Nospace as i32 };
    client.alarm(alarm).await.unwrap();
    check("/health", (503, r#"{"health":"false","reason":"ALARM NOSPACE"}"#)).await;
    check("/health?exclude=NOSPACE", (200, r#"{"health":"true","reason":""}"#)).await;
    let (_, metrics) = fetch(address, "/metrics").await;
    for wanted in [
        "etcd_server_has_leader 1\n",
        "etcd_server_version{server_version=\"3.6.8\"} 1\n",
        "etcd_cluster_version{cluster_version=\"3.6\"} 1\n",
        "etcd_server_id{server_id=\"",
        "etcd_server_proposals_failed_total 0\n",
        "etcd_server_leader_changes_seen_total 1\n",
        "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"}",
        "etcd_disk_backend_commit_duration_seconds_count 0\n",
    ] {
        assert!(metrics.contains(wanted), "{wanted} in {metrics}");
    }
    tasks.shutdown(Duration::from_secs(60)).await;
}

/// The environment variable with the directory, for a process that this test starts.
const WRITER: &str = "KELSON_ETCD_TEST_WRITER";

/// Writes continuously, and prints each acknowledged write. Run by the next test, in another process.
#[tokio::test(flavor = "multi_thread")]
async fn writes_without_end_where_asked_to() {
    let Ok(dir) = std::env::var(WRITER) else { return };
    let tasks = Tasks::root("writer");
    let store = open(Some(Path::new(&dir)), &tasks).await;
    let (said, mut lines) = mpsc::channel::<String>(64);
    for writer in 0..4 {
        let (store, said) = (store.clone(), said.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let key = format!("{writer}-{}", number % 50);
                let revision = store.put(put(&key, &number.to_string())).await.unwrap().header.unwrap().revision;
                if number % 40 == 0 && writer == 0 {
                    store.defragment().await.unwrap();
                }
                said.send(format!("acknowledged {revision} {key} {number}")).await.unwrap();
            }
        });
    }
    while let Some(line) = lines.recv().await {
        println!("{line}");
    }
}

#[tokio::test]
async fn kill_nine_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_without_end_where_asked_to", "--nocapture"])
            .env(WRITER, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut acknowledged = Vec::new();
        for line in lines {
            let line = line.unwrap();
            let Some(said) = line.strip_prefix("acknowledged ") else { continue };
            acknowledged.push(said.to_owned());
            if acknowledged.len() == 200 * round {
                // Output since then is read until the pipe ends.
                writer.kill().unwrap();
            }
        }
        writer.wait().unwrap();
        assert!(acknowledged.len() >= 200 * round, "round {round}");
        let tasks = Tasks::root("test");
        let store = open(Some(dir.path()), &tasks).await;
        for said in &acknowledged {
            let [revision, key, value] = said.split(' ').collect::<Vec<_>>()[..] else {
                // The last line may be truncated.
                continue;
            };
            let revision = revision.parse().unwrap();
            let there = store.range(&RangeRequest { revision, ..get(key, "") }).unwrap().kvs.remove(0);
            assert!(there.mod_revision == revision && there.value.starts_with(value.as_bytes()), "{said}: {there:?}");
        }
        drop(store);
        assert!(tasks.shutdown(Duration::from_secs(60)).await);
    }
}
