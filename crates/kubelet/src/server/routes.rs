//! From path to answer.
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use kelson_cri::proto as cri;
use rustls_pki_types::CertificateDer;
use serde_json::json;

use super::{Shared, logs, metrics, node_logs, query, splice};
use crate::pod;
use crate::runtime::labels;

/// A body that streams.
pub type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;
/// How long a command of `/run` may take.
const RUN_MAX: std::time::Duration = std::time::Duration::from_secs(120);

/// A text answer.
pub fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    typed(code, "text/plain; charset=utf-8", body)
}

/// An answer of a media type.
pub fn typed(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(http_body_util::Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

fn json_body(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(b) => typed(StatusCode::OK, "application/json", b),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// Authenticates, authorizes, answers.
pub async fn handle(
    shared: Arc<Shared>,
    chain: Arc<Vec<CertificateDer<'static>>>,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some(user) = shared.auth.authenticate(&chain, request.headers()).await else {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    let path = request.uri().path().to_owned();
    if let Err(why) = shared.auth.authorize(&user, request.method(), &path).await {
        return text(StatusCode::FORBIDDEN, why);
    }
    let parts: Vec<String> = path.trim_matches('/').split('/').map(query::decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let pairs = query::pairs(request.uri().query());
    match parts.as_slice() {
        ["healthz"] | ["healthz", "ping" | "log" | "syncloop"] => text(StatusCode::OK, "ok"),
        ["pods"] => pods(&shared),
        ["runningpods"] => running(&shared).await,
        ["configz"] => configz(&shared),
        ["metrics"] => metrics::text::own(&shared).await,
        ["metrics", "resource"] => metrics::text::resource(&shared).await,
        ["metrics", "cadvisor"] => metrics::text::cadvisor(&shared).await,
        ["metrics", "probes"] => metrics::text::answer(String::new()),
        ["stats"] | ["stats", "summary"] => metrics::summary::answer(&shared).await,
        ["logs", below @ ..] if request.method() == Method::GET => {
            node_logs::answer(node_logs::ROOT, below.join("/")).await
        }
        ["containerLogs", namespace, pod, container] => logs::answer(&shared, namespace, pod, container, &pairs).await,
        ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] => {
            splice::exec(&shared, namespace, pod, container, &pairs, request, false).await
        }
        ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] => {
            splice::exec(&shared, namespace, pod, container, &pairs, request, true).await
        }
        ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
            splice::port_forward(&shared, namespace, pod, &pairs, request).await
        }
        ["run", namespace, pod, container] | ["run", namespace, pod, _, container]
            if request.method() == Method::POST =>
        {
            run(&shared, namespace, pod, container, &pairs).await
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn pods(shared: &Shared) -> Response<Body> {
    let items: Vec<_> = shared.known.list();
    let items: Vec<&k8s_openapi::api::core::v1::Pod> = items.iter().map(|p| &**p).collect();
    json_body(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

async fn running(shared: &Shared) -> Response<Body> {
    let filter = cri::ContainerFilter {
        state: Some(cri::ContainerStateValue { state: cri::ContainerState::ContainerRunning as i32 }),
        ..Default::default()
    };
    let containers = match shared.ctx.runtime.list_containers(Some(filter)).await {
        Ok(c) => c,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    };
    let mut items: std::collections::BTreeMap<String, serde_json::Value> = std::collections::BTreeMap::new();
    for c in containers {
        let get = |k: &str| c.labels.get(k).cloned().unwrap_or_default();
        let image = c.image.as_ref().map(|i| i.image.clone()).unwrap_or_default();
        let pod = items.entry(get(labels::POD_UID)).or_insert_with(|| {
            json!({"metadata": {"name": get(labels::POD_NAME), "namespace": get(labels::POD_NAMESPACE),
                "uid": get(labels::POD_UID)}, "spec": {"containers": []}, "status": {}})
        });
        if let Some(list) = pod["spec"]["containers"].as_array_mut() {
            list.push(json!({"name": get(labels::CONTAINER_NAME), "image": image, "resources": {}}));
        }
    }
    let items: Vec<_> = items.into_values().collect();
    json_body(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

fn configz(shared: &Shared) -> Response<Body> {
    let c = &shared.ctx.config;
    let hard = c.eviction.thresholds.iter().filter(|t| t.is_hard());
    let hard: std::collections::BTreeMap<&str, String> = hard.map(|t| (t.signal.name(), t.value.to_string())).collect();
    let dns: Vec<String> = c.cluster_dns.iter().map(ToString::to_string).collect();
    json_body(&json!({"kubeletconfig": {
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "evictionHard": hard, "evictionPressureTransitionPeriod": format!("{}s", c.eviction.transition.as_secs()),
        "staticPodPath": c.pod_manifest_path,
        "clusterDNS": dns, "clusterDomain": c.cluster_domain, "maxPods": c.max_pods,
        "serializeImagePulls": c.image_pulls.serialize, "maxParallelImagePulls": c.image_pulls.parallel_max,
        "registryPullQPS": c.image_pulls.qps, "registryBurst": c.image_pulls.burst,
        "imagePullCredentialsVerificationPolicy": c.image_pulls.policy.name(), "containerLogMaxFiles": c.log_max_files,
        "containerLogMaxSize": format!("{}", kelson_meta::Quantity::binary(i64::try_from(c.log_max_bytes).unwrap_or(i64::MAX))),
        "resolvConf": c.resolv_conf, "cgroupRoot": c.cgroup_root, "podLogsDir": c.pod_logs_dir,
        "nodeLeaseDurationSeconds": c.lease_duration.as_secs(), "rotateCertificates": c.rotate_certificates,
        "imageGCHighThresholdPercent": c.image_gc_high_percent, "imageGCLowThresholdPercent": c.image_gc_low_percent,
        "nodeStatusUpdateFrequency": format!("{}s", c.node_status_update.as_secs()),
        "nodeStatusReportFrequency": format!("{}s", c.node_status_report.as_secs())}}))
}

async fn run(
    shared: &Shared,
    namespace: &str,
    pod: &str,
    container: &str,
    pairs: &[(String, String)],
) -> Response<Body> {
    let id = match running_container(shared, namespace, pod, container).await {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    let command: Vec<String> = query::first(pairs, "cmd")
        .unwrap_or_default()
        .split(' ')
        .filter(|w| !w.is_empty())
        .map(str::to_owned)
        .collect();
    match shared.ctx.runtime.exec_sync(&id, command, RUN_MAX).await {
        Ok(out) => {
            let code = if out.exit_code == 0 { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            let mut body = out.stdout;
            body.extend(out.stderr);
            text(code, body)
        }
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// The running instance of a container, or the refusal to send.
pub async fn running_container(
    shared: &Shared,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Result<String, Response<Body>> {
    let found = shared.known.find(namespace, pod);
    let found = found.ok_or_else(|| text(StatusCode::NOT_FOUND, "pod does not exist"))?;
    let selector = [
        (labels::POD_UID.to_owned(), pod::uid(&found).to_owned()),
        (labels::CONTAINER_NAME.to_owned(), container.to_owned()),
    ];
    let filter = cri::ContainerFilter {
        label_selector: selector.into_iter().collect(),
        state: Some(cri::ContainerStateValue { state: cri::ContainerState::ContainerRunning as i32 }),
        ..Default::default()
    };
    let list = shared.ctx.runtime.list_containers(Some(filter)).await;
    let list = list.map_err(|e| text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    let newest = list.into_iter().max_by_key(|c| c.created_at);
    newest
        .map(|c| c.id)
        .ok_or_else(|| text(StatusCode::INTERNAL_SERVER_ERROR, format!("container not found ({container:?})")))
}
