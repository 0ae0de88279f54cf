//! The protocol in JSON, as Patroni and etcd3gw use it; and locks and elections over JSON.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_tasks::Tasks;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::serve;

/// The maximum wait for an expected answer.
const PATIENCE: Duration = Duration::from_secs(60);

async fn send(address: SocketAddr, request: http::request::Builder, body: String) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap()
}

async fn begin(address: SocketAddr, path: &str, body: &Value) -> Response<Incoming> {
    send(address, Request::post(path).header("host", "etcd"), body.to_string()).await
}

async fn whole(answer: Response<Incoming>) -> (u16, Value) {
    let status = answer.status().as_u16();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let mut value: Value = serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
    if let Some(object) = value.as_object_mut()
        && let Some(header) = object.remove("header")
    {
        assert!(header["cluster_id"].is_string() && header["member_id"].is_string(), "{header}");
        object.insert("revision".to_owned(), header["revision"].clone());
    }
    (status, value)
}

async fn post(address: SocketAddr, path: &str, body: Value) -> (u16, Value) {
    whole(begin(address, path, &body).await).await
}

/// Returns the next line of a stream, without its header.
async fn line(answer: &mut Response<Incoming>) -> Value {
    let next = async {
        loop {
            let frame = answer.body_mut().frame().await.expect("it goes on").unwrap();
            if let Some(data) = frame.data_ref() {
                assert!(data.ends_with(b"\n"), "a line for each answer");
                return serde_json::from_slice::<Value>(data).unwrap();
            }
        }
    };
    let mut line = tokio::time::timeout(PATIENCE, next).await.expect("an answer");
    line["result"].as_object_mut().map(|result| result.remove("header"));
    line
}

