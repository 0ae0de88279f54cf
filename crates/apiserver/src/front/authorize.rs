//! Authorize: whether who asks may do what is asked.
use kelson_auth::Attributes;
use kelson_auth::authorize::forbidden;
use kelson_meta::Status;

use crate::request::route::RequestInfo;
use crate::shared::context::RequestContext;

/// Audit annotations (upstream's names).
const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";

/// Asks the authorizers in order, and notes their decision for the audit log.
///
/// # Errors
/// 403.
pub async fn authorize(cx: &RequestContext) -> Result<(), Status> {
    let i = &cx.info;
    let selects = matches!(i.verb, "list" | "watch" | "deletecollection");
    let attributes = Attributes {
        user: &cx.user,
        verb: verb(i),
        namespace: &i.namespace,
        group: &i.group,
        version: &i.version,
        resource: &i.resource,
        subresource: &i.subresource,
        name: &i.name,
        path: cx.uri.path(),
        is_resource: i.is_resource,
        field_selector: cx.selectors.fields().filter(|_| selects),
        label_selector: cx.selectors.labels().filter(|_| selects),
    };
    let decision = cx.server.authorizer.decide(&attributes).await;
    cx.annotate(DECISION, || if decision.is_allow() { "allow".to_owned() } else { "forbid".to_owned() });
    cx.annotate(REASON, || decision.reason().to_owned());
    if decision.is_allow() { Ok(()) } else { Err(forbidden(&attributes, decision.reason())) }
}

/// Running a command is `create`, whatever method the upgrade came by (kubernetes#78741), and by whichever way.
fn verb(i: &RequestInfo) -> &'static str {
    /// What of a kubelet runs commands or opens connections, by the first part of its path.
    const RUNS: [&str; 5] = ["exec", "attach", "portforward", "run", "cri"];
    match (i.resource.as_str(), i.subresource.as_str()) {
        ("pods", "exec" | "attach" | "portforward") if i.group.is_empty() && i.verb == "get" => "create",
        ("nodes", "proxy") if i.group.is_empty() => {
            // A part may hold slashes of its own, which the kubelet sees when it has unescaped them.
            let mut parts = i.tail.iter().flat_map(|part| part.split('/')).filter(|part| !matches!(*part, "" | "."));
            match parts.next() {
                Some(first) if RUNS.iter().any(|run| first.eq_ignore_ascii_case(run)) => "create",
                _ => i.verb,
            }
        }
        _ => i.verb,
    }
}
