//! Information about the server itself: discovery, health, reviews, and authorization.

use crate::common::{Api, admin, features};
use kelson_apiserver::RuntimeConfig;
use kelson_auth::{UserInfo, user};
use serde_json::{Value, json};

/// The published facts that `cargo xtask facts` extracted, one per line.
fn facts() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../facts/discovery.jsonl");
    let text = std::fs::read_to_string(path).expect(path);
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn sorted(mut list: Vec<Value>, key: &str) -> Vec<Value> {
    list.sort_by_key(|v| v[key].as_str().unwrap_or("").to_owned());
    list
}

#[tokio::test]
async fn discovery_is_the_published_one() {
    let facts = facts();
    let api = Api::start().await;
    let groups: Vec<&Value> = facts.iter().map(|f| &f["group"]).filter(|g| g.is_object()).collect();
    let ours = api.get("/apis").await;
    assert_eq!(ours["groups"].as_array().unwrap().iter().collect::<Vec<_>>(), groups);
    let of = |group: &Value| group["versions"].as_array().cloned().unwrap_or_default();
    let versions: Vec<Value> = groups.iter().flat_map(|g| of(g)).collect();
    let versions = versions.iter().filter_map(|v| v["groupVersion"].as_str());
    for name in versions.chain(["v1"]) {
        let uri = if name == "v1" { "/api/v1".to_owned() } else { format!("/apis/{name}") };
        let ours = api.get(&uri).await;
        let published: Vec<Value> = facts.iter().filter(|f| f["list"] == name).map(|f| f["resource"].clone()).collect();
        assert!(!published.is_empty(), "{uri}");
        assert_eq!(sorted(ours["resources"].as_array().unwrap().clone(), "name"), sorted(published, "name"), "{uri}");
        assert_eq!(ours["groupVersion"], name);
    }
}

#[tokio::test]
async fn only_stable_versions_are_served_by_default() {
    let with = async |values: &'static [&'static str]| {
        let config = RuntimeConfig::parse(values).expect("a configuration");
        Api::with(|c| c.runtime_config = std::sync::Arc::new(config)).await
    };
    let api = with(&[]).await;
    let groups = api.get("/apis").await;
    let versions = groups["groups"].as_array().unwrap().iter().flat_map(|g| g["versions"].as_array().unwrap());
    let versions: Vec<&str> = versions.map(|v| v["groupVersion"].as_str().unwrap()).collect();
    assert!(versions.contains(&"certificates.k8s.io/v1") && versions.contains(&"autoscaling/v2"), "{versions:?}");
    assert!(versions.iter().all(|v| !v.contains("alpha") && !v.contains("beta")), "{versions:?}");
    assert!(!versions.iter().any(|v| v.starts_with("internal.apiserver.k8s.io")), "{versions:?}");
    for gone in [
        "/apis/certificates.k8s.io/v1beta1",
        "/apis/storagemigration.k8s.io",
        "/openapi/v3/apis/networking.k8s.io/v1beta1",
    ] {
        assert_eq!(api.raw("GET", gone, &[], "").await.status(), 404, "{gone}");
    }
    let registered = api.get("/apis/apiregistration.k8s.io/v1/apiservices").await;
    assert!(
        registered["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|a| !a["metadata"]["name"].as_str().unwrap().contains("beta"))
    );

    // APIServices of an earlier start are deleted.
    let more = Api::start().await;
    let beta = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.networking.k8s.io";
    assert_eq!(more.raw("GET", beta, &[], "").await.status(), 200);
    let less = Api::on(more.store.clone(), |c| c.runtime_config = std::sync::Arc::default()).await;
    assert_eq!(less.raw("GET", beta, &[], "").await.status(), 404);

    // Only the core group: bootstrap objects of other groups are not created.
    let api = with(&["api/all=false,v1=true"]).await;
    assert_eq!(api.raw("GET", "/api/v1/namespaces/default", &[], "").await.status(), 200);
    assert_eq!(api.get("/apis").await["groups"].as_array().map(Vec::len), Some(0));

    let api = with(&["networking.k8s.io/v1beta1=true", "apps/v1/daemonsets=false"]).await;
    assert_eq!(api.get("/apis/networking.k8s.io").await["preferredVersion"]["version"], "v1");
    assert_eq!(api.raw("GET", "/apis/networking.k8s.io/v1beta1/ipaddresses", &[], "").await.status(), 200);
    assert_eq!(api.raw("GET", "/apis/apps/v1/daemonsets", &[], "").await.status(), 404);
    assert_eq!(api.raw("GET", "/apis/apps/v1/deployments", &[], "").await.status(), 200);

    // A kind with a disabled feature gate is not served, whatever the configuration says.
    let api = Api::with(|c| c.feature_gates = std::sync::Arc::default()).await;
    assert_eq!(api.raw("GET", "/apis/certificates.k8s.io/v1beta1", &[], "").await.status(), 404);
    assert_eq!(api.raw("GET", "/apis/storagemigration.k8s.io/v1beta1", &[], "").await.status(), 404);
    assert_eq!(api.raw("GET", "/apis/networking.k8s.io/v1beta1", &[], "").await.status(), 200);
}

