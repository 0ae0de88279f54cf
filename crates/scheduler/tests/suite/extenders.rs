//! The scheduler with extenders over HTTP: filtering, scoring, preemption and binding.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kelson_apiserver::{ApiServer, Config as ApiConfig};
use kelson_auth::{UserInfo, user};
use kelson_client::Client;
use kelson_meta::SystemClock;
use kelson_pki::{Authority, Issued, LeafSpec, Purpose, San, SwappableCertificate};
use kelson_scheduler::{Running, Scheduler, configuration};
use kelson_store::{Store, StoreOptions};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The maximum wait for something that should happen immediately.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that answers each request by a function and records it.
struct Extension {
    url: String,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Extension {
    async fn start(tasks: &Tasks, answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Self {
        Self::start_behind(tasks, None, answer).await
    }

    /// Starts a server, with TLS if there is an acceptor.
    async fn start_behind(
        tasks: &Tasks,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}/ext", listener.local_addr().unwrap());
        let (seen, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let (noted, group) = (Arc::clone(&seen), tasks.clone());
        tasks.spawn("extension", OnPanic::Contain, async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (noted, answer, tls) = (Arc::clone(&noted), Arc::clone(&answer), tls.clone());
                group.spawn("extension-connection", OnPanic::Contain, async move {
                    let _ = match tls {
                        None => serve(stream, &noted, &*answer).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &noted, &*answer).await,
                            Err(e) => Err(e),
                        },
                    };
                });
            }
        });
        Self { url, seen }
    }

    fn seen(&self, verb: &str) -> Vec<Value> {
        self.seen.lock().iter().filter(|(v, _)| v == verb).map(|(_, body)| body.clone()).collect()
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Vec<(String, Value)>>,
    answer: &(dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync),
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            match line.trim().to_ascii_lowercase().split_once(':') {
                Some(("content-length", n)) => length = n.trim().parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let verb = first.split(' ').nth(1).unwrap().trim_start_matches("/ext/").to_owned();
        let body: Value = serde_json::from_slice(&body).unwrap();
        seen.lock().push((verb.clone(), body.clone()));
        let (code, said) = answer(&verb, &body);
        let said = said.to_string();
        let head =
            format!("HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", said.len());
        stream.write_all(format!("{head}{said}").as_bytes()).await?;
    }
}

struct Cluster {
    client: Client,
    _scheduler: Running,
}

impl Cluster {
    /// Starts a scheduler with these extenders and three nodes of four CPUs.
    async fn start(tasks: &Tasks, extenders: Value) -> Self {
        let mut config = ApiConfig::new(Store::in_memory(StoreOptions::default()));
        // No controllers run here to create service accounts and to remove the taint of new nodes.
        config.admission.disable = vec!["ServiceAccount".into(), "TaintNodesByCondition".into(), "Priority".into()];
        let server = ApiServer::start(config).await.unwrap();
        server.ready().await;
        let client =
            Client::new(server.in_process(UserInfo::new("admin", [user::MASTERS, user::AUTHENTICATED])), "test");
        for name in ["a", "b", "c"] {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
            client.create::<Node>("", &node).await.unwrap();
            let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
            let mut body = serde_json::to_value(client.get::<Node>("", name).await.unwrap()).unwrap();
            body["status"] = json!({"capacity": resources, "allocatable": resources});
            client.update::<Node>("", name, "status", &body).await.unwrap();
        }
        let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "extenders": extenders});
        let config = configuration::read(&document).unwrap().config;
        let own = UserInfo::new("system:kube-scheduler", [user::AUTHENTICATED]);
        let own = Client::new(server.in_process(own), "scheduler");
        let scheduler = Scheduler::start(config, own, Arc::new(SystemClock), None, tasks);
        Self { client, _scheduler: scheduler }
    }

    async fn pod(&self, name: &str, cpu: &str, priority: i32) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"priority": priority,
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}});
        self.client.create::<Pod>("default", &pod).await.unwrap();
    }

    async fn until<T>(&self, name: &str, what: &str, done: impl Fn(&Value) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Ok(pod) = self.client.get::<Pod>("default", name).await
                    && let Some(found) = done(&serde_json::to_value(pod).unwrap())
                {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{name}: never {what}"))
    }

    async fn node_of(&self, name: &str) -> String {
        self.until(name, "bound", |pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).await
    }

    async fn reported(&self, name: &str) -> String {
        let reported = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array()?;
            let said = conditions.iter().find(|c| c["type"] == "PodScheduled" && c["status"] == "False")?;
            Some(format!("{}: {}", said["reason"].as_str()?, said["message"].as_str()?))
        };
        self.until(name, "told", reported).await
    }
}

