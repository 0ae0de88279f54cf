//! Paths that are not resources: discovery, OpenAPI, health, metrics, version, and the token issuer's documents.
pub mod debug;
pub mod discovery;
pub mod flags;
pub mod flagz;
pub mod health;
pub mod join;
pub mod openapi;
pub mod snapshots;
pub mod statusz;
pub mod version;
mod zpage;

use http::{Method, StatusCode};
use kelson_meta::Status;
use serde_json::json;

use crate::catalog::ObjectSchema;
use crate::request::answer::{self, Answer, answer, not_found_page};
use crate::request::body::{ApiBody, RequestBody};
use crate::request::negotiate::Accepted;
use crate::shared::context::RequestContext;

/// Paths in the list at `/`, besides the group versions and health checks.
const PATHS: [&str; 15] = [
    "/.well-known/openid-configuration",
    "/api",
    "/api/v1",
    "/apis",
    "/debug/api_priority_and_fairness/dump_priority_levels",
    "/debug/api_priority_and_fairness/dump_queues",
    "/debug/api_priority_and_fairness/dump_requests",
    "/flagz",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/statusz",
    "/version",
];

/// Serves a path that is not a resource.
///
/// # Errors
/// 404, 405, 406.
pub async fn serve(cx: &RequestContext, body: RequestBody) -> Result<Answer, Status> {
    let path = cx.uri.path();
    if path == snapshots::PATH && cx.method == Method::POST {
        return snapshots::make(&cx.server).await;
    }
    if path == join::PATH && cx.method == Method::POST {
        return join::serve(cx, body).await;
    }
    if flags::is_flags_path(path) && cx.server.config.verbosity.is_some() {
        return flags::serve(cx, body).await;
    }
    let mut segments = path.split('/').filter(|s| !s.is_empty());
    let first = segments.next().unwrap_or("");
    let group = segments.next().filter(|_| first == "apis");
    if !FIRST.contains(&first) || group.is_some_and(|group| !discovery::has_group(&cx.server, group)) {
        return Ok(not_found_page());
    }
    // These routes exist for GET only, as in upstream.
    let named = first == "api" || (first == "apis" && path.trim_end_matches('/') != "/apis") || first == "version";
    if cx.method != Method::GET && (named || cx.method != Method::HEAD) {
        return Err(Status::method_not_allowed());
    }
    match first {
        "" => paths(cx),
        "api" | "apis" => discovery::serve(cx).await,
        "debug" => Ok(debug::serve(cx).unwrap_or_else(not_found_page)),
        "statusz" if path == "/statusz" && cx.server.config.feature_gates.enabled("ComponentStatusz") => {
            statusz::serve(cx)
        }
        "flagz" if path == "/flagz" && cx.server.config.feature_gates.enabled("ComponentFlagz") => flagz::serve(cx),
        "openapi" => Box::pin(openapi::serve(cx)).await,
        "healthz" | "livez" | "readyz" => Ok(health::serve(&cx.server, path, &cx.query).unwrap_or_else(not_found_page)),
        "version" if path.trim_end_matches('/') == "/version" => answer::tree(
            StatusCode::OK,
            &Accepted { pretty: true, ..Accepted::JSON },
            &ObjectSchema::Open,
            version::info(),
        ),
        "metrics" if path == "/metrics" => {
            let mut text = cx.server.metrics.text();
            cx.server.config.registries.iter().for_each(|more| text.push_str(&more.text()));
            Ok(metrics_answer(text))
        }
        "metrics" if path == "/metrics/slis" => Ok(metrics_answer(cx.server.metrics.indicators())),
        ".well-known" | "openid" => Ok(cx.server.auth.issuer_document(path).unwrap_or_else(not_found_page)),
        "version" => Err(Status::no_such_path()),
        _ => Ok(not_found_page()),
    }
}

/// First elements of paths outside the API; other paths are not served.
const FIRST: [&str; 14] = [
    "",
    ".well-known",
    "api",
    "apis",
    "debug",
    "flagz",
    "healthz",
    "livez",
    "metrics",
    "openapi",
    "openid",
    "readyz",
    "statusz",
    "version",
];

fn metrics_answer(text: String) -> Answer {
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    answer(StatusCode::OK, TEXT, ApiBody::full(text))
}

fn paths(cx: &RequestContext) -> Result<Answer, Status> {
    let mut paths: Vec<String> = PATHS.iter().map(|p| (*p).to_owned()).chain(health::paths(&cx.server)).collect();
    for (group, versions) in discovery::groups(&cx.server).into_iter().filter(|(g, _)| !g.is_empty()) {
        paths.extend(versions.iter().map(|v| format!("/apis/{group}/{v}")));
        paths.push(format!("/apis/{group}"));
    }
    paths.sort();
    answer::tree(
        StatusCode::OK,
        &Accepted { pretty: true, ..Accepted::JSON },
        &ObjectSchema::Open,
        json!({"paths": paths}),
    )
}
