//! Tests of classifying, waiting, borrowing and configuring on a paused clock.
use super::*;
use kelson_auth::{UserInfo, user};
use serde_json::json;

fn control(seats: u32) -> (Arc<FlowControl>, Registry) {
    let registry = Registry::new();
    (FlowControl::new(seats, &registry, &Tasks::root("test")), registry)
}

fn bootstrap() -> (Vec<PriorityLevelConfiguration>, Vec<FlowSchema>) {
    let (schemas, levels): (Vec<_>, Vec<_>) = objects::wanted().into_iter().partition(|w| w.resource == "flowschemas");
    let object = |mut w: objects::DesiredObject| {
        w.object["metadata"]["uid"] = format!("uid-{}", w.name()).into();
        w.object
    };
    let levels = levels.into_iter().map(|w| serde_json::from_value(object(w)).unwrap()).collect();
    (levels, schemas.into_iter().map(|w| serde_json::from_value(object(w)).unwrap()).collect())
}

/// Returns the UIDs of the schema and the level of a request.
fn sorted(control: &FlowControl, who: &UserInfo, verb: &str, group: &str, resource: &str) -> String {
    let path = resource;
    let request = Attributes {
        path,
        is_resource: !path.starts_with('/'),
        ..Attributes::resource(who, verb, group, resource, "kube-system", "x")
    };
    let class = control.classify(&request).unwrap();
    format!("{} {}", class.flow_schema_uid(), class.priority_level_uid()).replace("uid-", "")
}

#[tokio::test]
async fn requests_are_sorted_as_everybody_expects() {
    let (control, _) = control(600);
    let jane = UserInfo::new("jane", [user::AUTHENTICATED]);
    assert_eq!(sorted(&control, &jane, "get", "", "pods"), " ", "sorted before there are objects");
    let (levels, schemas) = bootstrap();
    assert_eq!(control.configure(&levels, &schemas).len(), schemas.len(), "no condition is written yet");
    let node = UserInfo::new("system:node:n", [user::NODES, user::AUTHENTICATED]);
    let account = |ns: &str| UserInfo::service_account(ns, "x", "");
    let manager = UserInfo::new("system:kube-controller-manager", [user::AUTHENTICATED]);
    for (who, verb, group, resource, expected) in [
        (UserInfo::new("admin", [user::MASTERS]), "get", "", "pods", "exempt exempt"),
        (UserInfo::anonymous(), "get", "", "/healthz", "probes exempt"),
        (node.clone(), "update", "coordination.k8s.io", "leases", "system-node-high node-high"),
        (node, "get", "", "secrets", "system-nodes system"),
        (manager.clone(), "update", "coordination.k8s.io", "leases", "system-leader-election leader-election"),
        (manager, "list", "", "pods", "kube-controller-manager workload-high"),
        (account("kube-system"), "list", "", "pods", "kube-system-service-accounts workload-high"),
        (account("default"), "list", "", "pods", "service-accounts workload-low"),
        (jane.clone(), "get", "", "pods", "global-default global-default"),
        (UserInfo::new("odd", ["none"]), "get", "", "pods", "catch-all catch-all"),
    ] {
        assert_eq!(sorted(&control, &who, verb, group, resource), expected, "{}", who.name);
    }
}

fn level(name: &str, shares: u32, lendable: u32) -> PriorityLevelConfiguration {
    let queuing = json!({"queues": 8, "handSize": 1, "queueLengthLimit": 2});
    let limited = json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable,
        "limitResponse": {"type": "Queue", "queuing": queuing}});
    let spec = json!({"type": "Limited", "limited": limited});
    serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": spec})).unwrap()
}

fn schema(name: &str, level: &str, user: &str) -> FlowSchema {
    let rules = json!([{"subjects": [{"kind": "User", "user": {"name": user}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]}]);
    let spec = json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": 100, "rules": rules,
        "distinguisherMethod": {"type": "ByUser"}});
    serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": spec})).unwrap()
}

fn ask(control: &FlowControl, user: &str) -> Admission {
    let who = UserInfo::new(user, [user::AUTHENTICATED]);
    let request = Attributes::resource(&who, "get", "", "pods", "default", "x");
    let class = control.classify(&request).unwrap();
    control.start(&class, &request, Work::ONE, || std::array::from_fn(|i| format!("detail {i}")))
}

fn seats(admission: Admission) -> Option<Seats> {
    if let Admission::Run(seats) = admission { Some(seats) } else { None }
}

fn value(registry: &Registry, metric: &str) -> f64 {
    let text = registry.text();
    let line = text.lines().find(|l| l.starts_with(&format!("apiserver_flowcontrol_{metric} ")));
    line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{metric} in\n{text}"))
}