#[tokio::test]
async fn the_log_verbosity_can_be_changed() {
    let set = |text: &str| if text == "4" { Ok(format!("set to {text}")) } else { Err("no number".to_owned()) };
    let api = Api::with(|c| c.verbosity = Some(set)).await;
    let ask = async |method: &str, uri: &str, body: &'static str| {
        let answer = api.raw(method, uri, &[], body).await;
        let status = answer.status().as_u16();
        let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.expect("a body").to_bytes();
        (status, String::from_utf8(bytes.to_vec()).expect("text"))
    };
    assert_eq!(ask("PUT", "/debug/flags/v", "4").await, (200, "set to 4\n".to_owned()));
    assert_eq!(ask("PUT", "/debug/flags/v", "x").await, (400, "no number\n".to_owned()));
    assert_eq!(ask("GET", "/debug/flags/v", "").await, (406, "unsupported http method\n".to_owned()));
    let (status, page) = ask("GET", "/debug/flags", "").await;
    assert!(status == 200 && page.contains("<li>v</li>"), "{status} {page}");
    assert_eq!(Api::start().await.raw("GET", "/debug/flags/v", &[], "").await.status(), 404);
}

/// The published aggregated discovery; `None` if tests run without the published documents.
fn published_aggregate() -> Option<Value> {
    let shared = std::env::var("KELSON_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned());
    if shared == "none" {
        return None;
    }
    let path = std::path::PathBuf::from(shared).join("reference/discovery/aggregated_v2.json");
    let text =
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; KELSON_SHARED=none does without", path.display()));
    Some(serde_json::from_slice(&text).expect("JSON"))
}

const AGGREGATED: (&str, &str) =
    ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json");

async fn text(api: &Api, uri: &str, header: (&str, &str)) -> String {
    let body = api.raw("GET", uri, &[header], "").await.into_body();
    let bytes = http_body_util::BodyExt::collect(body).await.expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test]
async fn aggregated_discovery_is_the_published_one() {
    let Some(published) = published_aggregate() else {
        return println!("test aggregated_discovery_is_the_published_one ... ignored, KELSON_SHARED=none");
    };
    let api = Api::start().await;
    let ours: Value = serde_json::from_str(&text(&api, "/apis", AGGREGATED).await).expect("JSON");
    for (ours, published) in ours["items"].as_array().unwrap().iter().zip(published["items"].as_array().unwrap()) {
        assert_eq!(ours, published);
    }
    assert_eq!(ours, published);
}

/// Scripts compare the JSON, so its fields are in upstream's order.
#[tokio::test]
async fn discovery_has_upstreams_order_of_fields() {
    let api = Api::start().await;
    let any = ("accept", "*/*");
    for (uri, header, begin) in [
        (
            "/api",
            any,
            r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":""#,
        ),
        (
            "/apis",
            any,
            r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apiregistration.k8s.io","versions":[{"groupVersion":"apiregistration.k8s.io/v1","version":"v1"}],"preferredVersion":{"#,
        ),
        (
            "/apis/apps",
            any,
            r#"{"kind":"APIGroup","apiVersion":"v1","name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}"#,
        ),
        (
            "/apis/batch/v1",
            any,
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"batch/v1","resources":[{"name":"cronjobs","singularName":"cronjob","namespaced":true,"kind":"CronJob","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["cj"],"categories":["all"],"storageVersionHash":""#,
        ),
        (
            "/apis",
            AGGREGATED,
            r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"apiregistration.k8s.io"},"versions":[{"version":"v1","resources":[{"resource":"apiservices","responseKind":{"group":"","version":"","kind":"APIService"},"scope":"Cluster","singularResource":"apiservice","verbs":["#,
        ),
        (
            "/api/v1/namespaces/default/pods/none",
            any,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"none\" not found","reason":"NotFound","details":{"name":"none","kind":"pods"},"code":404}"#,
        ),
        (
            "/version",
            any,
            "{\n  \"major\": \"1\",\n  \"minor\": \"36\",\n  \"emulationMajor\": \"1\",\n  \"emulationMinor\": \"36\",\n  \"minCompatibilityMajor\": \"1\",\n  \"minCompatibilityMinor\": \"35\",\n  \"gitVersion\": \"",
        ),
    ] {
        let got = text(&api, uri, header).await;
        assert!(got.starts_with(begin), "{uri}: {got}");
    }
}

#[tokio::test]
async fn the_proxy_accepts_any_method() {
    let api = Api::start().await;
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        for what in ["pods/none:80", "services/none"] {
            let answer = api.raw(method, &format!("/api/v1/namespaces/default/{what}/proxy/x"), &[], "").await;
            assert_ne!(answer.status(), 405, "{method} {what}");
        }
    }
    let answer = api.raw("OPTIONS", "/api/v1/namespaces/default/pods/none/status", &[], "").await;
    assert_eq!(answer.status(), 405);
}

#[tokio::test]
async fn the_service_cidr_object_is_ready() {
    let api = Api::start().await;
    let range = api.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await;
    let address = api.get("/api/v1/namespaces/default/services/kubernetes").await["spec"]["clusterIP"].clone();
    let net: ipnet::IpNet = range["spec"]["cidrs"][0].as_str().unwrap().parse().unwrap();
    assert!(net.contains(&address.as_str().unwrap().parse::<std::net::IpAddr>().unwrap()), "{range}");
    assert_eq!(
        (&range["status"]["conditions"][0]["type"], &range["status"]["conditions"][0]["status"]),
        (&json!("Ready"), &json!("True"))
    );
}

#[tokio::test]
async fn aggregated_discovery_has_an_etag() {
    let api = Api::start().await;
    let accept = ("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json");
    let first = api.raw("GET", "/apis", &[accept], "").await;
    assert!(first.headers()["content-type"].to_str().unwrap().contains("as=APIGroupDiscoveryList"));
    let etag = first.headers()["etag"].to_str().unwrap().to_owned();
    let second = api.raw("GET", "/apis", &[accept, ("if-none-match", &etag)], "").await;
    assert_eq!(second.status(), 304);
    let plain = api.get("/apis").await;
    assert_eq!(plain["kind"], "APIGroupList");
}

#[tokio::test]
async fn health_checks_have_upstreams_format() {
    let api = Api::start().await;
    let text = async |uri: &str| api.call("GET", uri, Value::Null).await;
    assert_eq!(text("/readyz").await, (200, "ok".into()));
    assert_eq!(text("/livez/ping").await, (200, "ok".into()));
    assert_eq!(text("/readyz/etcd").await, (200, "ok".into()));
    assert_eq!(text("/readyz/nope").await.0, 404);
    let (_, verbose) = text("/readyz?verbose").await;
    let verbose = verbose.as_str().unwrap();
    assert!(verbose.starts_with("[+]ping ok\n") && verbose.ends_with("readyz check passed\n"), "{verbose}");
    let (_, excluded) = text("/readyz?verbose&exclude=etcd&exclude=y&exclude=x").await;
    let excluded = excluded.as_str().unwrap();
    assert!(excluded.contains("[+]etcd excluded: ok\n"), "{excluded}");
    let unknown = "warn: some health checks cannot be excluded: no matches for \"x\",\"y\"\n";
    assert!(excluded.contains(unknown), "{excluded}");
    let version = api.get("/version").await;
    assert_eq!((version["major"].as_str(), version["minor"].as_str()), (Some("1"), Some(kelson_meta::version::MINOR)));
    let (code, metrics) = text("/metrics").await;
    assert!(code == 200 && metrics.as_str().unwrap().contains("apiserver_request_total{"), "{metrics}");
}

/// The names that upstream's conformance of health handlers requires, and those of parts that depend on the configuration.
#[tokio::test]
async fn health_checks_have_upstreams_names() {
    const REQUIRED: [&str; 17] = [
        "poststarthook/start-apiserver-admission-initializer",
        "poststarthook/generic-apiserver-start-informers",
        "poststarthook/start-apiextensions-informers",
        "poststarthook/start-apiextensions-controllers",
        "poststarthook/crd-informer-synced",
        "poststarthook/bootstrap-controller",
        "poststarthook/start-system-namespaces-controller",
        "poststarthook/start-service-ip-repair-controllers",
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        "poststarthook/start-cluster-authentication-info-controller",
        "poststarthook/start-kube-aggregator-informers",
        "poststarthook/apiservice-registration-controller",
        "poststarthook/apiservice-status-local-available-controller",
        "poststarthook/apiservice-status-remote-available-controller",
        "poststarthook/kube-apiserver-autoregistration",
        "autoregister-completion",
        "poststarthook/apiservice-openapi-controller",
    ];
    let api = Api::start().await;
    let index = api.get("/").await;
    let index: Vec<&str> = index["paths"].as_array().expect("paths").iter().filter_map(Value::as_str).collect();
    for endpoint in ["healthz", "livez", "readyz"] {
        let (code, report) = api.call("GET", &format!("/{endpoint}?verbose=1"), Value::Null).await;
        let report = report.as_str().expect("text");
        assert_eq!(code, 200, "{report}");
        let more = if endpoint == "readyz" { vec!["informer-sync", "shutdown"] } else { vec![] };
        let always = ["ping", "log", "etcd", "poststarthook/storage-readiness", "poststarthook/rbac/bootstrap-roles"];
        for name in REQUIRED.into_iter().chain(always).chain(more) {
            assert!(report.lines().any(|line| line == format!("[+]{name} ok")), "{endpoint} {name}: {report}");
            let single = format!("/{endpoint}/{name}");
            assert!(index.contains(&single.as_str()), "{single}: {index:?}");
            assert_eq!(api.call("GET", &single, Value::Null).await, (200, "ok".into()), "{single}");
        }
        let fair = report.contains("[+]poststarthook/priority-and-fairness-config-consumer ok\n");
        let fixed = report.contains("[+]poststarthook/max-in-flight-filter ok\n");
        assert!(fair != fixed, "{report}");
        assert!(
            !report.contains("start-kube-apiserver-identity-lease"),
            "a server without a host has no lease: {report}"
        );
    }
    assert!(index.is_sorted(), "{index:?}");
}

#[tokio::test]
async fn indicators_and_features_are_exported() {
    let api = Api::start().await;
    let text = async |uri: &str| api.call("GET", uri, Value::Null).await;
    assert_eq!(text("/readyz/ping").await.0, 200);
    assert_eq!(text("/livez?verbose").await.0, 200);
    let (code, slis) = text("/metrics/slis").await;
    let slis = slis.as_str().unwrap();
    assert_eq!(code, 200);
    for line in [
        "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1",
        "kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"livez\"} 1",
    ] {
        assert!(slis.lines().any(|l| l == line), "{line} is not in {slis}");
    }
    assert!(!slis.contains("apiserver_request_total"), "{slis}");
    let (_, metrics) = text("/metrics").await;
    let metrics = metrics.as_str().unwrap();
    for line in [
        "kubernetes_feature_enabled{name=\"CBORServingAndStorage\",stage=\"ALPHA\"} 0",
        "kubernetes_feature_enabled{name=\"AllBeta\",stage=\"BETA\"} 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not there");
    }
}

#[tokio::test]
async fn roles_are_effective_at_once() {
    let api = Api::start().await;
    let jane = || UserInfo::new("jane", [user::AUTHENTICATED]);
    let list = || http::Request::builder().uri("/api/v1/namespaces/default/pods").body(Default::default()).unwrap();
    assert_eq!(api.send(jane(), list()).await.status(), 403);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]});
    api.create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding).await;
    assert_eq!(api.send(jane(), list()).await.status(), 200);
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "jane",
        "resourceAttributes": {"namespace": "default", "verb": "delete", "resource": "pods"}}});
    let done = api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review).await;
    assert_eq!(
        (&done["status"]["allowed"], &done["metadata"]["managedFields"][0]["manager"]),
        (&json!(false), &json!("test"))
    );
    let whoami = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let me = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", whoami).await;
    assert_eq!(me["status"]["userInfo"]["username"], "admin");
    let as_jane = api.raw("GET", "/api/v1/namespaces/kube-system/secrets", &[("impersonate-user", "jane")], "").await;
    assert_eq!(as_jane.status(), 403);
}