#[tokio::test]
async fn nodes_are_left_out_and_compared() {
    let tasks = Tasks::root("test");
    let whole = Extension::start(&tasks, |verb, body| match verb {
        "filter" => {
            let mut nodes = body["Nodes"].clone();
            nodes["items"].as_array_mut().unwrap().retain(|n| n["metadata"]["name"] != "a");
            (200, json!({"Nodes": nodes, "FailedNodes": {"a": "no licence"}}))
        }
        _ => (200, json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 9}])),
    })
    .await;
    // An answer with names only, in its own capitalization.
    let names = Extension::start(&tasks, |_, body| (200, json!({"nodenames": body["NodeNames"]}))).await;
    let extenders = json!([
        {"urlPrefix": whole.url, "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 100},
        {"urlPrefix": names.url, "filterVerb": "filter", "nodeCacheCapable": true}]);
    let cluster = Cluster::start(&tasks, extenders).await;
    cluster.pod("p", "1", 0).await;
    assert_eq!(cluster.node_of("p").await, "c");
    let asked = whole.seen("filter").remove(0);
    assert_eq!((&asked["Pod"]["metadata"]["name"], &asked["NodeNames"]), (&json!("p"), &Value::Null));
    assert_eq!(asked["Nodes"]["items"][0]["status"]["allocatable"]["cpu"], "4", "whole objects");
    let mut asked = names.seen("filter").remove(0);
    assert_eq!(asked["NodeNames"].take().as_array().map(Vec::len), Some(2), "what the first has left");
    assert_eq!(asked["Nodes"], Value::Null);
}

#[tokio::test]
async fn one_that_fails_holds_pods_up_unless_it_can_be_done_without() {
    let tasks = Tasks::root("test");
    let broken = Extension::start(&tasks, |_, _| (500, json!({}))).await;
    let extender = |ignorable: bool| json!([{"urlPrefix": broken.url, "filterVerb": "filter", "ignorable": ignorable, "nodeCacheCapable": true}]);
    let cluster = Cluster::start(&tasks, extender(false)).await;
    cluster.pod("p", "1", 0).await;
    let want = format!("SchedulerError: failed filter with extender at URL {}/filter, code 500", broken.url);
    assert_eq!(cluster.reported("p").await, want);
    let cluster = Cluster::start(&tasks, extender(true)).await;
    cluster.pod("p", "1", 0).await;
    cluster.node_of("p").await;
}

#[tokio::test]
async fn an_extender_binds() {
    let tasks = Tasks::root("test");
    let binder = Extension::start(&tasks, |_, _| (200, json!({"Error": "not today"}))).await;
    let cluster = Cluster::start(&tasks, json!([{"urlPrefix": binder.url, "bindVerb": "bind"}])).await;
    cluster.pod("p", "1", 0).await;
    assert_eq!(cluster.reported("p").await, "SchedulerError: binding rejected: not today");
    let asked = binder.seen("bind").remove(0);
    assert_eq!((&asked["PodName"], &asked["PodNamespace"]), (&json!("p"), &json!("default")));
    assert!(["a", "b", "c"].contains(&asked["Node"].as_str().unwrap()), "{asked}");
}

