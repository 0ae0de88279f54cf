//! One table of cases per plugin.
use serde_json::{Value, json};

use super::{asks, check, core, decide, node, on, pod, useless};

const HELPLESS: &str = "1 Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "1 No preemption victims found for incoming pod";

fn spec(spec: Value) -> Value {
    json!({"spec": spec})
}

fn ok(node: &str) -> Result<String, String> {
    Ok(node.to_owned())
}

#[test]
fn taints_and_cordons() {
    let tainted = node("n", spec(json!({"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]})));
    let refused = || useless("1 node(s) had untolerated taint(s)", 1, HELPLESS);
    for (toleration, want) in [
        (json!({"key": "k", "value": "v"}), ok("n")),
        (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), ok("n")),
        (json!({"operator": "Exists"}), ok("n")),
        (json!({"key": "k", "value": "w"}), refused()),
        (json!({"key": "k", "value": "v", "effect": "NoSchedule"}), refused()),
    ] {
        check(std::slice::from_ref(&tainted), &[], pod("p", spec(json!({"tolerations": [toleration]}))), want);
    }
    let cordoned = node("n", spec(json!({"unschedulable": true})));
    check(
        std::slice::from_ref(&cordoned),
        &[],
        pod("p", json!({})),
        useless("1 node(s) were unschedulable", 1, HELPLESS),
    );
    let daemon = json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]});
    check(&[cordoned], &[], pod("p", spec(daemon)), ok("n"));
    // `PreferNoSchedule` does not reject, but the other node is preferred.
    let prefer = node("a", spec(json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]})));
    check(std::slice::from_ref(&prefer), &[], pod("p", json!({})), ok("a"));
    check(&[prefer, node("b", json!({}))], &[], pod("p", json!({})), ok("b"));
}

fn required(terms: Value) -> Value {
    spec(json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
}

#[test]
fn node_affinity() {
    let n = node("n", json!({"metadata": {"labels": {"disk": "ssd", "gen": "5"}}}));
    let refused = || useless("1 node(s) didn't match Pod's node affinity/selector", 1, HELPLESS);
    check(std::slice::from_ref(&n), &[], pod("p", spec(json!({"nodeSelector": {"disk": "ssd"}}))), ok("n"));
    check(std::slice::from_ref(&n), &[], pod("p", spec(json!({"nodeSelector": {"disk": "hdd"}}))), refused());
    let expression = |op: &str, key: &str, values: Value| {
        required(json!([{"matchExpressions": [{"key": key, "operator": op, "values": values}]}]))
    };
    for (over, want) in [
        (expression("In", "disk", json!(["hdd", "ssd"])), ok("n")),
        (expression("NotIn", "disk", json!(["ssd"])), refused()),
        (expression("NotIn", "other", json!(["ssd"])), ok("n")),
        (expression("Exists", "disk", json!([])), ok("n")),
        (expression("DoesNotExist", "disk", json!([])), refused()),
        (expression("Gt", "gen", json!(["4"])), ok("n")),
        (expression("Lt", "gen", json!(["5"])), refused()),
        (required(json!([{}])), refused()),
    ] {
        check(std::slice::from_ref(&n), &[], pod("p", over), want);
    }
    let by_name = |name: &str| {
        pod("p", required(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}])))
    };
    let two = [n.clone(), node("m", json!({"spec": {"unschedulable": true}}))];
    check(&two, &[], by_name("n"), ok("n"));
    let tail = "2 Preemption is not helpful for scheduling";
    let said = "1 node(s) didn't satisfy plugin(s) [NodeAffinity], 1 node(s) were unschedulable";
    check(&two, &[], by_name("m"), useless(said, 2, tail));
    let prefer = spec(json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}]}}}));
    check(&[node("a", json!({})), n, node("z", json!({}))], &[], pod("p", prefer), ok("n"));
}

#[test]
fn ports() {
    let with = |name: &str, port: Value| pod(name, spec(json!({"containers": [{"name": "c", "ports": [port]}]})));
    let n = [node("n", json!({}))];
    let there = [on("n", with("there", json!({"hostPort": 80, "hostIP": "10.0.0.1", "protocol": "TCP"})))];
    let refused = || useless("1 node(s) didn't have free ports for the requested pod ports", 1, NO_VICTIMS);
    check(&n, &there, with("all", json!({"hostPort": 80})), refused());
    check(&n, &there, with("same", json!({"hostPort": 80, "hostIP": "10.0.0.1"})), refused());
    check(&n, &there, with("other", json!({"hostPort": 80, "hostIP": "10.0.0.2"})), ok("n"));
    check(&n, &there, with("udp", json!({"hostPort": 80, "protocol": "UDP"})), ok("n"));
    check(&n, &there, with("pod's own", json!({"containerPort": 80})), ok("n"));
}