#[tokio::test]
async fn exec_needs_create_whatever_the_method() {
    let api = Api::start().await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"},
        "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}]});
    api.create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", role).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]});
    api.create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding).await;
    let request = http::Request::builder()
        .uri("/api/v1/namespaces/default/pods/p/exec?command=x&stdout=1")
        .body(Default::default())
        .unwrap();
    let jane = UserInfo::new("jane", [user::AUTHENTICATED]);
    assert_eq!(api.send(jane, request).await.status(), 403);
}

/// Grants jane these verbs on nodes/proxy and returns the code of her request.
async fn through_nodes(verbs: &[&str], method: &str, uri: &str) -> u16 {
    let api = Api::start().await;
    let group = "rbac.authorization.k8s.io";
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": "r"},
        "rules": [{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": verbs}]});
    api.create(&format!("{base}/clusterroles"), role).await;
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "jane"}]});
    api.create(&format!("{base}/clusterrolebindings"), binding).await;
    let request = http::Request::builder().method(method).uri(uri).body(Default::default()).expect("request");
    api.send(UserInfo::new("jane", [user::AUTHENTICATED]), request).await.status().as_u16()
}

#[tokio::test]
async fn running_commands_through_a_node_is_create() {
    let monitoring = ["get", "list", "watch"];
    for path in [
        "exec/ns/pod/c",
        "%65xec/ns/pod/c",
        "exec%2fns%2fpod",
        "/exec/a/b/c",
        "run/a/b/c",
        "cri/exec/x",
        "attach/a/b/c",
    ] {
        let uri = format!("/api/v1/nodes/n/proxy/{path}");
        assert_eq!(through_nodes(&monitoring, "GET", &uri).await, 403, "{path}");
    }
    // 404 after authorization, because the node does not exist.
    assert_eq!(through_nodes(&monitoring, "GET", "/api/v1/nodes/n/proxy/metrics").await, 404);
    assert_eq!(through_nodes(&["create"], "GET", "/api/v1/nodes/n/proxy/exec/ns/pod/c").await, 404);
}

