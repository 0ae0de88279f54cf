//! Requests to extenders, handling of their answers, and validation of their configuration.
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{asks, core, decide, node, on, pod};
use crate::configuration;
use crate::core::{Answer, Core, Question, Room, Step};
use crate::extender::Extender;

fn extender() -> Extender {
    Extender { filter: "filter".into(), prioritize: "prioritize".into(), weight: 1, ..Extender::default() }
}

fn with(extender: Extender) -> Core {
    let mut c = core(&[node("a", json!({})), node("b", json!({}))], &[]);
    c.extenders = vec![extender];
    c
}

fn asked(c: &mut Core, name: &str) -> Question {
    let now = Instant::now();
    c.put_pod(pod(name, json!({})), now);
    match c.step(now) {
        Step::Ask(question) => question,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_highest_sum_wins_and_rejections_are_reported() {
    let mut c = with(extender());
    let now = Instant::now();
    let q = asked(&mut c, "p");
    assert_eq!(q.nodes.len(), 2);
    let answer = Answer { nodes: vec![("a".into(), 5), ("b".into(), 50)], refused: Vec::new() };
    assert!(matches!(c.answered(q, Ok(answer), now), Step::Bind(p) if &*p.node_name == "b"));
    let q = asked(&mut c, "q");
    let refused = vec![("a".into(), "no licence".into(), false), ("b".into(), "no licence".into(), true)];
    let Step::Report(r) = c.answered(q, Ok(Answer { nodes: Vec::new(), refused }), now) else { panic!("not refused") };
    assert!(r.message.starts_with("0/2 nodes are available: 2 no licence."), "{}", r.message);
    assert!(matches!(c.step(now), Step::Idle(_)));
    c.changed(crate::plugins::change::Change::ClassAdd, None, now + std::time::Duration::from_secs(9));
    assert!(
        matches!(c.step(now + std::time::Duration::from_secs(9)), Step::Ask(_)),
        "its word may change with anything"
    );
    let q = asked(&mut c, "r");
    let Step::Report(r) = c.answered(q, Err("it broke".into()), now) else { panic!("not told") };
    assert_eq!((r.reason, &*r.message), ("SchedulerError", "it broke"));
}

#[test]
fn what_went_while_extenders_were_asked_is_not_placed() {
    let mut c = with(extender());
    let now = Instant::now();
    let q = asked(&mut c, "p");
    c.remove_node("b", now);
    let answer = Answer { nodes: vec![("a".into(), 5), ("b".into(), 50)], refused: Vec::new() };
    assert!(matches!(c.answered(q, Ok(answer), now), Step::Bind(p) if &*p.node_name == "a"));
    let q = asked(&mut c, "q");
    c.remove_pod(&pod("q", json!({})), now);
    let answer = Answer { nodes: vec![("a".into(), 5)], refused: Vec::new() };
    assert!(matches!(c.answered(q, Ok(answer), now), Step::Idle(_)));
}

#[test]
fn only_pods_that_want_its_resources_are_its_business() {
    let mut c = with(Extender { managed: vec!["example.com/gpu".into()], ..extender() });
    assert!(decide(&mut c, pod("plain", json!({}))).is_ok());
    let more = json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10", "example.com/gpu": "1"}}});
    c.put_node(&node("a", more), Instant::now());
    let gpu = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}});
    assert_eq!(decide(&mut c, pod("wants", gpu)), Err("asks about [\"a\"]".into()));
}

#[test]
fn an_extender_chooses_who_makes_room() {
    let mut c = with(Extender { preempt: "preempt".into(), ..Extender::default() });
    let now = Instant::now();
    for n in ["a", "b"] {
        c.put_pod(on(n, asks(&format!("on-{n}"), "4", json!({}))), now);
    }
    let wants = || asks("p", "4", json!({"spec": {"priority": 9}}));
    c.put_pod(wants(), now);
    let Step::AskForRoom(q) = c.step(now) else { panic!("not asked") };
    assert_eq!(q.rooms.len(), 2);
    let rooms: Vec<Room> = q.rooms.iter().filter(|r| &*r.node == "b").cloned().collect();
    let Step::Preempt(p) = c.rooms_answered(q, Ok(rooms), now) else { panic!("no room") };
    assert_eq!(p.victims.iter().map(|v| &*v.name).collect::<Vec<_>>(), ["on-b"]);
    c.remove_pod(&wants(), now);
    c.put_pod(wants(), now);
    let Step::AskForRoom(q) = c.step(now) else { panic!("not asked") };
    let Step::Report(r) = c.rooms_answered(q, Ok(Vec::new()), now) else { panic!("not told") };
    assert!(r.message.ends_with("preemption: no candidate node for preemption"), "{}", r.message);
}

#[test]
fn configurations_of_extenders() {
    let read = |extenders: Value| {
        configuration::read(
            &json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "extenders": extenders}),
        )
    };
    let good = json!([{"urlPrefix": "http://127.0.0.1:1/x", "filterVerb": "f", "prioritizeVerb": "p", "weight": 2,
        "httpTimeout": "1s", "ignorable": true, "managedResources": [{"name": "example.com/gpu", "ignoredByScheduler": true}]},
        {"urlPrefix": "https://localhost:1", "enableHTTPS": true, "bindVerb": "b", "nodeCacheCapable": true}]);
    let config = read(good).unwrap().config;
    let settings = config.extenders.settings();
    assert_eq!(settings.iter().map(|e| e.ignorable).collect::<Vec<_>>(), [false, true], "those of use come first");
    assert_eq!((settings[1].weight, settings[1].timeout.as_secs(), settings[0].timeout.as_secs()), (2, 1, 5));
    assert_eq!(config.profiles[0].fit.ignored, ["example.com/gpu"]);
    for (extenders, want) in [
        (
            json!([{"urlPrefix": "http://x", "prioritizeVerb": "p"}]),
            "extenders[0].weight: 0: must have a positive weight applied to it",
        ),
        (
            json!([{"urlPrefix": "http://x", "bindVerb": "a"}, {"urlPrefix": "http://y", "bindVerb": "b"}]),
            "extenders: found 2 extenders implementing bind: only one extender can implement bind",
        ),
        (
            json!([{"urlPrefix": "http://x", "managedResources": [{"name": "cpu"}]}]),
            "extenders[0].managedResources[0].name: \"cpu\" is an invalid extended resource name",
        ),
        (
            json!([{"urlPrefix": "http://x", "managedResources": [{"name": "a.b/c"}, {"name": "a.b/c"}]}]),
            "extenders[0].managedResources[1].name: \"a.b/c\": duplicate extender managed resource name",
        ),
        (json!([{"urlPrefix": "ftp://x"}]), "extenders[0]: must be an http or https URL, got \"ftp://x\""),
        (json!([{"urlPrefix": "http://x", "verb": "f"}]), "extenders[0].verb: unknown field"),
        (json!([{"urlPrefix": "https://x", "tlsConfig": {"caFile": "/nowhere"}}]), "extenders[0]: /nowhere"),
    ] {
        let faults = read(extenders.clone()).unwrap_err().0;
        assert!(faults.len() == 1 && faults[0].starts_with(want), "{extenders}: {faults:?}");
    }
}
