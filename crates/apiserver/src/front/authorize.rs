//! Authorize: whether the user may do what the request asks for.
use kelson_auth::authorize::forbidden;
use kelson_auth::{Attributes, UserInfo};
use kelson_meta::Status;
use tokio::time::Instant;

use crate::request::route::RequestInfo;
use crate::request::selectors::ParsedSelectors;
use crate::shared::context::RequestContext;

/// Audit annotations (upstream's names).
const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";

/// Asks the authorizers in order and adds their decision to the audit annotations.
///
/// # Errors
/// 403 if the request is not allowed.
pub async fn authorize(cx: &RequestContext) -> Result<(), Status> {
    let attributes = attributes(&cx.info, &cx.selectors, &cx.user, cx.uri.path());
    let since = Instant::now();
    let decision = cx.server.authorizer.decide(&attributes).await;
    cx.server.metrics.identity().count_decision(&decision, since.elapsed());
    cx.annotate(DECISION, || if decision.is_allow() { "allow".to_owned() } else { "forbid".to_owned() });
    cx.annotate(REASON, || decision.reason().to_owned());
    if decision.is_allow() { Ok(()) } else { Err(forbidden(&attributes, decision.reason())) }
}

/// The authorization attributes of a request by `user`.
pub fn attributes<'a>(
    i: &'a RequestInfo,
    selectors: &'a ParsedSelectors,
    user: &'a UserInfo,
    path: &'a str,
) -> Attributes<'a> {
    let selects = matches!(i.verb, "list" | "watch" | "deletecollection");
    Attributes {
        user,
        verb: verb(i),
        namespace: &i.namespace,
        group: &i.group,
        version: &i.version,
        resource: &i.resource,
        subresource: &i.subresource,
        name: &i.name,
        path,
        is_resource: i.is_resource,
        field_selector: selectors.fields().filter(|_| selects),
        label_selector: selectors.labels().filter(|_| selects),
    }
}

/// The verb for authorization. Running a command is `create`, whatever method the upgrade uses (kubernetes#78741), also through
/// the node proxy.
fn verb(i: &RequestInfo) -> &'static str {
    /// The first path elements of the kubelet's API that run commands or open connections.
    const RUNS: [&str; 5] = ["exec", "attach", "portforward", "run", "cri"];
    match (i.resource.as_str(), i.subresource.as_str()) {
        ("pods", "exec" | "attach" | "portforward") if i.group.is_empty() && i.verb == "get" => "create",
        ("nodes", "proxy") if i.group.is_empty() => {
            // A path element may contain escaped slashes, which the kubelet sees after unescaping.
            let mut parts = i.tail.iter().flat_map(|part| part.split('/')).filter(|part| !matches!(*part, "" | "."));
            match parts.next() {
                Some(first) if RUNS.iter().any(|run| first.eq_ignore_ascii_case(run)) => "create",
                _ => i.verb,
            }
        }
        _ => i.verb,
    }
}