#[tokio::test]
async fn the_watch_prefix_is_for_reads_only() {
    for (method, path) in
        [("POST", "nodes/n/proxy/run/a/b/c"), ("GET", "nodes/n/proxy/exec/a/b/c"), ("DELETE", "nodes/n")]
    {
        let uri = format!("/api/v1/watch/{path}");
        // All users may read below /api, but nothing exists there.
        let answered = through_nodes(&["get", "list", "watch"], method, &uri).await;
        assert_eq!(answered, if method == "GET" { 404 } else { 403 }, "{method} {path}");
        let api = Api::start().await;
        let status = api.raw(method, &uri, &[], "").await.status().as_u16();
        assert_eq!(status, if method == "GET" { 404 } else { 405 }, "{method} {path}: nothing is served there");
    }
}

#[tokio::test]
async fn clients_cannot_create_metric_series() {
    let api = Api::start().await;
    let headers = [("impersonate-group", "g")];
    for path in ["/api/v1/invented%22up", "/apis/x/y/z", "/api/v1/namespaces/a/pods/b/invented-up", "/api/v1/pods"] {
        api.raw("GET", path, &headers, "").await;
    }
    let metrics = api.call("GET", "/metrics", Value::Null).await.1;
    let metrics = metrics.as_str().unwrap();
    assert!(!metrics.contains("invented") && !metrics.contains("group=\"x\""), "{metrics}");
    assert!(metrics.contains("resource=\"other\"") && metrics.contains("resource=\"pods\""), "{metrics}");
}

