//! Authentication, authorization and dispatch of requests. All three use the same decoded path segments, so that no spelling of a path is
//! authorized as one endpoint and served as another.
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use kelson_meta::url::Query;
use rustls_pki_types::CertificateDer;

use super::answer::{Body, not_found, text};
use super::auth::Auth;
use super::endpoint::{Call, Endpoint, segments, verb};
use super::state::ServerState;
use super::{configz, exec, forward, health, local_volumes, logs, metrics, node_logs, pods, run};
use crate::spans;

const fn reads(root: &'static str, subresources: &'static [&'static str], serve: Serve) -> Endpoint {
    Endpoint { root, subresources, acts: false, debugs: false, serve }
}

const fn acts(root: &'static str, serve: Serve) -> Endpoint {
    Endpoint { root, subresources: &["proxy"], acts: true, debugs: true, serve }
}

const fn debugs(root: &'static str, subresources: &'static [&'static str], serve: Serve) -> Endpoint {
    Endpoint { root, subresources, acts: false, debugs: true, serve }
}

type Serve = fn(Arc<ServerState>, Call) -> super::endpoint::Answer;

/// All endpoints; other paths return 404.
const ENDPOINTS: &[Endpoint] = &[
    reads("healthz", &["healthz", "proxy"], health::serve),
    reads("pods", &["pods", "proxy"], pods::serve),
    debugs("runningpods", &["pods", "proxy"], pods::serve_running),
    reads("configz", &["configz", "proxy"], configz::serve),
    reads("metrics", &["metrics"], metrics::serve),
    reads("stats", &["stats"], metrics::serve_stats),
    debugs("logs", &["log"], node_logs::serve),
    debugs("containerLogs", &["proxy"], logs::serve),
    reads("localVolumes", &["proxy"], local_volumes::serve),
    acts("exec", exec::serve),
    acts("attach", exec::serve_attach),
    acts("portForward", forward::serve),
    acts("run", run::serve),
    // Checkpointing is not supported. The endpoint exists for authorization, so that only permitted clients learn this.
    Endpoint {
        root: "checkpoint",
        subresources: &["checkpoint"],
        acts: true,
        debugs: false,
        serve: |_, _| Box::pin(async { not_found() }),
    },
];

fn find(segments: &[String]) -> Option<&'static Endpoint> {
    let root = segments.first()?;
    ENDPOINTS.iter().find(|e| e.root == root)
}

/// Method label for metrics; rare methods share one value.
fn method(given: &Method) -> &str {
    match given.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => known,
        _ => "other",
    }
}

