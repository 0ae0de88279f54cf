//! Writes and reads of which the reference's answer was seen: the code, and for rejected objects the field and reason of every cause.
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::Api;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";
const RANGES: &str = "/api/v1/namespaces/default/limitranges";
const RUNTIMES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";

/// A request, and the expected answer: the code, and for 422 the causes as `FIELD REASON`, separated by commas.
struct Row(&'static str, String, Value, &'static str);

impl Row {
    /// A new object that is not stored.
    fn create(path: &str, object: Value, expected: &'static str) -> Self {
        Self("POST", format!("{path}?dryRun=All"), object, expected)
    }
    /// A strategic merge patch that is not stored.
    fn patch(path: impl std::fmt::Display, patch: Value, expected: &'static str) -> Self {
        Self("PATCH", format!("{path}?dryRun=All"), patch, expected)
    }
}

/// The fields and reasons of an error's causes.
fn causes(answer: &Value) -> BTreeSet<String> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = answer["details"]["causes"].as_array().into_iter().flatten();
    list.map(|c| format!("{} {}", text(&c["field"]), text(&c["reason"]).replace("FieldValue", ""))).collect()
}

async fn check(api: &Api, rows: Vec<Row>) {
    let mut wrong = Vec::new();
    for Row(method, path, object, expected) in rows {
        let kind = if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
        let (code, answer) = api.typed(method, &path, kind, object.clone()).await;
        let causes = causes(&answer);
        let (expected_code, expected_causes) = expected.split_once(' ').unwrap_or((expected, ""));
        let expected_causes: BTreeSet<String> =
            expected_causes.split(", ").filter(|cause| !cause.is_empty()).map(str::to_owned).collect();
        let is_rejected = expected_code == "422";
        if code.to_string() != expected_code || is_rejected && causes != expected_causes {
            wrong.push(format!(
                "{method} {path} {object}\n  expected {expected}\n  got {code} {causes:?} {}",
                answer["message"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `object` with the members of `more`, which replace its own.
fn with(mut object: Value, more: Value) -> Value {
    if let (Some(to), Some(from)) = (object.as_object_mut(), more.as_object()) {
        to.extend(from.clone());
    }
    object
}

fn named(spec: Value) -> Value {
    json!({"metadata": {"name": "x"}, "spec": spec})
}

fn pod(spec: Value) -> Value {
    named(with(json!({"containers": [{"name": "c", "image": "x"}]}), spec))
}

fn volume(spec: Value) -> Value {
    named(with(json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}), spec))
}

fn service(spec: Value) -> Value {
    named(with(json!({"ports": [{"port": 80}]}), spec))
}

#[tokio::test]
async fn statuses_of_pods() {
    let api = Api::start().await;
    api.create(PODS, with(pod(json!({})), json!({"metadata": {"name": "p"}}))).await;
    let status = |status: Value, expected| Row::patch(format!("{PODS}/p/status"), json!({"status": status}), expected);
    check(
        &api,
        vec![
            status(json!({"podIP": "a"}), "422 status.podIPs[0] Invalid"),
            status(
                json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "b"}]}),
                "422 status.podIPs[1] Invalid, status.podIPs InternalError, status.podIPs Invalid",
            ),
            status(
                json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
                "422 status.podIPs Invalid",
            ),
            status(json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}), "200"),
            status(json!({"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.2"}]}), "422 status.hostIPs[0].ip Invalid"),
            status(json!({"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}]}), "200"),
            status(
                json!({"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
                "422 status.hostIPs Invalid",
            ),
            status(json!({"conditions": [{"type": "a b", "status": "True"}]}), "422 status.conditions[0].Type Invalid"),
            status(json!({"conditions": [{"type": "example.com/a", "status": "True"}]}), "200"),
            status(
                json!({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": -1}]}),
                "422 status.conditions[0].observedGeneration Invalid",
            ),
            status(json!({"observedGeneration": -1}), "422 status.observedGeneration Invalid"),
            status(
                json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "a"}]}),
                "422 status.resourceClaimStatuses[0].name Invalid",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn statuses_of_other_kinds() {
    let api = Api::start().await;
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    api.create(CLAIMS, named(claim)).await;
    api.create(SERVICES, service(json!({"type": "LoadBalancer"}))).await;
    api.create("/api/v1/nodes", named(json!({}))).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    api.create(sets, named(json!({"selector": {"matchLabels": {"a": "b"}}, "template": template}))).await;
    let attached = json!({"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    api.create(ATTACHMENTS, named(attached)).await;
    let status = |path: &str, status: Value, expected| {
        Row::patch(format!("{path}/x/status"), json!({"status": status}), expected)
    };
    let ingress = |entry: Value, expected| status(SERVICES, json!({"loadBalancer": {"ingress": [entry]}}), expected);
    check(
        &api,
        vec![
            status(
                CLAIMS,
                json!({"allocatedResourceStatuses": {"storage": "Foo"}}),
                "422 status.allocatedResourceStatuses NotSupported",
            ),
            status(CLAIMS, json!({"allocatedResourceStatuses": {"storage": "NodeResizePending"}}), "200"),
            status(CLAIMS, json!({"allocatedResources": {"cpu": "1"}}), "422 status.allocatedResources NotSupported"),
            status(CLAIMS, json!({"allocatedResources": {"storage": "1Gi"}}), "200"),
            ingress(
                json!({"ip": "10.0.0.1", "ipMode": "Foo"}),
                "422 status.loadBalancer.ingress[0].ipMode NotSupported",
            ),
            ingress(
                json!({"hostname": "a.example", "ipMode": "VIP"}),
                "422 status.loadBalancer.ingress[0].ipMode Forbidden",
            ),
            ingress(json!({"hostname": "10.0.0.1"}), "422 status.loadBalancer.ingress[0].hostname Invalid"),
            ingress(json!({"ip": "10.0.0.1"}), "200"),
            status("/api/v1/nodes", json!({"declaredFeatures": ["b"]}), "422 status.declaredFeatures[0] Invalid"),
            status("/api/v1/nodes", json!({"declaredFeatures": ["B", "A"]}), "422 status.declaredFeatures[1] Invalid"),
            status(
                "/api/v1/nodes",
                json!({"declaredFeatures": ["A", "A"]}),
                "422 status.declaredFeatures[1] Duplicate",
            ),
            status("/api/v1/nodes", json!({"declaredFeatures": ["A", "A/b"]}), "200"),
            status(sets, json!({"collisionCount": -1}), "422 status.collisionCount Invalid"),
            status(sets, json!({"collisionCount": 1}), "200"),
            status(
                ATTACHMENTS,
                json!({"attached": false, "attachError": {"errorCode": -1}}),
                "422 status.attachError.errorCode Invalid",
            ),
            status(
                ATTACHMENTS,
                json!({"attached": false, "detachError": {"message": "x".repeat(1025)}}),
                "422 status.detachError.message TooLong",
            ),
            status(ATTACHMENTS, json!({"attached": true, "attachError": {"errorCode": 1}}), "200"),
        ],
    )
    .await;
}

#[tokio::test]
async fn services_and_addresses() {
    let api = Api::with(|config| config.service_cidrs = vec!["10.97.0.0/16".parse().expect("a range")]).await;
    let policy = |block: Value| named(json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": block}]}]}));
    let slice = |hints: Value| {
        json!({"metadata": {"name": "x"}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "hints": {"forNodes": hints}}]})
    };
    let address = |group: &str| {
        json!({"metadata": {"name": "10.97.0.9"},
            "spec": {"parentRef": {"group": group, "resource": "services", "name": "a", "namespace": "b"}}})
    };
    let mut with_topology = slice(json!([]));
    with_topology["endpoints"][0]["deprecatedTopology"] = json!({"kubernetes.io/hostname": "n"});
    let many: Value = (0..9).map(|n| json!({"name": format!("n{n}")})).collect();
    check(
        &api,
        vec![
            Row::create(
                SERVICES,
                service(json!({"ipFamilyPolicy": "RequireDualStack"})),
                "422 spec.ipFamilyPolicy Invalid",
            ),
            Row::create(SERVICES, service(json!({"ipFamilyPolicy": "PreferDualStack"})), "201"),
            Row::create(
                SERVICES,
                service(json!({"clusterIP": "None", "clusterIPs": ["None", "fd00::1"]})),
                "422 spec.clusterIPs Invalid",
            ),
            Row::create(
                SERVICES,
                service(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.1.2.3/8"]})),
                "422 spec.LoadBalancerSourceRanges[0] Invalid",
            ),
            Row::create(
                "/apis/networking.k8s.io/v1/servicecidrs",
                named(json!({"cidrs": ["10.1.2.3/8"]})),
                "422 spec.cidrs[0] Invalid",
            ),
            Row::create(
                POLICIES,
                policy(json!({"cidr": "10.1.2.3/8"})),
                "422 spec.ingress[0].from[0].ipBlock.cidr Invalid",
            ),
            Row::create(
                POLICIES,
                policy(json!({"cidr": "10.0.0.0/8", "except": ["10.1.2.3/16"]})),
                "422 spec.ingress[0].from[0].ipBlock.except[0] Invalid",
            ),
            Row::create("/api/v1/nodes", named(json!({"podCIDR": "10.1.2.3/8"})), "422 spec.podCIDRs[0] Invalid"),
            Row::create("/api/v1/nodes", named(json!({"podCIDR": "10.1.2.0/24"})), "201"),
            Row::create("/apis/networking.k8s.io/v1/ipaddresses", address("a b"), "422 spec.parentRef.group Invalid"),
            Row::create("/apis/networking.k8s.io/v1/ipaddresses", address("apps"), "201"),
            Row::create(SLICES, slice(json!([{"name": "A b"}])), "422 endpoints[0].hints.forNodes[0].name Invalid"),
            Row::create(
                SLICES,
                slice(json!([{"name": "a"}, {"name": "a"}])),
                "422 endpoints[0].hints.forNodes[1].name Duplicate",
            ),
            Row::create(SLICES, slice(many), "422 endpoints[0].hints.forNodes TooMany"),
            Row::create(SLICES, slice(json!([{"name": "a"}])), "201"),
            // The field of an earlier version is dropped.
            Row::create(SLICES, with_topology, "201"),
        ],
    )
    .await;
}

#[tokio::test]
async fn families_of_services() {
    let cluster = |ranges: &'static [&'static str]| {
        Api::with(move |config| {
            config.service_cidrs = ranges.iter().map(|range| range.parse().expect("a range")).collect();
        })
    };
    let both = json!(["IPv4", "IPv6"]);
    let asks = |policy: &str, families: &Value| service(json!({"ipFamilyPolicy": policy, "ipFamilies": families}));
    let headless = |more: Value| service(with(json!({"clusterIP": "None"}), more));
    let selector = json!({"a": "b"});
    check(
        &cluster(&["10.97.0.0/16"]).await,
        vec![
            Row::create(SERVICES, asks("RequireDualStack", &json!(["IPv4"])), "422 spec.ipFamilyPolicy Invalid"),
            Row::create(SERVICES, asks("PreferDualStack", &json!(["IPv4"])), "201"),
            Row::create(SERVICES, asks("PreferDualStack", &both), "422 spec.ipFamilies[1] Invalid"),
            Row::create(SERVICES, asks("SingleStack", &both), "422 spec.ipFamilyPolicy Invalid"),
            Row::create(SERVICES, service(json!({"ipFamilies": both})), "422 spec.ipFamilyPolicy Invalid"),
            Row::create(SERVICES, service(json!({"ipFamilies": ["IPv6"]})), "422 spec.ipFamilies[0] Invalid"),
            Row::create(SERVICES, service(json!({"clusterIP": "fd00::1"})), "422 spec.clusterIPs[0] Invalid"),
            // Without a selector, a headless Service has its families.
            Row::create(SERVICES, headless(json!({})), "201"),
            Row::create(SERVICES, headless(json!({"ipFamilyPolicy": "RequireDualStack"})), "201"),
            Row::create(
                SERVICES,
                headless(json!({"ipFamilyPolicy": "RequireDualStack", "selector": selector})),
                "422 spec.ipFamilyPolicy Invalid",
            ),
        ],
    )
    .await;
    let dual = cluster(&["10.97.0.0/16", "fd00:97::/108"]).await;
    let ips = json!(["10.97.0.77", "fd00:97::77"]);
    check(
        &dual,
        vec![
            Row::create(SERVICES, service(json!({"ipFamilies": both})), "422 spec.ipFamilyPolicy Invalid"),
            Row::create(SERVICES, asks("SingleStack", &both), "422 spec.ipFamilyPolicy Invalid"),
            Row::create(
                SERVICES,
                service(json!({"clusterIP": ips[0], "clusterIPs": ips})),
                "422 spec.ipFamilyPolicy Invalid",
            ),
            Row::create(SERVICES, asks("RequireDualStack", &both), "201"),
            Row::create(SERVICES, asks("PreferDualStack", &json!(["IPv6"])), "201"),
        ],
    )
    .await;
    for (policy, families) in [("SingleStack", json!(["IPv4"])), ("PreferDualStack", both.clone())] {
        let made = dual.create(&format!("{SERVICES}?dryRun=All"), service(json!({"ipFamilyPolicy": policy}))).await;
        assert_eq!(made["spec"]["ipFamilies"], families, "{made}");
        assert_eq!(made["spec"]["clusterIPs"].as_array().map(Vec::len), families.as_array().map(Vec::len));
    }
}

#[tokio::test]
async fn autoscalers() {
    let api = Api::start().await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let scaler = |more: Value| named(with(json!({"scaleTargetRef": target, "maxReplicas": 3}), more));
    let metric = |kind: &str, field: &str, source: Value| scaler(json!({"metrics": [{"type": kind, field: source}]}));
    let resource = |target: Value| metric("Resource", "resource", json!({"name": "cpu", "target": target}));
    let pods = |name: &str, target: Value| metric("Pods", "pods", json!({"metric": {"name": name}, "target": target}));
    let external = |target: Value| metric("External", "external", json!({"metric": {"name": "m"}, "target": target}));
    let rules = |rules: Value| scaler(json!({"behavior": {"scaleDown": rules}}));
    check(
        &api,
        vec![
            Row::create(
                SCALERS,
                resource(json!({"type": "Value", "value": "1"})),
                "422 spec.metrics[0].resource.target.averageUtilization Required",
            ),
            Row::create(
                SCALERS,
                resource(json!({"type": "Utilization", "averageUtilization": 5, "averageValue": "1"})),
                "422 spec.metrics[0].resource.target.averageValue Forbidden",
            ),
            Row::create(SCALERS, resource(json!({"type": "Utilization", "averageUtilization": 5})), "201"),
            Row::create(
                SCALERS,
                pods("m", json!({"type": "Value", "value": "1"})),
                "422 spec.metrics[0].pods.target.averageValue Required",
            ),
            Row::create(
                SCALERS,
                pods("a/b", json!({"type": "AverageValue", "averageValue": "1"})),
                "422 spec.metrics[0].pods.metric.name Invalid",
            ),
            Row::create(
                SCALERS,
                external(json!({"type": "Utilization", "averageUtilization": 5})),
                "422 spec.metrics[0].external.target.averageValue Required",
            ),
            // Empty lists are absent in protobuf, the form in which the reference rejects this one; absent lists have a default.
            Row::create(SCALERS, rules(json!({"policies": []})), "201"),
            Row::create(SCALERS, rules(json!({"tolerance": "-1"})), "422 spec.behavior.scaleDown.tolerance Invalid"),
            Row::create(SCALERS, rules(json!({"tolerance": "0.1"})), "201"),
        ],
    )
    .await;
}

#[tokio::test]
async fn kinds_of_storage() {
    let api = Api::start().await;
    let driver = |spec: Value| json!({"metadata": {"name": "example.com"}, "spec": spec});
    let token = |seconds: i64| json!({"audience": "a", "expirationSeconds": seconds});
    let node = |keys: Value| named(json!({"drivers": [{"name": "example.com", "nodeID": "n", "topologyKeys": keys}]}));
    let term = json!({"matchLabelExpressions": [{"key": "a", "values": ["x"]}]});
    let class =
        |terms: Value| json!({"metadata": {"name": "x"}, "provisioner": "example.com/p", "allowedTopologies": terms});
    let csi = |more: Value| volume(json!({"csi": with(json!({"driver": "example.com", "volumeHandle": "h"}), more)}));
    let host_path = json!({"hostPath": {"path": "/a"}});
    let mut options = volume(host_path.clone());
    options["metadata"]["annotations"] = json!({"volume.beta.kubernetes.io/mount-options": "ro"});
    let capacity = |more: Value| with(json!({"metadata": {"name": "x"}, "storageClassName": "c"}), more);
    let claim = |source: Value| {
        named(
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "dataSource": source}),
        )
    };
    check(
        &api,
        vec![
            Row::create(
                DRIVERS,
                driver(json!({"tokenRequests": [token(1)]})),
                "422 spec.tokenRequests[0].expirationSeconds Invalid",
            ),
            Row::create(
                DRIVERS,
                driver(json!({"tokenRequests": [{"audience": "a"}, {"audience": "a"}]})),
                "422 spec.tokenRequests[1].audience Duplicate",
            ),
            Row::create(DRIVERS, driver(json!({"tokenRequests": [token(600)]})), "201"),
            Row::create(
                DRIVERS,
                driver(json!({"nodeAllocatableUpdatePeriodSeconds": 9})),
                "422 spec.nodeAllocatableUpdatePeriodSeconds Invalid",
            ),
            Row::create("/apis/storage.k8s.io/v1/csinodes", node(json!(["a b"])), "422 spec.drivers[0] Invalid"),
            Row::create("/apis/storage.k8s.io/v1/csinodes", node(json!(["a", "a"])), "422 spec.drivers[0] Duplicate"),
            Row::create(
                "/apis/storage.k8s.io/v1/storageclasses",
                class(json!([term, term])),
                "422 allowedTopologies[1].matchLabelExpressions Duplicate",
            ),
            Row::create("/apis/storage.k8s.io/v1/storageclasses", class(json!([term])), "201"),
            Row::create(
                VOLUMES,
                csi(json!({"nodePublishSecretRef": {"name": "a"}})),
                "422 spec.csi.nodePublishSecretRef.namespace Required",
            ),
            Row::create(
                VOLUMES,
                csi(json!({"controllerExpandSecretRef": {"namespace": "a"}})),
                "422 spec.csi.controllerExpandSecretRef.name Required",
            ),
            Row::create(
                VOLUMES,
                volume(with(host_path.clone(), json!({"volumeAttributesClassName": "c"}))),
                "422 spec.csi Required",
            ),
            Row::create(VOLUMES, options, "422 metadata.annotations.volume.beta.kubernetes.io/mount-options Forbidden"),
            Row::create(VOLUMES, volume(host_path), "201"),
            Row::create(CAPACITIES, capacity(json!({"maximumVolumeSize": "-1"})), "201"),
            Row::create(CAPACITIES, capacity(json!({"capacity": "-1"})), "422 capacity Invalid"),
            // What is neither a claim nor a snapshot is dropped from the older field.
            Row::create(CLAIMS, claim(json!({"kind": "Foo", "name": "a"})), "201"),
        ],
    )
    .await;
}

#[tokio::test]
async fn pods_and_their_surroundings() {
    let api = Api::start().await;
    let volumes = |source: Value| pod(json!({"volumes": [with(json!({"name": "v"}), source)]}));
    let limit = |limits: Value| named(json!({"limits": [with(json!({"type": "Container"}), limits)]}));
    let runtime = |more: Value| with(json!({"metadata": {"name": "x"}, "handler": "h"}), more);
    let job = json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}});
    let cron = |zone: &str| named(json!({"schedule": "* * * * *", "timeZone": zone, "jobTemplate": job}));
    let term = json!({"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"});
    check(
        &api,
        vec![
            Row::create(
                PODS,
                volumes(json!({"iscsi": {"targetPortal": "a", "iqn": "b", "lun": 0}})),
                "422 spec.volumes[0].iscsi.iqn Invalid",
            ),
            Row::create(PODS, volumes(json!({"fc": {"targetWWNs": ["a"]}})), "422 spec.volumes[0].fc.lun Required"),
            Row::create(
                PODS,
                volumes(json!({"azureDisk": {"diskName": "a", "diskURI": "b"}})),
                "422 spec.volumes[0].azureDisk.diskURI NotSupported",
            ),
            Row::create(PODS, volumes(json!({"image": {}})), "422 spec.volumes[0].image.reference Required"),
            Row::create(
                PODS,
                pod(json!({"securityContext": {"windowsOptions": {"hostProcess": true}}})),
                "422 spec.hostNetwork Invalid",
            ),
            Row::create(
                PODS,
                pod(json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})),
                "201",
            ),
            Row::create(
                RANGES,
                limit(json!({"max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "3"}})),
                "422 spec.limits[0].maxLimitRequestRatio[cpu] Invalid",
            ),
            Row::create(
                RANGES,
                limit(json!({"max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}})),
                "201",
            ),
            Row::create(
                RUNTIMES,
                runtime(json!({"overhead": {"podFixed": {"cpu": "-1"}}})),
                "422 overhead.limits[cpu] Invalid",
            ),
            Row::create(
                RUNTIMES,
                runtime(json!({"scheduling": {"tolerations": [{"key": "a", "operator": "Foo"}]}})),
                "422 scheduling.tolerations[0].operator NotSupported",
            ),
            Row::create(RUNTIMES, runtime(json!({"overhead": {"podFixed": {"cpu": "1"}}})), "201"),
            Row::create(CRON_JOBS, cron("utc"), "422 spec.timeZone Invalid"),
            Row::create(CRON_JOBS, cron("europe/zurich"), "422 spec.timeZone Invalid"),
            Row::create(CRON_JOBS, cron("UTC"), "201"),
            Row::create(CRON_JOBS, cron("Europe/Zurich"), "201"),
        ],
    )
    .await;
}

#[tokio::test]
async fn changes() {
    let api = Api::start().await;
    api.create(PODS, pod(json!({}))).await;
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    api.create(revisions, json!({"metadata": {"name": "x"}, "revision": 1, "data": {"a": "b"}})).await;
    let deleted = json!({"metadata": {"deletionTimestamp": "2025-06-01T00:00:00Z"}});
    let mapped = "/api/v1/namespaces/default/configmaps";
    api.create(mapped, json!({"metadata": {"name": "x"}})).await;
    check(
        &api,
        vec![
            Row::patch(format!("{PODS}/x"), json!({"spec": {"affinity": {}}}), "422 spec Forbidden"),
            Row::patch(format!("{revisions}/x"), json!({"revision": 2}), "200"),
            Row::patch(format!("{revisions}/x"), json!({"revision": -1}), "422 revision Invalid"),
            Row::patch(format!("{revisions}/x"), json!({"data": {"a": "c"}}), "422 data Invalid"),
            Row::patch(format!("{mapped}/x"), deleted.clone(), "422 metadata.deletionTimestamp Invalid"),
            Row::patch(format!("{PODS}/x"), deleted, "422 metadata.deletionTimestamp Invalid"),
        ],
    )
    .await;
}

/// A resize changes CPU and memory alone, and removes neither.
#[tokio::test]
async fn resizes() {
    let api = Api::start().await;
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}});
    api.create(PODS, pod(json!({"containers": [{"name": "c", "image": "x", "resources": resources}]}))).await;
    let resize = |more: Value, expected| {
        let container = with(json!({"name": "c"}), more);
        Row::patch(format!("{PODS}/x/resize"), json!({"spec": {"containers": [container]}}), expected)
    };
    let resources = |resources: Value, expected| resize(json!({"resources": resources}), expected);
    let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    check(
        &api,
        vec![
            resize(json!({"resizePolicy": policy}), "422 spec Forbidden"),
            resources(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}), "200"),
            resources(json!({"limits": {"cpu": null}}), "422 spec.containers[0].resources.limits Forbidden"),
            resources(json!({"requests": {"memory": null}}), "422 spec.containers[0].resources.requests Forbidden"),
        ],
    )
    .await;
}