#[tokio::test]
async fn users_cannot_grant_permissions_they_do_not_have() {
    let api = Api::start().await;
    let group = "rbac.authorization.k8s.io";
    let base = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = |name: &str, resource: &str| {
        json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": name},
            "rules": [{"apiGroups": [if resource == "roles" { group } else { "" }], "resources": [resource], "verbs": ["create"]}]})
    };
    api.create(&format!("{base}/roles"), role("r", "roles")).await;
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "jane"}]});
    api.create(&format!("{base}/rolebindings"), binding).await;
    let post = async |body: Value| {
        let jane = UserInfo::new("jane", [user::AUTHENTICATED]);
        let request = http::Request::builder()
            .method("POST")
            .uri(format!("{base}/roles"))
            .header("content-type", "application/json");
        api.send(jane, request.body(body.to_string().into()).unwrap()).await.status().as_u16()
    };
    assert_eq!(post(role("same", "roles")).await, 201);
    assert_eq!(post(role("more", "secrets")).await, 403);
}

#[tokio::test]
async fn a_cluster_has_its_own_objects() {
    let api = Api::start().await;
    for uri in [
        "/api/v1/namespaces/kube-system",
        "/api/v1/namespaces/kube-node-lease",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:discovery",
        "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    ] {
        api.get(uri).await;
    }
    assert_eq!(api.get("/api/v1/namespaces/default/services/kubernetes").await["spec"]["clusterIP"], "10.43.0.1");
    let _ = admin();
}

