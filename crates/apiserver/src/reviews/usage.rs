//! Resource metrics: what nodes and pods use, from the last samples of their kubelets. Which nodes and pods there are, and their labels,
//! is read from the store. Upstream: metrics-server `pkg/api`.
use http::StatusCode;
use jiff::Timestamp;
use kelson_codec::format_duration;
use kelson_meta::{GroupResource, Quantity, Status, format_seconds};
use kelson_store::{Record, Resource};
use serde_json::{Map, Value, json};

use crate::catalog::Served;
use crate::catalog::record::Object;
use crate::read::{encode, table};
use crate::request::answer::{self, Answer};
use crate::request::negotiate::View;
use crate::request::selectors::Selectors;
use crate::shared::Server;
use crate::shared::context::RequestContext;
use crate::shared::pool::Class;
use crate::usage::ResourceMetrics;
use crate::usage::kinds::PODS;
use crate::usage::samples::{Samples, Usage};

/// Lists of more objects than this are made on the threads for heavy requests.
const HEAVY_MIN: usize = 500;

/// Serves one object, or a list.
///
/// # Errors
/// 400, 404, 406, and 503 while no node's usage is known.
pub async fn serve(cx: &RequestContext, served: &Served) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let usage = cx.server.usage.as_ref().ok_or_else(Status::no_such_path)?;
    if cx.info.verb == "get" {
        let mut object = one(cx, served, usage)?;
        object["kind"] = served.gvk.kind.clone().into();
        object["apiVersion"] = served.api_version.clone().into();
        return encode::object(StatusCode::OK, &accepted, served, &view, Object::Tree(object)).await;
    }
    let selectors = Selectors::new(served, &cx.selectors)?;
    check_ready(&cx.server, usage)?;
    let objects = if cx.server.store.count(source(served)) > HEAVY_MIN {
        let (server, namespace) = (cx.server.clone(), cx.namespace(served).to_owned());
        let resource = source(served);
        let work = async move { all(&server, resource, &namespace, &selectors) };
        let turns = Class::of(&cx.user, false).turns(&cx.user);
        cx.server.heavy.drive(turns, work).await.map_err(Status::internal)?
    } else {
        all(&cx.server, source(served), cx.namespace(served), &selectors)
    };
    let items = table::items(served, accepted.view, &view, objects).await?;
    let value = match accepted.view {
        View::Table(version) => {
            let mut table = table::table_head(served, version, json!({}), true);
            table.insert("rows".into(), items.into());
            Value::Object(table)
        }
        View::Whole | View::Partial(_) => {
            let kind = table::list_kind(served, accepted.view);
            json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": {}, "items": items})
        }
    };
    answer::tree(StatusCode::OK, &accepted, &served.list_schema, value)
}

/// The stored resource that a kind is about.
fn source(served: &Served) -> Resource {
    Resource::new("", &served.gvr.resource)
}

/// While no node's usage is known, clients hear what they hear of a metrics-server that is not ready. A cluster without nodes has nothing
/// to wait for.
fn check_ready(server: &Server, usage: &ResourceMetrics) -> Result<(), Status> {
    if usage.samples.read().is_ready() || server.store.count(Resource::new("", "nodes")) == 0 {
        return Ok(());
    }
    Err(Status::unavailable("the server is currently unable to handle the request"))
}

fn one(cx: &RequestContext, served: &Served, usage: &ResourceMetrics) -> Result<Value, Status> {
    let (namespace, name) = (cx.namespace(served), cx.info.name.as_str());
    let record = cx.server.store.get(source(served), namespace, name);
    let record = record.ok_or_else(|| Status::not_found(&GroupResource::new("", &served.gvr.resource), name))?;
    check_ready(&cx.server, usage)?;
    let now = cx.server.clock.now();
    object(&usage.samples.read(), &record, now).ok_or_else(|| {
        let shown = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        Status::not_found(&served.gr, &shown)
    })
}

/// The objects that match, sorted by namespace and name as the store is.
fn all(server: &Server, resource: Resource, namespace: &str, selectors: &Selectors) -> Vec<Value> {
    let Some(usage) = &server.usage else { return Vec::new() };
    let namespace = Some(namespace).filter(|n| !n.is_empty());
    let view = server.store.list(resource, namespace, None, None);
    let (now, samples) = (server.clock.now(), usage.samples.read());
    view.iter().filter(|r| selectors.matches(r)).filter_map(|r| object(&samples, r, now)).collect()
}