#[tokio::test(start_paused = true)]
async fn a_turn_comes_or_is_given_up() {
    let (control, registry) = control(1);
    // Besides the mandatory levels, it has nearly all of the one seat.
    control.configure(&[level("a", 1000, 0)], &[schema("s", "a", "u")]);
    let first = seats(ask(&control, "u")).expect("a seat");
    let Admission::Wait(turn) = ask(&control, "u") else { panic!("waits") };
    let Admission::Wait(late) = ask(&control, "u") else { panic!("waits") };
    let Admission::Refused(refused) = ask(&control, "u") else { panic!("the queue is full") };
    assert_eq!(refused.retry_after_s, 1);
    assert!(control.dump_requests(true).contains("detail 7"), "{}", control.dump_requests(true));
    let now = Instant::now();
    assert!(late.come(now + Duration::from_secs(1)).await.is_err());
    let of_schema = "{flow_schema=\"s\",priority_level=\"a\"";
    let rejected =
        |reason: &str| value(&registry, &format!("rejected_requests_total{of_schema},reason=\"{reason}\"}}"));
    assert_eq!([rejected("time-out"), rejected("queue-full")], [1.0, 1.0]);
    drop(first);
    let second = turn.come(now + Duration::from_secs(60)).await.expect("its turn");
    let Admission::Wait(gone) = ask(&control, "u") else { panic!("waits") };
    drop(gone);
    drop(second);
    assert_eq!(rejected("cancelled"), 1.0);
    assert_eq!(value(&registry, &format!("current_executing_requests{of_schema}}}")), 0.0);
    assert_eq!(value(&registry, &format!("current_inqueue_requests{of_schema}}}")), 0.0);
    assert_eq!(value(&registry, &format!("dispatched_requests_total{of_schema}}}")), 2.0);
}

#[tokio::test(start_paused = true)]
async fn use_is_shown_over_time() {
    let (control, registry) = control(1);
    control.configure(&[level("a", 1000, 0)], &[schema("s", "a", "u")]);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let first = seats(ask(&control, "u")).expect("a seat");
    let Admission::Wait(turn) = ask(&control, "u") else { panic!("waits") };
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(first);
    let second = turn.come(Instant::now()).await.expect("its turn");
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(second);
    let seconds = |metric: &str| value(&registry, metric) / 1e9;
    for (metric, phase, le, wanted) in [
        // The only seat was in use for five of nine seconds.
        ("priority_level_seat_utilization", "executing", "0.99", 4.0),
        ("priority_level_seat_utilization", "executing", "+Inf", 9.0),
        // One of sixteen queue positions was in use for two seconds.
        ("priority_level_request_utilization", "waiting", "0.03", 7.0),
        ("priority_level_request_utilization", "waiting", "0.1", 9.0),
        ("priority_level_request_utilization", "executing", "0.75", 4.0),
        ("priority_level_request_utilization", "executing", "1", 9.0),
    ] {
        let shown = seconds(&format!("{metric}_bucket{{phase=\"{phase}\",priority_level=\"a\",le=\"{le}\"}}"));
        assert_eq!(shown, wanted, "{metric} {phase} {le}");
    }
    // The demand was two seats for two seconds and one seat for three seconds. One seat exists.
    let demand = |le: &str| seconds(&format!("demand_seats_bucket{{priority_level=\"a\",le=\"{le}\"}}"));
    assert_eq!([demand("0.2"), demand("1"), demand("1.7"), demand("2")], [4.0, 7.0, 7.0, 9.0]);
    for metric in ["dispatch_r", "latest_s"] {
        assert!(value(&registry, &format!("{metric}{{priority_level=\"a\"}}")) > 0.0, "{metric}");
    }
    assert!(value(&registry, "next_s_bounds{bound=\"min\",priority_level=\"a\"}") > 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_busy_level_borrows_what_an_idle_one_lends() {
    let (control, registry) = control(100);
    let schemas = [schema("s", "busy", "u"), schema("t", "idle", "v")];
    control.configure(&[level("busy", 50, 0), level("idle", 45, 80)], &schemas);
    let limit = |level: &str| value(&registry, &format!("current_limit_seats{{priority_level=\"{level}\"}}"));
    let running = Arc::clone(&control);
    tokio::spawn(async move { running.run().await });
    let held: Vec<Seats> = (0..60).map_while(|_| seats(ask(&control, "u"))).collect();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(limit("busy") > 70.0, "{}", registry.text());
    assert!((9.0..20.0).contains(&limit("idle")), "it keeps what it does not lend: {}", limit("idle"));
    let more: Vec<Seats> = (0..100).map_while(|_| seats(ask(&control, "u"))).collect();
    assert!(held.len() + more.len() > 70);
    let back: Vec<Seats> = (0..50).map_while(|_| seats(ask(&control, "v"))).collect();
    assert!(back.len() >= 9, "what it keeps is there at once");
}

#[tokio::test(start_paused = true)]
async fn a_level_goes_when_its_last_request_has_ended() {
    let (control, _) = control(100);
    assert!(control.configure(&[level("a", 10, 0)], &[schema("s", "a", "u")]).iter().all(|d| !d.dangling));
    let held = seats(ask(&control, "u")).expect("a seat");
    let dangling = control.configure(&[], &[schema("s", "a", "u")]);
    assert_eq!(
        dangling[0].message,
        "This FlowSchema references the PriorityLevelConfiguration object named \"a\" but there is no such object"
    );
    assert!(control.levels().iter().any(|l| l.name == "a"), "it has a request");
    let who = UserInfo::new("u", [user::AUTHENTICATED]);
    let class = control.classify(&Attributes::resource(&who, "get", "", "pods", "x", "y")).unwrap();
    assert_eq!(class.flow_schema_uid(), "", "nobody is sorted into it any more");
    drop(held);
    control.configure(&[], &[]);
    assert!(control.levels().iter().all(|l| l.name != "a"));
}