#[tokio::test]
async fn a_second_start_changes_nothing() {
    let api = Api::start().await;
    let before = api.store.current_revision();
    let mut config = kelson_apiserver::Config::new(api.store.clone());
    config.runtime_config = std::sync::Arc::new(kelson_apiserver::RuntimeConfig::all());
    config.feature_gates = features();
    let again = kelson_apiserver::ApiServer::start(config).await.expect("starts");
    again.ready().await;
    assert_eq!(api.store.current_revision(), before);
}

#[tokio::test]
async fn statusz_shows_version_and_uptime() {
    let api = Api::start().await;
    let plain = text(&api, "/statusz", ("accept", "*/*")).await;
    assert!(
        plain.starts_with("\napiserver statusz\nWarning: ") && plain.contains("\nEmulation version: 1.36\n"),
        "{plain}"
    );
    let kind = "application/json;g=config.k8s.io;v=v1beta1;as=Statusz";
    let reply: Value = serde_json::from_str(&text(&api, "/statusz", ("accept", kind)).await).unwrap();
    assert_eq!((&reply["kind"], &reply["apiVersion"]), (&json!("Statusz"), &json!("config.k8s.io/v1beta1")));
    assert_eq!(reply["binaryVersion"], "1.36.2");
    assert!(reply["startTime"].is_string() && reply["uptimeSeconds"].is_u64(), "{reply}");
    for (accept, code) in [(kind, 200), ("application/json", 406), ("text/html", 406), ("text/html, text/plain", 200)] {
        let answer = api.raw("GET", "/statusz", &[("accept", accept)], "").await;
        assert_eq!(answer.status().as_u16(), code, "{accept}");
    }
}

#[tokio::test]
async fn flagz_shows_the_effective_flags() {
    let flags = [("audit-log-path", ""), ("secure-port", "6443")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let api = Api::with(|config| config.flags = flags.to_vec()).await;
    let plain = text(&api, "/flagz", ("accept", "*/*")).await;
    assert!(plain.starts_with("\napiserver flagz\nWarning: "), "{plain}");
    assert!(plain.ends_with("purposes only.\naudit-log-path=\nsecure-port=6443\n"), "{plain}");
    for (version, warned) in [("v1beta1", false), ("v1alpha1", true)] {
        let kind = format!("application/json;g=config.k8s.io;v={version};as=Flagz");
        let reply: Value = serde_json::from_str(&text(&api, "/flagz", ("accept", &kind)).await).unwrap();
        assert_eq!(reply["apiVersion"], format!("config.k8s.io/{version}"));
        assert_eq!(reply["flags"], json!({"audit-log-path": "", "secure-port": "6443"}));
        let answer = api.raw("GET", "/flagz", &[("accept", &kind)], "").await;
        assert_eq!(answer.headers().contains_key("warning"), warned, "{version}");
    }
    let other = "application/json;g=config.k8s.io;v=v1beta1;as=Statusz";
    assert_eq!(api.raw("GET", "/flagz", &[("accept", other)], "").await.status(), 406);
}

#[tokio::test]
async fn a_disabled_gate_removes_its_features() {
    let hashes = async |api: &Api| api.get("/api/v1").await["resources"].to_string().contains("storageVersionHash");
    let initial = "/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    for (gates, status, with_hashes, watch) in
        [("", 200, true, 200), ("ComponentStatusz=false,StorageVersionHash=false,WatchList=false", 404, false, 422)]
    {
        let gates = kelson_meta::gates::FeatureGates::parse([gates]).unwrap();
        let api = Api::with(|config| config.feature_gates = gates.into()).await;
        assert_eq!(api.raw("GET", "/statusz", &[], "").await.status(), status);
        assert_eq!(hashes(&api).await, with_hashes);
        assert_eq!(api.raw("GET", initial, &[], "").await.status(), watch);
    }
}
