//! Profiles and their configuration: reading a document, and its effect on pods.
use std::sync::Arc;

use kelson_metrics::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{asks, decide, node, on, pod};
use crate::configuration;
use crate::core::{Core, Step};

pub fn document(rest: Value) -> Value {
    let mut all = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"});
    super::merge(&mut all, &rest);
    all
}

/// A scheduler with this configuration, on three nodes of which `b` is half full.
pub fn by(rest: Value) -> Core {
    let config = configuration::read(&document(rest)).unwrap().config;
    let mut core = Core::with_profiles(config.profiles, 1, Registry::new());
    core.queue.pause_like(config.pauses);
    let now = Instant::now();
    ["a", "b", "c"].iter().for_each(|n| core.put_node(&node(n, json!({})), now));
    core.put_pod(on("b", asks("there", "2", json!({}))), now);
    core
}

fn fit(args: Value) -> Value {
    json!({"profiles": [{"schedulerName": "default-scheduler", "pluginConfig": [{"name": "NodeResourcesFit", "args": args}],
        "plugins": {"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit", "weight": 5}]}}}]})
}

#[test]
fn strategies_choose_nodes() {
    let wants = || asks("p", "1", json!({}));
    let most = fit(json!({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}}));
    assert_eq!(decide(&mut by(most), wants()), Ok("b".into()));
    let ratio = json!({"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": [
        {"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}});
    assert_eq!(decide(&mut by(fit(json!({"scoringStrategy": ratio}))), wants()), Ok("b".into()));
    assert_ne!(decide(&mut by(fit(json!({}))), wants()), Ok("b".into()));
}

#[test]
fn a_plugin_that_is_off_neither_refuses_nor_scores() {
    let tainted = |core: &mut Core| {
        for n in ["a", "b", "c"] {
            let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
            core.put_node(&node(n, taint), Instant::now());
        }
    };
    for (plugins, runs) in [
        (json!({}), false),
        (json!({"multiPoint": {"disabled": [{"name": "TaintToleration"}]}}), true),
        (json!({"filter": {"disabled": [{"name": "TaintToleration"}]}}), true),
        (json!({"score": {"disabled": [{"name": "TaintToleration"}]}}), false),
        (json!({"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}}), true),
        (json!({"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "TaintToleration"}]}}), false),
    ] {
        let mut core = by(json!({"profiles": [{"plugins": plugins}]}));
        tainted(&mut core);
        assert_eq!(decide(&mut core, pod("p", json!({}))).is_ok(), runs, "{plugins}");
    }
}

#[test]
fn each_profile_decides_on_its_own_pods() {
    let mut core = by(json!({"profiles": [
        {"schedulerName": "default-scheduler"},
        {"schedulerName": "packer", "plugins": {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]},
            "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}},
            "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}]},
    ]}));
    let of = |name: &str, scheduler: &str| asks(name, "1", json!({"spec": {"schedulerName": scheduler}}));
    assert_eq!(decide(&mut core, of("p", "packer")), Ok("b".into()));
    assert_ne!(decide(&mut core, of("q", "default-scheduler")), Ok("b".into()));
    assert_eq!(decide(&mut core, of("r", "somebody")), Err("idle".into()));
    // Pods of a profile without preemption preempt nothing; those of another profile may.
    let large =
        |name: &str, scheduler: &str| asks(name, "4", json!({"spec": {"schedulerName": scheduler, "priority": 10}}));
    for n in ["a", "c"] {
        core.put_pod(on(n, asks(&format!("on-{n}"), "1", json!({}))), Instant::now());
    }
    let why = decide(&mut core, large("s", "packer")).unwrap_err();
    assert!(why.contains("Insufficient cpu") && !why.contains("preempt"), "{why}");
    assert!(decide(&mut core, large("t", "default-scheduler")).unwrap_err().contains("preempts"));
    // A change that frees a node requeues the pods of both profiles.
    let now = Instant::now() + std::time::Duration::from_secs(60);
    core.put_node(&node("d", json!({})), now);
    let Step::Bind(first) = core.step(now) else { panic!("it fits the new node") };
    assert_eq!((&*first.node_name, Arc::strong_count(&first) > 0), ("d", true));
}

#[test]
fn faults_of_configurations() {
    let faults = |rest: Value| configuration::read(&document(rest)).map(drop).map_err(|f| f.0.join("; "));
    for (rest, want) in [
        (json!({"parallelism": 0}), "parallelism"),
        (json!({"profilez": []}), "profilez: unknown field"),
        (json!({"percentageOfNodesToScore": 101}), "percentageOfNodesToScore"),
        (json!({"podInitialBackoffSeconds": 20}), "podMaxBackoffSeconds"),
        (json!({"extenders": [{}]}), "extenders[0]: "),
        (json!({"profiles": [{}, {}]}), "profiles[1].schedulerName: duplicate"),
        (json!({"profiles": [{"plugins": {"score": {"enabled": [{"name": "X"}]}}}]}), "plugins.score.enabled[0].name"),
        (json!({"profiles": [{"plugins": {"bind": {"disabled": [{"name": "DefaultBinder"}]}}}]}), "cannot be disabled"),
        (
            json!({"profiles": [{"pluginConfig": [{"name": "NodeAffinity", "args": {"addedAffinity": {"x": 1}}}]}]}),
            "addedAffinity.x: unknown field",
        ),
        (fit(json!({"scoringStrategy": {"type": "Best"}})), "scoringStrategy.type"),
        (fit(json!({"scoringStrategy": {"type": "RequestedToCapacityRatio"}})), "at least one point"),
    ] {
        let why = faults(rest.clone()).unwrap_err();
        assert!(why.contains(want), "{rest}: {why}");
    }
    assert!(configuration::read(&json!({"kind": "KubeSchedulerConfiguration"})).is_err());
    assert_eq!(faults(json!({})), Ok(()));
    let usual = json!({"leaderElection": {"leaderElect": false}, "clientConnection": {"kubeconfig": "/k"}});
    let read = configuration::read(&document(usual)).unwrap();
    assert_eq!((read.election.leader_elect, read.connection.kubeconfig), (Some(false), Some("/k".into())));
}

#[test]
fn plugins_get_their_arguments() {
    let with = |name: &str, args: Value| json!({"profiles": [{"pluginConfig": [{"name": name, "args": args}]}]});
    let read = |name: &str, args: Value| configuration::read(&document(with(name, args)));
    let seconds = |n: u64| std::time::Duration::from_secs(n);
    let reported = |name: &str, args: Value| read(name, args).unwrap().config.profiles.remove(0);
    assert_eq!(reported("VolumeBinding", json!({"bindTimeoutSeconds": 30})).volumes_within, seconds(30));
    let devices = reported("DynamicResources", json!({"bindingTimeout": "1m", "filterTimeout": "0s"}));
    assert_eq!((devices.devices_within, devices.volumes_within), (seconds(60), seconds(600)));
    for (name, args, want) in [
        (
            "VolumeBinding",
            json!({"bindTimeoutSeconds": -1}),
            "bindTimeoutSeconds: must be an integer from 0 to 2147483647, got -1",
        ),
        ("VolumeBinding", json!({"shape": [{"utilization": 0, "score": 0}]}), "shape: is not supported"),
        ("DynamicResources", json!({"bindingTimeout": "0.5s"}), "bindingTimeout: \"0.5s\": must be at least 1 second"),
        ("DynamicResources", json!({"filterTimeout": "-1s"}), "filterTimeout: \"-1s\": must be zero or positive"),
        (
            "InterPodAffinity",
            json!({"hardPodAffinityWeight": 101}),
            "hardPodAffinityWeight: must be an integer from 0 to 100, got 101",
        ),
    ] {
        assert_eq!(read(name, args).unwrap_err().0, [format!("profiles[0].pluginConfig[0].args.{want}")]);
    }
}

#[test]
fn who_wants_company_draws_as_much_as_is_configured() {
    let lonely = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"affinity": {"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": "x"}}}]}}}});
    let only = json!({"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "InterPodAffinity"}, {"name": "NodeResourcesFit"}]}});
    let by_weight = |args: Value| {
        let config = json!([{"name": "InterPodAffinity", "args": args}]);
        let mut core = by(json!({"profiles": [{"pluginConfig": config, "plugins": only}]}));
        core.put_pod(on("b", pod("lonely", lonely.clone())), Instant::now());
        decide(&mut core, asks("p", "1", json!({"metadata": {"labels": {"app": "x"}}})))
    };
    assert_eq!(by_weight(json!({})), Ok("b".into()), "though it is fuller");
    assert_ne!(by_weight(json!({"hardPodAffinityWeight": 0})), Ok("b".into()));
    assert_ne!(
        by_weight(json!({"ignorePreferredTermsOfExistingPods": true})),
        Ok("b".into()),
        "it prefers nothing itself"
    );
}

#[test]
fn a_misspelt_field_at_any_level_is_refused() {
    let node = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]});
    let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": true, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s"},
        "clientConnection": {"kubeconfig": "/k", "qps": 1, "burst": 2},
        "profiles": [{"schedulerName": "s",
            "plugins": {"score": {"enabled": [{"name": "NodeAffinity", "weight": 2}], "disabled": [{"name": "ImageLocality"}]}},
            "pluginConfig": [
                {"name": "NodeAffinity", "args": {"addedAffinity":
                    {"requiredDuringSchedulingIgnoredDuringExecution": node}}},
                {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "LeastAllocated",
                    "resources": [{"name": "cpu", "weight": 1}]}}},
                {"name": "PodTopologySpread", "args": {"defaultingType": "List", "defaultConstraints":
                    [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]}},
                {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 1}},
            ]}],
        "extenders": [{"urlPrefix": "http://127.0.0.1:1/x", "filterVerb": "filter", "weight": 1,
            "managedResources": [{"name": "example.com/r", "ignoredByScheduler": true}]}]});
    let read = |document: &Value| crate::configuration::read(document).map(drop).map_err(|faults| faults.0.join(" "));
    assert_eq!(read(&document), Ok(()));
    for (at, misspelt) in kelson_codec::strict::misspelt(&document) {
        let why = read(&misspelt).expect_err(&at);
        assert!(why.contains("misspelt"), "{at}: {why}");
    }
}