/// Clients of a Service do not keep using addresses at which its load balancer no longer answers.
#[tokio::test]
async fn a_service_of_another_type_has_no_load_balancer_address() {
    let api = Api::start().await;
    let at = format!("{SERVICES}/x");
    let balanced = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}});
    for (change, kind) in [
        (json!({"spec": {"type": "ClusterIP"}}), "ClusterIP"),
        (json!({"spec": {"type": "NodePort"}}), "NodePort"),
        (json!({"spec": {"type": "ExternalName", "externalName": "a.example"}}), "ExternalName"),
    ] {
        api.create(SERVICES, service(json!({"type": "LoadBalancer"}))).await;
        let (code, set) = api.call("PATCH", &format!("{at}/status"), json!({"status": balanced})).await;
        assert_eq!((code, &set["status"]), (200, &balanced), "{set}");
        let (code, same) = api.call("PATCH", &at, json!({"metadata": {"labels": {"a": "b"}}})).await;
        assert_eq!((code, &same["status"]), (200, &balanced), "{same}");
        let (code, changed) = api.call("PATCH", &at, change).await;
        assert_eq!((code, &changed["spec"]["type"]), (200, &json!(kind)), "{changed}");
        assert_eq!(changed["status"], json!({"loadBalancer": {}}), "{kind}");
        assert_eq!(api.get(&at).await["status"], json!({"loadBalancer": {}}), "{kind}");
        assert_eq!(api.call("DELETE", &at, Value::Null).await.0, 200);
    }
}