/// Returns verb and subresources of `nodes` for the authorization of a path; one permitted subresource suffices. `None` if the path is
/// rejected as malformed.
pub fn judged(method: &Method, path: &str) -> Option<(&'static str, &'static [&'static str])> {
    let endpoint = find(&segments(path)?);
    Some((verb(endpoint, method), endpoint.map_or(&["proxy"][..], |e| e.subresources)))
}

/// Authenticates and authorizes a request, and calls its endpoint.
pub async fn handle(
    state: Arc<ServerState>,
    auth: Arc<Auth>,
    chain: Arc<Vec<CertificateDer<'static>>>,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut known = segments(request.uri().path());
    let endpoint = known.as_ref().and_then(|s| find(s));
    // Unknown paths share one label, because clients can choose them freely.
    let counted = Arc::clone(&state);
    let _open = counted.metrics.request(
        method(request.method()),
        endpoint.map_or("other", |e| e.root),
        endpoint.is_some_and(|e| e.acts),
    );
    let Some(user) = auth.authenticate(&chain, request.headers()).await else {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    let Some(mut segments) = known.take() else {
        return text(StatusCode::BAD_REQUEST, "invalid path");
    };
    let subresources = endpoint.map_or(&["proxy"][..], |e| e.subresources);
    if let Err(why) = auth.authorize(&user, verb(endpoint, request.method()), subresources).await {
        return text(StatusCode::FORBIDDEN, why);
    }
    let Some(endpoint) = endpoint else { return not_found() };
    if endpoint.debugs && !state.config.server.debugging_handlers {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n");
    }
    let (parts, body) = request.into_parts();
    let span = state.spans.request(&parts, &route(&segments));
    let request = Request::from_parts(parts, body);
    segments.remove(0);
    let query = Query::parse(request.uri().query());
    let answer = span.scope((endpoint.serve)(state, Call { below: segments, query, request })).await;
    spans::answered(&span, answer.status());
    answer
}

/// The path with placeholders for names, like upstream's routes.
fn route(segments: &[String]) -> String {
    let mut parts = segments.iter().map(String::as_str);
    let root = parts.next().unwrap_or_default();
    let below: Vec<&str> = parts.collect();
    let named = match (root, below.as_slice()) {
        ("exec" | "attach" | "run" | "containerLogs", [_, _, _]) => {
            "/{podNamespace}/{podID}/{containerName}".to_owned()
        }
        ("exec" | "attach" | "run", [_, _, _, _]) => "/{podNamespace}/{podID}/{uid}/{containerName}".to_owned(),
        ("portForward", [_, _]) => "/{podNamespace}/{podID}".to_owned(),
        ("portForward", [_, _, _]) => "/{podNamespace}/{podID}/{uid}".to_owned(),
        ("metrics", ["cadvisor" | "probes" | "resource"]) | ("stats", ["summary"]) => format!("/{}", below.concat()),
        ("logs", [_, ..]) => "/{logpath:*}".to_owned(),
        _ => String::new(),
    };
    format!("/{root}{named}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_placeholders_for_names() {
        for (path, wanted) in [
            ("/pods", "/pods"),
            ("/metrics/resource", "/metrics/resource"),
            ("/metrics/other", "/metrics"),
            ("/exec/n/p/c", "/exec/{podNamespace}/{podID}/{containerName}"),
            ("/portForward/n/p/u", "/portForward/{podNamespace}/{podID}/{uid}"),
            ("/logs/a/b", "/logs/{logpath:*}"),
        ] {
            assert_eq!(route(&segments(path).expect("a path")), wanted);
        }
    }

    #[test]
    fn permissions_depend_on_the_path() {
        for (method, path, verb_wanted, subs) in [
            (Method::GET, "/exec/n/p/c", "create", &["proxy"][..]),
            (Method::POST, "/exec/n/p/c", "create", &["proxy"]),
            (Method::GET, "//exec/n/p/c", "create", &["proxy"]),
            (Method::GET, "/%65xec/n/p/c", "create", &["proxy"]),
            (Method::GET, "/%2e/exec/n/p/c", "", &[]),
            (Method::GET, "/x/../exec/n/p/c", "", &[]),
            (Method::GET, "/exec%2fn/p/c", "", &[]),
            (Method::GET, "//run/n/p/c", "create", &["proxy"]),
            (Method::GET, "/execute", "get", &["proxy"]),
            (Method::GET, "/containerLogs/n/p/c", "get", &["proxy"]),
            (Method::GET, "/pods", "get", &["pods", "proxy"]),
            (Method::GET, "/stats/summary", "get", &["stats"]),
            (Method::GET, "//stats/summary", "get", &["stats"]),
            (Method::GET, "/metrics/cadvisor", "get", &["metrics"]),
            (Method::GET, "/logs/", "get", &["log"]),
            (Method::DELETE, "/logs/", "delete", &["log"]),
            (Method::GET, "/healthz/syncloop", "get", &["healthz", "proxy"]),
            (Method::GET, "/configz", "get", &["configz", "proxy"]),
            (Method::GET, "/runningpods/", "get", &["pods", "proxy"]),
            (Method::POST, "/checkpoint/n/p/c", "create", &["checkpoint"]),
            (Method::GET, "/debug/pprof/profile", "get", &["proxy"]),
            (Method::DELETE, "/localVolumes/pvc-1_n_c", "delete", &["proxy"]),
            (Method::DELETE, "/localVolumes/..%2fetc", "", &[]),
        ] {
            let wanted = (!verb_wanted.is_empty()).then_some((verb_wanted, subs));
            assert_eq!(judged(&method, path), wanted, "{method} {path}");
        }
    }
}
