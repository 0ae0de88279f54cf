//! Health, version and metrics endpoints, as in etcd.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;

use super::face::Face;
use super::options::{CLUSTER_VERSION, VERSION};
use crate::proto::AlarmType;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const NOSPACE: &str = "NOSPACE";

pub(super) fn answer<B>(face: &Face, request: &Request<B>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let (kind, check) = match path.trim_start_matches('/').split_once('/') {
        Some((kind, check)) => (kind, Some(check)),
        None => (path.trim_start_matches('/'), None),
    };
    let get: fn(&Face, &str, Option<&str>) -> Option<Response<Full<Bytes>>> = match kind {
        "health" => |face, query, check| check.is_none().then(|| health(face, query)),
        "version" => |_, _, check| check.is_none().then(version),
        "metrics" => |face, _, check| {
            let text = || face.options.registry.text();
            check.is_none().then(|| respond(StatusCode::OK, kelson_metrics::CONTENT_TYPE, text()))
        },
        "livez" => |face, query, check| checks(face, &["serializable_read"], query, check),
        "readyz" => |face, query, check| {
            let all = ["data_corruption", "linearizable_read", "non_learner", "serializable_read"];
            checks(face, &all, query, check)
        },
        _ => |_, _, _| None,
    };
    let not_found = || respond(StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned());
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "Method Not Allowed\n".to_owned());
        refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET"));
        return refused;
    }
    get(face, query, check).unwrap_or_else(not_found)
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// Returns an error in plain text.
pub(super) fn refused(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    respond(status, TEXT, why.to_owned())
}

/// Returns the values of a query parameter. The names of checks and alarms need no escapes.
fn values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    query.split('&').filter_map(move |pair| match pair.split_once('=') {
        Some((key, value)) => (key == name).then_some(value),
        None => (pair == name).then_some(""),
    })
}

#[derive(serde::Serialize)]
struct Health {
    health: &'static str,
    reason: String,
}

fn health(face: &Face, query: &str) -> Response<Full<Bytes>> {
    let shared = face.store.shared();
    let names = shared.alarms().into_iter().map(|member| AlarmType::name_of(member.alarm));
    let raised = names.into_iter().find(|name| !values(query, "exclude").any(|excluded| excluded == *name));
    // A full disk is what etcd's NOSPACE alarm is about, and it can be excluded like the alarm.
    let full = shared.disk_fault().filter(|_| !values(query, "exclude").any(|excluded| excluded == NOSPACE));
    let reason = match (raised, shared.failed(), full) {
        (Some(name), _, _) => Some(format!("ALARM {name}")),
        (None, Some(_), _) => Some("RANGE ERROR:etcdserver: server stopped".to_owned()),
        (None, None, Some(fault)) => Some(format!("{NOSPACE}: {fault}")),
        (None, None, None) => None,
    };
    face.metrics.health(reason.is_none());
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let health = if reason.is_none() { "true" } else { "false" };
    let body = serde_json::to_string(&Health { health, reason: reason.unwrap_or_default() });
    // etcd uses this content type, though the body is JSON.
    respond(status, TEXT, body.unwrap_or_default())
}

fn version() -> Response<Full<Bytes>> {
    let body = serde_json::json!({
        "etcdserver": VERSION,
        "etcdcluster": CLUSTER_VERSION,
        "storage": CLUSTER_VERSION,
    });
    respond(StatusCode::OK, JSON, body.to_string())
}

/// Runs the checks of an endpoint, or only the requested one.
fn checks(face: &Face, all: &[&str], query: &str, one: Option<&str>) -> Option<Response<Full<Bytes>>> {
    let excluded = |name: &str| values(query, "exclude").any(|excluded| excluded == name);
    let chosen: Vec<&str> = match one {
        Some(one) => vec![*all.iter().find(|name| **name == one)?],
        None => all.iter().copied().filter(|name| !excluded(name)).collect(),
    };
    let (mut report, mut fine) = (String::new(), true);
    for name in chosen {
        match check(face, name) {
            Ok(()) => report.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                report.push_str(&format!("[-]{name} failed: {why}\n"));
                fine = false;
            }
        }
    }
    if !fine {
        return Some(respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, report));
    }
    let reported = if values(query, "verbose").next().is_some() { report } else { String::new() };
    Some(respond(StatusCode::OK, TEXT, reported + "ok\n"))
}

fn check(face: &Face, name: &str) -> Result<(), String> {
    let shared = face.store.shared();
    match name {
        "data_corruption" if shared.alarms().iter().any(|a| a.alarm == AlarmType::Corrupt as i32) => {
            Err("alarm activated: CORRUPT".to_owned())
        }
        "linearizable_read" => shared.failed().map_or(Ok(()), Err),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_disk_is_not_healthy_until_a_commit_is_stored() {
        let face = Face::of_tests().await;
        let shared = face.store.shared();
        let status = |query: &str| health(&face, query).status().as_u16();
        assert_eq!(status(""), 200);
        shared.disk(Some("write log-1: No space left on device".to_owned()));
        assert_eq!((status(""), status("exclude=NOSPACE"), status("exclude=CORRUPT")), (503, 200, 503));
        shared.disk(None);
        assert_eq!(status(""), 200);
    }
}
