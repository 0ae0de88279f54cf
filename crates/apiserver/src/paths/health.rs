//! Health checks: `/healthz`, `/livez`, `/readyz`, with summaries, details and single checks, in upstream's format.
use std::collections::BTreeSet;

use http::StatusCode;
use kelson_meta::url::Query;

use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::shared::Server;
use crate::shared::start_steps::StartStep;

const ENDPOINTS: [&str; 3] = ["healthz", "livez", "readyz"];

/// The paths of all endpoints and of each of their checks.
pub fn paths(server: &Server) -> impl Iterator<Item = String> {
    ENDPOINTS.into_iter().flat_map(|endpoint| {
        let each = checks(server, endpoint).into_iter().map(move |name| format!("/{endpoint}/{name}"));
        std::iter::once(format!("/{endpoint}")).chain(each)
    })
}

fn checks(server: &Server, endpoint: &str) -> Vec<&'static str> {
    let mut names = vec!["ping", "log", "etcd"];
    if endpoint == "readyz" {
        names.extend(["etcd-readiness", "informer-sync"]);
    }
    names.extend(server.health.steps.all().map(StartStep::name));
    // These checks are not part of liveness: restarting the process does not help when, say, a key service is unavailable
    // (upstream `addHealthChecksWithoutLivez`).
    if endpoint != "livez" {
        names.extend(server.config.checks.iter().map(|(name, _)| *name));
    }
    if endpoint == "readyz" {
        names.extend(server.health.components());
        names.push("shutdown");
    }
    names
}

/// A step of the server's start that has not finished.
#[derive(Debug, thiserror::Error)]
#[error("not finished")]
struct UnfinishedStep;

/// Runs one check. Liveness fails only if a restart may help: a full or slow disk makes the server unready, but a restart would not
/// help.
fn check(server: &Server, endpoint: &str, name: &str) -> Result<(), String> {
    if let Some(step) = StartStep::ALL.into_iter().find(|step| step.name() == name) {
        return start_step(server, endpoint, step).map_err(|e| e.to_string());
    }
    let fault = match name {
        "etcd" | "etcd-readiness" if server.tasks.token().is_cancelled() => Some("the store is closing".to_owned()),
        "etcd" | "etcd-readiness" if endpoint == "livez" => server.store.health().not_alive(),
        "etcd" | "etcd-readiness" => server.store.health().not_ready(),
        "shutdown" => server.health.is_stopping().then(|| "process is shutting down".to_owned()),
        "informer-sync" => (!server.health.is_ready()).then(|| "not synced".to_owned()),
        // Lines are written when they are logged, so no buffer can be blocked (upstream flushes one once a minute).
        "ping" | "log" => None,
        name if let Some((_, check)) = server.config.checks.iter().find(|(n, _)| *n == name) => check().err(),
        component => server.health.component(component).err(),
    };
    fault.map_or(Ok(()), Err)
}

/// Whether a step of the start is finished. A step that is tried again after the start, because a key service is not available, does not
/// make the server dead: a restart would not help.
fn start_step(server: &Server, endpoint: &str, step: StartStep) -> Result<(), UnfinishedStep> {
    let is_finished = match step {
        StartStep::StorageReadiness => server.store.all_locked().is_empty(),
        step => server.health.steps.is_finished(step),
    };
    match is_finished || endpoint == "livez" && server.health.is_ready() {
        true => Ok(()),
        false => Err(UnfinishedStep),
    }
}

/// Serves `/healthz`, `/livez`, `/readyz` and single checks below them; `None` for an unknown check.
pub fn serve(server: &Server, path: &str, query: &Query) -> Option<Answer> {
    let path = path.trim_start_matches('/').trim_end_matches('/');
    let (endpoint, single) = path.split_once('/').unwrap_or((path, ""));
    let names = checks(server, endpoint);
    if !single.is_empty() {
        let name = names.iter().find(|n| **n == single)?;
        let outcome = check(server, endpoint, name);
        server.metrics.count_health_check(name, endpoint, outcome.is_ok());
        return Some(match outcome {
            Ok(()) => text(StatusCode::OK, "ok".into()),
            Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
        });
    }
    let excluded: BTreeSet<&str> = query.all("exclude").collect();
    let mut report = String::new();
    let mut failed = Vec::new();
    for name in &names {
        if excluded.contains(name) {
            report.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let outcome = check(server, endpoint, name);
        server.metrics.count_health_check(name, endpoint, outcome.is_ok());
        match outcome {
            Ok(()) => report.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                tracing::debug!(check = name, why, "health check failed");
                report.push_str(&format!("[-]{name} failed: reason withheld\n"));
                failed.push(*name);
            }
        }
    }
    let unknown: Vec<String> = excluded.iter().filter(|e| !names.contains(e)).map(|e| format!("{e:?}")).collect();
    if !unknown.is_empty() {
        report
            .push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", unknown.join(",")));
    }
    Some(if !failed.is_empty() {
        report.push_str(&format!("{endpoint} check failed\n"));
        text(StatusCode::INTERNAL_SERVER_ERROR, report)
    } else if query.has("verbose") {
        report.push_str(&format!("{endpoint} check passed\n"));
        text(StatusCode::OK, report)
    } else {
        text(StatusCode::OK, "ok".into())
    })
}

fn text(code: StatusCode, body: String) -> Answer {
    let mut answer = answer(code, "text/plain; charset=utf-8", ApiBody::full(body));
    let nosniff = http::HeaderValue::from_static("nosniff");
    answer.headers_mut().insert(http::header::X_CONTENT_TYPE_OPTIONS, nosniff);
    answer
}