#[test]
fn resources() {
    let n = [node("n", json!({"status": {"allocatable": {"example.com/gpu": "2"}}}))];
    let there = [on("n", asks("there", "3", json!({})))];
    check(&n, &there, asks("fits", "1", json!({})), ok("n"));
    check(&n, &there, asks("over", "1001m", json!({})), useless("1 Insufficient cpu", 1, NO_VICTIMS));
    check(&n, &there, asks("never", "5", json!({})), useless("1 Insufficient cpu", 1, HELPLESS));
    let wants = |requests: Value| pod("p", spec(json!({"containers": [{"resources": {"requests": requests}}]})));
    check(&n, &there, wants(json!({"example.com/gpu": 2})), ok("n"));
    check(&n, &there, wants(json!({"example.com/gpu": 3})), useless("1 Insufficient example.com/gpu", 1, HELPLESS));
    let both = json!({"cpu": "2", "memory": "9Gi"});
    check(&n, &there, wants(both), useless("1 Insufficient cpu, 1 Insufficient memory", 1, HELPLESS));
    let full: Vec<_> = (0..10).map(|i| on("n", pod(&format!("p{i}"), json!({})))).collect();
    check(&n, &full, pod("p", json!({})), useless("1 Too many pods", 1, NO_VICTIMS));
}

#[test]
fn requests_of_init_containers_sidecars_and_pods() {
    let c = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    let sidecar = |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
    for (what, over, cpu) in [
        ("sum", json!({"containers": [c("1"), c("2")]}), 3000),
        ("init peak", json!({"containers": [c("1")], "initContainers": [c("2"), c("1")]}), 2000),
        ("sidecar adds", json!({"containers": [c("1")], "initContainers": [sidecar("500m")]}), 1500),
        ("init beside sidecar", json!({"containers": [c("1")], "initContainers": [sidecar("500m"), c("2")]}), 2500),
        ("init before sidecar", json!({"containers": [c("1")], "initContainers": [c("2"), sidecar("500m")]}), 2000),
        ("overhead", json!({"containers": [c("1")], "overhead": {"cpu": "250m"}}), 1250),
        ("pod level", json!({"containers": [c("1")], "resources": {"requests": {"cpu": "3"}}}), 3000),
    ] {
        assert_eq!(pod("p", spec(over)).spec.requests.asked.cpu, cpu, "{what}");
    }
}

#[test]
fn emptier_and_more_even_nodes_win() {
    let nodes = [node("a", json!({})), node("b", json!({}))];
    check(&nodes, &[on("a", asks("there", "2", json!({})))], asks("p", "1", json!({})), ok("b"));
    // Images count when they are large and on many nodes.
    let image = json!({"status": {"images": [{"names": ["i:latest"], "sizeBytes": 900u64 << 20}]}});
    check(&[node("a", json!({})), node("b", image)], &[], pod("p", json!({})), ok("b"));
}