#[tokio::test]
async fn fields_of_selectors_and_options_of_tables() {
    let api = Api::start().await;
    let (addresses, namespaces) = ("/apis/networking.k8s.io/v1/ipaddresses", "/api/v1/namespaces");
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    for (uri, code) in [
        (format!("{addresses}?fieldSelector=spec.parentRef.name%3Da"), 400),
        (format!("{addresses}?fieldSelector=metadata.name%3Da"), 200),
        ("/apis/coordination.k8s.io/v1beta1/leasecandidates?fieldSelector=spec.leaseName%3Da".to_owned(), 400),
        (format!("{namespaces}?fieldSelector=name%3Da"), 400),
        (format!("{namespaces}?fieldSelector=status.phase%3DActive"), 200),
        // The documentation of field selectors lists it, although the reference rejects it.
        (format!("{sets}?fieldSelector=status.replicas%3D0"), 200),
        // An option of tables means nothing for other forms.
        (format!("{namespaces}?includeObject=Foo"), 200),
        (format!("{namespaces}/default?includeObject=Foo"), 200),
    ] {
        let (got, answer) = api.call("GET", &uri, Value::Null).await;
        assert_eq!(got, code, "{uri}: {answer}");
    }
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for uri in [format!("{namespaces}?includeObject=Foo"), format!("{namespaces}/default?includeObject=Foo")] {
        assert_eq!(api.raw("GET", &uri, &table, "").await.status(), 400, "{uri}");
    }
}