#[tokio::test]
async fn keys_and_transactions_in_json() {
    let tasks = Tasks::root("test");
    let at = serve(&tasks).await;
    assert_eq!(post(at, "/v3/kv/put", json!({"key": "Zm9v", "value": "YmFy"})).await, (200, json!({"revision": "2"})));
    let kv = json!({"key": "Zm9v", "value": "YmFy", "create_revision": "2", "mod_revision": "2", "version": "1"});
    let range = post(at, "/v3/kv/range", json!({"key": "Zm9v"})).await;
    assert_eq!(range, (200, json!({"revision": "2", "kvs": [kv], "count": "1"})));
    let txn = json!({
        "compare": [{"key": "Zm9v", "target": "MOD", "mod_revision": "2"}],
        "success": [{"request_put": {"key": "Zm9v", "value": "YmF6"}}],
        "failure": [{"request_range": {"key": "Zm9v"}}],
    });
    let (status, done) = post(at, "/v3/kv/txn", txn.clone()).await;
    assert_eq!((status, &done["succeeded"]), (200, &json!(true)));
    let (_, failed) = post(at, "/v3/kv/txn", txn).await;
    assert_eq!(failed.get("succeeded"), None, "what is false is left out");
    assert_eq!(failed["responses"][0]["response_range"]["kvs"][0]["value"], "YmF6");
    let deleted = post(at, "/v3/kv/deleterange", json!({"key": "Zm9v", "prev_kv": true})).await.1;
    assert_eq!((&deleted["deleted"], &deleted["prev_kvs"][0]["value"]), (&json!("1"), &json!("YmF6")));
    assert_eq!(post(at, "/v3/kv/compaction", json!({"revision": "3"})).await.0, 200);

    let (status, members) = post(at, "/v3/cluster/member/list", json!({})).await;
    assert_eq!((status, &members["members"][0]["clientURLs"][0]), (200, &json!("http://127.0.0.1:1")));
    let (_, status) = post(at, "/v3/maintenance/status", json!({})).await;
    assert!(status["version"] == "3.6.8" && status["dbSize"].is_string() && status["leader"].is_string(), "{status}");
    tasks.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn faults_in_json() {
    let tasks = Tasks::root("test");
    let at = serve(&tasks).await;
    for (path, body, status, code, said) in [
        ("/v3/kv/put", json!({"value": "YQ=="}), 400, 3, "etcdserver: key is not provided"),
        ("/v3/kv/range", json!({"key": "YQ==", "revision": 100}), 400, 11, "required revision is a future revision"),
        ("/v3/kv/range", json!({"key": 1}), 400, 3, "invalid value for field key"),
        ("/v3/lease/revoke", json!({"ID": "77"}), 404, 5, "etcdserver: requested lease not found"),
        ("/v3/kv/other", json!({}), 404, 5, "Not Found"),
        ("/v3/auth/enable", json!({}), 501, 12, "users and roles are not supported"),
        ("/v3/auth/authenticate", json!({"name": "a", "password": "b"}), 400, 9, "authentication is not enabled"),
        ("/v3/auth/user/get", json!({"name": "a"}), 400, 9, "user name not found"),
        ("/v3/lease/keepalive", json!([]), 400, 3, "object"),
    ] {
        let (got, answer) = post(at, path, body).await;
        assert_eq!((got, &answer["code"]), (status, &json!(code)), "{path}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(said), "{path}: {answer}");
        assert_eq!(answer["error"], answer["message"]);
    }
    assert_eq!(post(at, "/v3/auth/disable", json!({})).await, (200, json!({"revision": "1"})));
    let request = |request: http::request::Builder, body: &str| whole_of(at, request, body.to_owned());
    assert_eq!(request(Request::get("/v3/kv/range"), "").await.0, 501);
    assert_eq!(request(Request::post("/v3/kv/range"), "{").await.0, 400);
    assert_eq!(request(Request::post("/v3/maintenance/status"), "").await.0, 200, "nothing is an empty request");
    let page = Request::post("/v3/kv/range").header("origin", "http://evil.example");
    let refused = send(at, page.header("host", "etcd"), r#"{"key":"AA==","range_end":"AA=="}"#.to_owned()).await;
    assert_eq!(refused.status(), 403, "before the gateway looks at it");
    let large = json!({"key": "YQ==", "value": "A".repeat(2 << 20)}).to_string();
    assert_eq!(request(Request::post("/v3/kv/put"), &large).await.0, 400);
    tasks.shutdown(PATIENCE).await;
}

async fn whole_of(address: SocketAddr, request: http::request::Builder, body: String) -> (u16, Value) {
    whole(send(address, request.header("host", "etcd"), body).await).await
}

#[tokio::test]
async fn watches_and_leases_in_json() {
    let tasks = Tasks::root("test");
    let at = serve(&tasks).await;
    let watch = json!({"create_request": {"key": "YQ==", "range_end": "Yg==", "prev_kv": true}});
    let mut watch = begin(at, "/v3/watch", &watch).await;
    assert_eq!(line(&mut watch).await, json!({"result": {"created": true}}));
    let (_, granted) = post(at, "/v3/lease/grant", json!({"TTL": "30", "ID": 7})).await;
    assert_eq!(granted, json!({"revision": "1", "ID": "7", "TTL": "30"}));
    post(at, "/v3/kv/put", json!({"key": "YQ==", "value": "MQ==", "lease": "7"})).await;
    let event = &line(&mut watch).await["result"]["events"][0];
    assert_eq!((&event["kv"]["value"], &event["kv"]["lease"], event.get("type")), (&json!("MQ=="), &json!("7"), None));
    let mut kept = begin(at, "/v3/lease/keepalive", &json!({"ID": 7})).await;
    assert_eq!(line(&mut kept).await, json!({"result": {"ID": "7", "TTL": "30"}}));
    let (_, lives) = post(at, "/v3/lease/timetolive", json!({"ID": "7", "keys": true})).await;
    assert_eq!((&lives["grantedTTL"], &lives["keys"]), (&json!("30"), &json!(["YQ=="])));
    assert_eq!(post(at, "/v3/lease/leases", json!({})).await.1["leases"], json!([{"ID": "7"}]));
    assert_eq!(post(at, "/v3/kv/lease/revoke", json!({"ID": 7})).await.0, 200);
    let event = line(&mut watch).await["result"]["events"][0].clone();
    assert_eq!((&event["type"], &event["prev_kv"]["value"]), (&json!("DELETE"), &json!("MQ==")));
    tasks.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_lock_is_one_clients_at_a_time() {
    let tasks = Tasks::root("test");
    let at = serve(&tasks).await;
    for id in [1, 2, 3] {
        post(at, "/v3/lease/grant", json!({"TTL": "600", "ID": id})).await;
    }
    let lock = |id: i64| json!({"name": "bg==", "lease": id});
    let (status, first) = post(at, "/v3/lock/lock", lock(1)).await;
    // The key "n/1".
    assert_eq!((status, &first["key"]), (200, &json!("bi8x")));
    // The first waiting client disconnects; the next one still gets the lock.
    let request = move |id| async move { post(at, "/v3/lock/lock", lock(id)).await };
    let (gone, waits) = (tokio::spawn(request(2)), async { waiting(at, 2).await });
    waits.await;
    let next = tokio::spawn(request(3));
    waiting(at, 3).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    waiting(at, 2).await;
    assert!(!next.is_finished());
    assert_eq!(post(at, "/v3/lock/unlock", json!({"key": "bi8x"})).await.0, 200);
    let (status, third) = tokio::time::timeout(PATIENCE, next).await.unwrap().unwrap();
    assert_eq!((status, &third["key"]), (200, &json!("bi8z")));
    assert_eq!(post(at, "/v3/lock/lock", json!({"name": "bg==", "lease": 9})).await.0, 404, "there is no such lease");
    tasks.shutdown(PATIENCE).await;
}

/// Waits until this many clients hold or want the lock.
async fn waiting(at: SocketAddr, wanted: usize) {
    let look = async {
        loop {
            let keys =
                post(at, "/v3/kv/range", json!({"key": "bi8=", "range_end": "bjA=", "count_only": true})).await.1;
            if keys["count"].as_str().and_then(|count| count.parse().ok()) == Some(wanted) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("{wanted} wait"));
}

#[tokio::test]
async fn elections_have_one_leader() {
    let tasks = Tasks::root("test");
    let at = serve(&tasks).await;
    for id in [1, 2] {
        post(at, "/v3/lease/grant", json!({"TTL": "600", "ID": id})).await;
    }
    let (status, none) = post(at, "/v3/election/leader", json!({"name": "ZQ=="})).await;
    assert_eq!((status, &none["message"]), (500, &json!("election: no leader")));
    let campaign = |id: i64, value: &str| json!({"name": "ZQ==", "lease": id, "value": value});
    let (_, one) = post(at, "/v3/election/campaign", campaign(1, "MQ==")).await;
    let leader = one["leader"].clone();
    assert_eq!(leader, json!({"name": "ZQ==", "key": "ZS8x", "rev": "2", "lease": "1"}));
    let mut seen = begin(at, "/v3/election/observe", &json!({"name": "ZQ=="})).await;
    assert_eq!(line(&mut seen).await["result"]["kv"]["value"], "MQ==");
    let second = campaign(2, "Mg==");
    let two = tokio::spawn(async move { post(at, "/v3/election/campaign", second).await });
    let said = post(at, "/v3/election/proclaim", json!({"leader": leader, "value": "MTE="})).await;
    assert_eq!(said.0, 200);
    assert_eq!(line(&mut seen).await["result"]["kv"]["value"], "MTE=");
    assert!(!two.is_finished());
    assert_eq!(post(at, "/v3/election/resign", json!({"leader": leader})).await.0, 200);
    let (_, two) = tokio::time::timeout(PATIENCE, two).await.unwrap().unwrap();
    assert_eq!(two["leader"]["key"], "ZS8y");
    assert_eq!(line(&mut seen).await["result"]["kv"]["value"], "Mg==");
    let (status, late) = post(at, "/v3/election/proclaim", json!({"leader": leader, "value": "MTI="})).await;
    assert_eq!((status, &late["message"]), (500, &json!("election: not leader")));
    assert_eq!(post(at, "/v3/election/proclaim", json!({"value": "MTI="})).await.0, 500);
    tasks.shutdown(PATIENCE).await;
}
