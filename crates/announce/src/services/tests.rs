//! The announcer of services against an API in memory and without a network, on a paused clock.
use kelson_client::{BoxFuture, Request, Response, Transport, TransportError, full_body};
use kelson_doubles::WatchApi;
use kelson_meta::SystemClock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::speaker::Addresses;

const IP: &str = "192.0.2.10";

fn service(kind: &str, managed: bool, node: &str) -> Value {
    let mut annotations = json!({ANNOUNCED_BY: node});
    if managed {
        annotations[MANAGED] = "true".into();
    }
    let ingress = json!([{"ip": IP}, {"hostname": "x"}, {"ip": "2001:db8::10"}]);
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "n", "uid": "u", "annotations": annotations},
        "spec": {"type": kind}, "status": {"loadBalancer": {"ingress": ingress}}})
}

#[test]
fn only_addresses_for_this_node_are_announced() {
    let count = |kind: &str, managed: bool, node: &str| {
        let view: ServiceView = serde_json::from_value(service(kind, managed, node)).unwrap();
        view.addresses("a").count()
    };
    assert_eq!(count("LoadBalancer", true, "a"), 2);
    assert_eq!(count("LoadBalancer", true, "b"), 0);
    assert_eq!(count("LoadBalancer", false, "a"), 0, "another load balancer's");
    assert_eq!(count("ClusterIP", true, "a"), 0);
}

/// Serves watches from objects in memory, and a single service only while it is set: else it cannot be asked.
#[derive(Default)]
struct Api {
    watched: WatchApi,
    service: Mutex<Option<Value>>,
}

impl Transport for Api {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        if !request.uri().path().ends_with("/services/web") {
            return self.watched.send(request);
        }
        let answer = match &*self.service.lock() {
            Some(service) => Ok(Response::new(full_body(service.to_string()))),
            None => Err(TransportError("cut off from the cluster".to_owned())),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// The announcer of node `a`, which announces the addresses of one service.
struct Node {
    api: Arc<Api>,
    rivals: mpsc::Sender<Rival>,
    announced: watch::Receiver<Addresses>,
    _tasks: Tasks,
}

impl Node {
    async fn new() -> Self {
        let api = Arc::<Api>::default();
        let object = service("LoadBalancer", true, "a");
        api.watched.put("services", object.clone());
        *api.service.lock() = Some(object);
        let tasks = Tasks::root("test");
        let (announcer, announced) = Announcer::new(tasks.child("announcer"));
        let (rivals, heard) = mpsc::channel(8);
        let client = Client::new(Arc::clone(&api) as Arc<dyn Transport>, "test");
        ServiceAnnouncer::keep_in(&tasks, "a", client, Arc::new(SystemClock), (announcer, heard));
        let mut node = Self { api, rivals, announced, _tasks: tasks };
        node.until(|addresses| addresses.len() == 2).await;
        node
    }

    async fn until(&mut self, holds: impl Fn(&Addresses) -> bool) {
        self.announced.wait_for(holds).await.unwrap();
    }

    /// Reports another machine, and returns when the report and what follows from it is done.
    async fn hears(&self, kind: RivalKind) {
        let rival = Rival { ip: IP.parse().unwrap(), mac: Mac([2, 0, 0, 0, 0, 9]), kind };
        self.rivals.send(rival).await.unwrap();
        // The paused clock moves when every task waits.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn announces(&self) -> bool {
        self.announced.borrow().contains_key(&IP.parse::<IpAddr>().unwrap())
    }

    fn events(&self) -> Vec<Value> {
        self.api.watched.written("events")
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_another_machine_keeps_is_an_event_with_what_to_do() {
    let node = Node::new().await;
    for conflicts in 1..CONFLICTS_REPORTED {
        node.hears(RivalKind::Owner { conflicts }).await;
    }
    assert!(node.events().is_empty(), "the node that announced it before may need a moment");
    node.hears(RivalKind::Owner { conflicts: CONFLICTS_REPORTED }).await;
    let events = node.events();
    let message = events[0]["message"].as_str().unwrap();
    assert_eq!(
        (&events[0]["reason"], &events[0]["involvedObject"]["name"]),
        (&json!("AddressConflict"), &json!("web"))
    );
    for part in [IP, "02:00:00:00:00:09", "is not announced", "remove it there", "--load-balancer-pool"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_ask_gives_an_address_to_a_machine_that_insists() {
    let mut node = Node::new().await;
    let pause = || tokio::time::sleep(PROBE_INSISTS);
    *node.api.service.lock() = None;
    node.hears(RivalKind::Prober).await;
    node.hears(RivalKind::Prober).await;
    assert!(node.announces(), "a machine that checks its own address asks once");
    *node.api.service.lock() = Some(service("LoadBalancer", true, "a"));
    pause().await;
    node.hears(RivalKind::Prober).await;
    assert!(node.announces(), "the API confirms it");
    *node.api.service.lock() = None;
    pause().await;
    node.hears(RivalKind::Prober).await;
    node.until(|addresses| addresses.len() == 1).await;
    assert!(!node.announces());
    *node.api.service.lock() = Some(service("LoadBalancer", true, "a"));
    node.until(|addresses| addresses.len() == 2).await;
    assert!(node.events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_elsewhere_is_announced_again_where_the_api_confirms_it() {
    let mut node = Node::new().await;
    node.hears(RivalKind::User).await;
    let number = |node: &Node| node.announced.borrow().get(&IP.parse::<IpAddr>().unwrap()).copied();
    assert_eq!((number(&node), node.events().len()), (Some(1), 1));
    node.hears(RivalKind::User).await;
    assert_eq!(number(&node), Some(1), "once in a while");
    *node.api.service.lock() = Some(service("LoadBalancer", true, "b"));
    tokio::time::sleep(DEFEND).await;
    node.hears(RivalKind::User).await;
    node.until(|addresses| addresses.len() == 1).await;
    assert!(!node.announces(), "another node announces it now");
}