fn spread(hard: bool) -> Value {
    let when = if hard { "DoNotSchedule" } else { "ScheduleAnyway" };
    json!({"metadata": {"labels": {"app": "a"}}, "spec": {"topologySpreadConstraints": [{"maxSkew": 1,
        "topologyKey": "zone", "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "a"}}}]}})
}

#[test]
fn topology_spread() {
    let in_zone = |name: &str, zone: &str| node(name, json!({"metadata": {"labels": {"zone": zone}}}));
    let nodes = [in_zone("a", "1"), in_zone("b", "2"), node("c", json!({}))];
    let like = |name: &str| pod(name, json!({"metadata": {"labels": {"app": "a"}}}));
    let there = [on("a", like("x"))];
    check(&nodes, &there, pod("p", spread(true)), ok("b"));
    check(&nodes, &there, pod("p", spread(false)), ok("b"));
    let full = [
        in_zone("a", "1"),
        node("b", json!({"metadata": {"labels": {"zone": "2"}}, "spec": {"unschedulable": true}})),
        node("c", json!({})),
    ];
    let said = "1 node(s) didn't match pod topology spread constraints, 1 node(s) didn't match pod topology spread \
        constraints (missing required label), 1 node(s) were unschedulable";
    let tail = "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling";
    check(&full, &there, pod("p", spread(true)), useless(said, 3, tail));
    // Pods of other sets and terminating pods do not count.
    let leaving = pod("x", json!({"metadata": {"labels": {"app": "a"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    check(&full, &[on("a", leaving)], pod("p", spread(true)), ok("a"));
}

#[test]
fn default_spreading_follows_services() {
    let mut c = core(&[node("a", json!({})), node("b", json!({}))], &[]);
    let key = kelson_meta::ObjectKey::new("default", "svc");
    let selector = [("app".to_owned(), "a".to_owned())].into();
    c.cluster.workloads.put_service(&key, Some(&selector));
    let like = |name: &str| pod(name, json!({"metadata": {"labels": {"app": "a"}}}));
    for _ in 0..4 {
        let first = decide(&mut c, like("1")).unwrap();
        assert_ne!(decide(&mut c, like("2")).unwrap(), first, "one on each");
        c.remove_pod(&like("1"), tokio::time::Instant::now());
        c.remove_pod(&like("2"), tokio::time::Instant::now());
    }
}

fn affinity(kind: &str, labels: Value) -> Value {
    json!({"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}]}}}})
}

#[test]
fn inter_pod_affinity() {
    let nodes = [node("a", json!({})), node("b", json!({}))];
    let web = |name: &str| pod(name, json!({"metadata": {"labels": {"app": "web"}}}));
    let near = |name: &str| pod(name, affinity("podAffinity", json!({"app": "web"})));
    check(&nodes, &[on("b", web("x"))], near("near"), ok("b"));
    let tail = "2 Preemption is not helpful for scheduling";
    check(&nodes, &[], near("lonely"), useless("2 node(s) didn't match pod affinity rules", 2, tail));
    let mut own = affinity("podAffinity", json!({"app": "web"}));
    own["metadata"] = json!({"labels": {"app": "web"}});
    assert!(decide(&mut core(&nodes[..1], &[]), pod("first of its kind", own)).is_ok());
    check(&nodes, &[on("b", web("x"))], pod("far", affinity("podAntiAffinity", json!({"app": "web"}))), ok("a"));
    let hermit = |n: &str| on(n, pod(&format!("hermit-{n}"), affinity("podAntiAffinity", json!({"app": "web"}))));
    check(&nodes, &[hermit("a")], web("guest"), ok("b"));
    let said = "2 node(s) didn't satisfy existing pods anti-affinity rules";
    let tail = "2 No preemption victims found for incoming pod";
    check(&nodes, &[hermit("a"), hermit("b")], web("guest"), useless(said, 2, tail));
    // Pods of another namespace do not match, unless the term selects that namespace.
    let other = pod("x", json!({"metadata": {"namespace": "other", "labels": {"app": "web"}}}));
    let mut any = affinity("podAffinity", json!({"app": "web"}));
    let tail = "2 Preemption is not helpful for scheduling";
    let refused = useless("2 node(s) didn't match pod affinity rules", 2, tail);
    check(&nodes, &[on("b", other.clone())], pod("p", any.clone()), refused);
    let terms = &mut any["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    terms[0]["namespaceSelector"] = json!({});
    check(&nodes, &[on("b", other)], pod("p", any), ok("b"));
}

#[test]
fn claims() {
    let wants = || pod("p", spec(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]})));
    let mut c = core(&[node("a", json!({})), node("b", json!({}))], &[]);
    // The message of DynamicResources when it was not asked before.
    let before = |text: &str| Err(format!("0/2 nodes are available: {text}. not found"));
    assert_eq!(decide(&mut c, wants()), before("persistentvolumeclaim \"c\" not found"));
    let key = kelson_meta::ObjectKey::new("default", "c");
    let mut claim = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {}});
    let now = tokio::time::Instant::now();
    let put = |c: &mut crate::core::Core, claim: &Value| {
        c.cluster.storage.put_claim(key.clone(), Some(serde_json::from_value(claim.clone()).unwrap()));
        c.remove_pod(&wants(), now);
    };
    put(&mut c, &claim);
    assert_eq!(decide(&mut c, wants()), before("pod has unbound immediate PersistentVolumeClaims"));
    claim["spec"]["volumeName"] = json!("pv");
    claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}}}});
    c.cluster.storage.put_volume("pv", Some(serde_json::from_value(volume).unwrap()));
    put(&mut c, &claim);
    assert_eq!(decide(&mut c, wants()), ok("b"));
}

#[test]
fn a_pod_that_is_resized_takes_the_most_of_what_it_asks_and_has() {
    let of = |asks: &str, granted: &str, refused: bool| {
        let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pending = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        let status = json!({"conditions": if refused { pending } else { json!([]) }, "containerStatuses": [
            {"name": "c", "allocatedResources": {"cpu": granted}, "resources": requests(granted)}]});
        pod("p", json!({"status": status, "spec": {"containers": [{"name": "c", "resources": requests(asks)}]}}))
    };
    for (asks, granted, refused, want) in
        [("1", "1", false, 1000), ("2", "1", false, 2000), ("1", "2", false, 2000), ("8", "1", true, 1000)]
    {
        assert_eq!(of(asks, granted, refused).spec.requests.asked.cpu, want, "{asks} {granted} {refused}");
    }
}

#[test]
fn nodes_say_what_they_can() {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    let needs = json!({"spec": {"containers": [{"name": "c", "image": "i", "restartPolicyRules": rules}]}});
    let able = node("b", json!({"status": {"declaredFeatures": ["RestartAllContainersOnContainerExits"]}}));
    check(&[node("a", json!({})), able], &[], pod("p", needs.clone()), Ok("b".into()));
    let why = "1 node(s) didn't match Pod's required features";
    let tail = "1 Preemption is not helpful for scheduling";
    check(&[node("a", json!({}))], &[], pod("p", needs), useless(why, 1, tail));
    let users = json!({"spec": {"hostNetwork": true, "hostUsers": false}});
    check(&[node("a", json!({}))], &[], pod("p", users), useless(why, 1, tail));
}