#[tokio::test]
async fn an_extender_says_who_makes_room() {
    let tasks = Tasks::root("test");
    let chooser = Extension::start(&tasks, |_, body| {
        let offered = &body["NodeNameToMetaVictims"];
        (200, json!({"NodeNameToMetaVictims": {"b": offered["b"]}}))
    })
    .await;
    let extender = json!([{"urlPrefix": chooser.url, "preemptVerb": "preempt", "nodeCacheCapable": true}]);
    let cluster = Cluster::start(&tasks, extender).await;
    for name in ["x", "y", "z"] {
        cluster.pod(name, "4", 0).await;
    }
    let mut on_b = String::new();
    for name in ["x", "y", "z"] {
        if cluster.node_of(name).await == "b" {
            on_b = name.to_owned();
        }
    }
    cluster.pod("important", "4", 9).await;
    let nominated = |pod: &Value| pod["status"]["nominatedNodeName"].as_str().map(str::to_owned);
    assert_eq!(cluster.until("important", "promised room", nominated).await, "b");
    let going = |pod: &Value| pod["metadata"]["deletionTimestamp"].as_str().map(str::to_owned);
    cluster.until(&on_b, "told to go", going).await;
    assert_eq!(chooser.seen("preempt")[0]["NodeNameToMetaVictims"].as_object().map(serde_json::Map::len), Some(3));
}

/// Certificates of the extender's server CA and of its client CA, as PEM.
struct Trust {
    server_ca: String,
    client: Issued,
    acceptor: TlsAcceptor,
}

fn issued(ca: &Authority, name: &str, purpose: Purpose, now: Timestamp) -> Issued {
    let sans = [San::Ip(std::net::IpAddr::from([127, 0, 0, 1]))];
    let lifetime = Duration::from_secs(3600);
    ca.issue(&LeafSpec { common_name: name, organizations: &[], sans: &sans, purpose, lifetime }, now).unwrap()
}

/// Creates the certificates for a server that requires a certificate of `clients`.
fn trust() -> Trust {
    let now = Timestamp::now();
    let (servers, clients) = (Authority::create("servers", now).unwrap(), Authority::create("clients", now).unwrap());
    let server = issued(&servers, "extender", Purpose::Server, now);
    let client = issued(&clients, "system:kube-scheduler", Purpose::Client, now);
    let mut roots = RootCertStore::empty();
    roots.add(kelson_pki::certificates_from_pem(clients.cert_pem()).unwrap().remove(0)).unwrap();
    let provider = kelson_pki::provider();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let certificate = SwappableCertificate::new(&server).unwrap();
    let config = config.with_client_cert_verifier(verifier).with_cert_resolver(certificate);
    Trust { server_ca: servers.cert_pem().to_owned(), client, acceptor: TlsAcceptor::from(Arc::new(config)) }
}

#[tokio::test]
async fn an_extender_behind_tls_knows_who_asks() {
    let (tasks, trust) = (Tasks::root("test"), trust());
    let refuses = |_: &str, _: &Value| (200, json!({"Error": "not today"}));
    let secured = Extension::start_behind(&tasks, Some(trust.acceptor), refuses).await;
    let data = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let tls = json!({"caData": data(&trust.server_ca), "certData": data(&trust.client.cert_pem),
        "keyData": data(&trust.client.key.to_pem())});
    let extender =
        |tls: Value| json!([{"urlPrefix": secured.url, "bindVerb": "bind", "enableHTTPS": true, "tlsConfig": tls}]);
    let cluster = Cluster::start(&tasks, extender(tls.clone())).await;
    cluster.pod("p", "1", 0).await;
    assert_eq!(cluster.reported("p").await, "SchedulerError: binding rejected: not today");
    assert_eq!(secured.seen("bind")[0]["PodName"], "p");
    // A client without a certificate is rejected, and a server of another CA is not trusted.
    let nobody = json!({"caData": data(&trust.server_ca)});
    let mut elsewhere = tls;
    elsewhere["caData"] = data(Authority::create("other", Timestamp::now()).unwrap().cert_pem()).into();
    for tls in [nobody, elsewhere] {
        let cluster = Cluster::start(&tasks, extender(tls)).await;
        cluster.pod("q", "1", 0).await;
        let why = cluster.reported("q").await;
        assert!(why.starts_with("SchedulerError: binding rejected: ") && !why.contains("not today"), "{why}");
    }
    assert!(secured.seen("bind").iter().all(|asked| asked["PodName"] == "p"), "nothing else was asked");
}