/// The metrics of a node or pod; `None` if its usage is not known.
fn object(samples: &Samples, record: &Record, now: Timestamp) -> Option<Value> {
    let (key, meta) = (record.key(), record.meta());
    let mut metadata = Map::new();
    metadata.insert("name".into(), (&*key.name).into());
    if !key.namespace.is_empty() {
        metadata.insert("namespace".into(), (&*key.namespace).into());
    }
    metadata.insert("creationTimestamp".into(), format_seconds(now).into());
    let labels: Map<String, Value> = meta.labels.iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    if !labels.is_empty() {
        metadata.insert("labels".into(), labels.into());
    }
    let time = |nanos: i64| Timestamp::from_nanosecond(nanos.into()).map(format_seconds).unwrap_or_default();
    if key.resource.plural() == PODS {
        let pod = samples.pod(meta.fields.get("spec.nodeName")?, &key.namespace, &key.name)?;
        let containers: Vec<Value> =
            pod.containers.iter().map(|(name, usage)| json!({"name": name, "usage": quantities(usage)})).collect();
        return Some(json!({
            "metadata": metadata,
            "timestamp": time(pod.at),
            "window": format_duration(pod.window),
            "containers": containers,
        }));
    }
    let usage = samples.node(&key.name)?;
    Some(json!({
        "metadata": metadata,
        "timestamp": time(usage.at),
        "window": format_duration(usage.window),
        "usage": quantities(&usage),
    }))
}

