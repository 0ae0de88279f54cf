//! Health: `/healthz`, `/livez`, `/readyz`, whole, verbose, and single checks, in upstream's texts.
use http::StatusCode;

use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::request::query::Query;
use crate::shared::Server;

const HOOKS: [&str; 4] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/bootstrap-controller",
];

fn checks(endpoint: &str) -> Vec<&'static str> {
    let mut names = vec!["ping", "log", "etcd"];
    if endpoint == "readyz" {
        names.extend(["etcd-readiness", "informer-sync"]);
    }
    names.extend(HOOKS);
    if endpoint == "readyz" {
        names.push("shutdown");
    }
    names
}

fn check(server: &Server, name: &str) -> Result<(), &'static str> {
    let ready = server.health.is_ready();
    match name {
        "etcd" | "etcd-readiness" => match server.stopping.is_cancelled() {
            true => Err("the store is closing"),
            false => Ok(()),
        },
        "shutdown" if server.health.is_stopping() => Err("process is shutting down"),
        "informer-sync" if !ready => Err("not synced"),
        hook if hook.starts_with("poststarthook/") && !ready => Err("not finished"),
        _ => Ok(()),
    }
}

/// Serves `/healthz`, `/livez`, `/readyz` and what is below them; `None` for a check there is not.
pub fn serve(server: &Server, path: &str, query: &Query) -> Option<Answer> {
    let path = path.trim_start_matches('/').trim_end_matches('/');
    let (endpoint, single) = path.split_once('/').unwrap_or((path, ""));
    let names = checks(endpoint);
    if !single.is_empty() {
        let name = names.iter().find(|n| **n == single)?;
        return Some(match check(server, name) {
            Ok(()) => text(StatusCode::OK, "ok".into()),
            Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
        });
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut report = String::new();
    let mut failed = Vec::new();
    for name in &names {
        if excluded.contains(name) {
            report.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        match check(server, name) {
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
            .push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", unknown.join(", ")));
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