fn quantities(usage: &Usage) -> Value {
    let memory = Quantity::binary(i64::try_from(usage.memory).unwrap_or(i64::MAX));
    // Parsed, for the shortest form.
    let cpu: Quantity = format!("{}n", usage.cpu).parse().unwrap_or_default();
    json!({"cpu": cpu.to_string(), "memory": memory.to_string()})
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt as _;
    use kelson_auth::{UserInfo, user};
    use kelson_store::{Store, StoreOptions};
    use kelson_transport::Transport as _;

    use super::*;
    use crate::config::Config;
    use crate::start::{ApiServer, Running};
    use crate::usage::exposition::parse;

    const API: &str = "/apis/metrics.k8s.io/v1beta1";
    const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

    async fn server(resource_metrics: bool) -> Running {
        let mut config = Config::new(Store::in_memory(StoreOptions::default()));
        config.resource_metrics = resource_metrics;
        config.admission.disable = vec!["ServiceAccount".into()];
        ApiServer::start(config).await.expect("starts")
    }

    async fn send(
        running: &Running,
        who: &UserInfo,
        method: &str,
        uri: &str,
        accept: &str,
        body: Value,
    ) -> (u16, Bytes) {
        let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header("accept", accept)
            .header("content-type", "application/json")
            .body(bytes)
            .expect("a request");
        let answer = running.in_process(who.clone()).send(request).await.expect("answered");
        let code = answer.status().as_u16();
        (code, answer.into_body().collect().await.expect("a body").to_bytes())
    }

    fn root() -> UserInfo {
        UserInfo::new("root", [user::MASTERS])
    }

    async fn get(running: &Running, uri: &str) -> (u16, Value) {
        let (code, bytes) = send(running, &root(), "GET", uri, "application/json", Value::Null).await;
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()))
    }

    async fn create(running: &Running, uri: &str, body: Value) {
        let (code, bytes) = send(running, &root(), "POST", uri, "application/json", body).await;
        assert_eq!(code, 201, "{uri}: {}", String::from_utf8_lossy(&bytes));
    }

    /// A node with two pods, of which the kubelet has reported one.
    async fn with_usage() -> Running {
        let running = server(true).await;
        let labels = json!({"kind": "small"});
        create(&running, "/api/v1/nodes", json!({"metadata": {"name": "one", "labels": labels}})).await;
        assert_eq!(get(&running, &format!("{API}/nodes")).await.0, 503, "nothing is known yet");
        for name in ["p", "q"] {
            let containers = json!([{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]);
            let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
                "spec": {"nodeName": "one", "containers": containers}});
            create(&running, "/api/v1/namespaces/default/pods", pod).await;
        }
        let usage = running.server().usage.as_ref().expect("served");
        for (at, cpu) in [(1_700_000_000, 10), (1_700_000_015, 25)] {
            let container = |name: &str| {
                let labels = format!("{{container=\"{name}\",namespace=\"default\",pod=\"p\"}}");
                format!(
                    "container_cpu_usage_seconds_total{labels} {cpu} {at}000\n\
                     container_memory_working_set_bytes{labels} 2048 {at}000\n\
                     container_start_time_seconds{labels} 1600000000\n"
                )
            };
            let node =
                format!("node_cpu_usage_seconds_total {cpu}.5 {at}000\nnode_memory_working_set_bytes 1024 {at}000\n");
            let text = format!("{}{}{node}", container("a"), container("b"));
            usage.samples.write().add("one", parse(&text, 0).expect("parses"));
        }
        running
    }

    #[tokio::test]
    async fn nodes_and_pods_are_read_and_selected() {
        let running = with_usage().await;
        let (_, mut node) = get(&running, &format!("{API}/nodes/one")).await;
        let created = node["metadata"].as_object_mut().and_then(|m| m.remove("creationTimestamp"));
        assert!(created.is_some_and(|at| at.is_string()));
        assert_eq!(
            node,
            json!({"kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
                "metadata": {"name": "one", "labels": {"kind": "small"}}, "timestamp": "2023-11-14T22:13:35Z",
                "window": "15s", "usage": {"cpu": "1", "memory": "1Ki"}})
        );
        let (_, pod) = get(&running, &format!("{API}/namespaces/default/pods/p")).await;
        assert_eq!(pod["containers"][1], json!({"name": "b", "usage": {"cpu": "1", "memory": "2Ki"}}));
        let names = async |query: &str| {
            let (code, list) = get(&running, &format!("{API}/{query}")).await;
            let items = list["items"].as_array().unwrap_or_else(|| panic!("{query}: {code} {list}"));
            assert!(items.iter().all(|item| item.get("kind").is_none()), "{list}");
            items.iter().map(|i| i["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>()
        };
        for (query, want) in [
            ("nodes", &["one"][..]),
            ("nodes?labelSelector=kind%3Dlarge", &[]),
            ("nodes?fieldSelector=metadata.name%3Done", &["one"]),
            ("pods", &["p"]),
            ("namespaces/default/pods?labelSelector=app%3Dp", &["p"]),
            ("namespaces/default/pods?labelSelector=app%3Dq", &[]),
            ("namespaces/kube-system/pods", &[]),
            ("pods?fieldSelector=metadata.namespace%3Ddefault", &["p"]),
        ] {
            assert_eq!(names(query).await, want, "{query}");
        }
        for (uri, code, message) in [
            ("nodes/two", 404, "nodes \"two\" not found"),
            ("namespaces/default/pods/none", 404, "pods \"none\" not found"),
            ("namespaces/default/pods/q", 404, "pods.metrics.k8s.io \"default/q\" not found"),
            ("pods?fieldSelector=spec.nodeName%3Done", 400, "field label not supported: spec.nodeName"),
            ("nodes?watch=true", 405, "watch is not supported on resources of kind \"nodes.metrics.k8s.io\""),
        ] {
            let (got, status) = get(&running, &format!("{API}/{uri}")).await;
            assert_eq!((got, status["message"].as_str()), (code, Some(message)), "{uri}: {status}");
        }
    }

    #[tokio::test]
    async fn every_form_is_served() {
        let running = with_usage().await;
        let (_, list) = get(&running, API).await;
        let resources: Vec<_> = list["resources"].as_array().expect("resources").iter().collect();
        let node = json!({"name": "nodes", "singularName": "", "namespaced": false, "kind": "NodeMetrics", "verbs": ["get", "list"]});
        assert_eq!(resources[0], &node, "{list}");
        assert_eq!(resources.len(), 2);
        let (_, groups) = get(&running, "/apis").await;
        let names: Vec<&str> =
            groups["groups"].as_array().expect("groups").iter().filter_map(|g| g["name"].as_str()).collect();
        assert!(names.contains(&"metrics.k8s.io"), "{names:?}");
        let (_, document) = get(&running, "/openapi/v3/apis/metrics.k8s.io/v1beta1").await;
        let schemas = &document["components"]["schemas"];
        assert!(schemas["io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics"].is_object(), "{document}");
        let paths: Vec<&String> = document["paths"].as_object().expect("paths").keys().collect();
        assert!(!paths.iter().any(|path| path.contains("/watch/")), "{paths:?}");
        let uri = format!("{API}/namespaces/default/pods");
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let (code, bytes) = send(&running, &root(), "GET", &uri, table, Value::Null).await;
        let table: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!((code, &table["rows"][0]["cells"]), (200, &json!(["p", "2", "4Ki", "15s"])), "{table}");
        let (code, bytes) =
            send(&running, &root(), "GET", &uri, "application/vnd.kubernetes.protobuf", Value::Null).await;
        assert!(code == 200 && bytes.starts_with(b"k8s\0"), "{code}");
    }

    #[tokio::test]
    async fn viewers_may_read_it_and_others_may_not() {
        let running = with_usage().await;
        let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:aggregated-metrics-reader";
        let (_, role) = get(&running, role).await;
        assert_eq!(role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], "true");
        let binding = json!({"metadata": {"name": "ann"}, "subjects": [{"kind": "User", "name": "ann"}],
            "roleRef": {"kind": "ClusterRole", "name": "system:aggregated-metrics-reader"}});
        create(&running, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
        for (who, want) in [("ann", 200), ("bob", 403)] {
            let who = UserInfo::new(who, [user::AUTHENTICATED]);
            let (code, _) = send(&running, &who, "GET", &format!("{API}/pods"), "application/json", Value::Null).await;
            assert_eq!(code, want, "{}", who.name);
        }
    }

    /// Waits until the APIService of resource metrics is as wanted.
    async fn until(running: &Running, wanted: impl Fn(&Value) -> bool) -> Value {
        let looks = async {
            loop {
                let seen_at = running.server().store.current_revision();
                let (code, service) = get(running, &format!("{SERVICES}/v1beta1.metrics.k8s.io")).await;
                if code == 200 && wanted(&service) {
                    return service;
                }
                running.server().store.wait_for_revision(seen_at + 1).await.expect("an open store");
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), looks).await.expect("the APIService is as wanted")
    }

    #[tokio::test]
    async fn it_steps_aside_for_an_installed_server_and_returns() {
        let running = with_usage().await;
        let service = until(&running, |s| s["status"]["conditions"][0]["reason"] == "Local").await;
        assert_eq!(service["spec"]["groupPriorityMinimum"], 100, "{service}");
        let mut theirs = service;
        theirs["spec"]["service"] = json!({"name": "metrics-server", "namespace": "kube-system"});
        theirs["spec"]["insecureSkipTLSVerify"] = true.into();
        let uri = format!("{SERVICES}/v1beta1.metrics.k8s.io");
        let (code, bytes) = send(&running, &root(), "PUT", &uri, "application/json", theirs).await;
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&bytes));
        let asked =
            async || send(&running, &root(), "GET", &format!("{API}/nodes"), "application/json", Value::Null).await;
        let (code, bytes) = asked().await;
        assert_eq!((code, &bytes[..]), (503, &b"service unavailable\n"[..]), "the other server does not run");
        until(&running, |s| s["status"]["conditions"].to_string().contains("ServiceNotFound")).await;
        send(&running, &root(), "DELETE", &uri, "application/json", Value::Null).await;
        until(&running, |s| s["spec"]["service"].is_null()).await;
        let (code, bytes) = asked().await;
        assert_eq!(code, 200, "{}", String::from_utf8_lossy(&bytes));
    }

    #[tokio::test]
    async fn a_server_without_it_has_no_trace_of_it() {
        let running = server(false).await;
        assert_eq!(get(&running, API).await.0, 404);
        assert_eq!(get(&running, &format!("{SERVICES}/v1beta1.metrics.k8s.io")).await.0, 404);
        let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:aggregated-metrics-reader";
        assert_eq!(get(&running, role).await.0, 404);
    }
}
