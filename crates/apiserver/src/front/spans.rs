//! Spans: traces of requests under upstream's names (`endpoints/filters/traces.go`, `handlers/trace_util.go`). Requests that are
//! not sampled cost nothing.
use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Version, header};
use http_body::Body as _;
use kelson_auth::{UserInfo, user};
use kelson_traces::{KeyValue, Origin, Span};

use crate::request::answer::Answer;
use crate::request::route::RequestInfo;
use crate::shared::Server;
use crate::shared::context::RequestContext;

/// Methods that are values of `http.request.method`; others go to `http.request.method_original`.
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
/// Limit of a user agent's bytes, and the mark at the end of a longer one.
const USER_AGENT_BYTES_MAX: usize = 1024;
const TRUNCATED: &str = "...TRUNCATED";
/// The default port, which is not an attribute.
const HTTPS: u16 = 443;

/// The span of an authenticated request. It continues the trace of the request's headers only if the user is trusted.
pub fn start_request(
    server: &Server,
    parts: &Parts,
    info: &RequestInfo,
    audit_id: &HeaderValue,
    (user, peer): (&UserInfo, IpAddr),
) -> Span {
    let Some(tracer) = &server.config.tracer else { return Span::passed(&parts.headers) };
    let trusted = user.groups.iter().any(|group| group == user::MASTERS || group == user::MONITORING);
    let origin = if trusted { Origin::Trusted } else { Origin::Public };
    tracer.request(
        &parts.headers,
        origin,
        || span_name(parts.method.as_str(), info),
        || {
            let mut attributes = request_attributes(parts, peer);
            attributes.push(KeyValue::text("audit-id", text(Some(audit_id))));
            attributes
        },
    )
}

/// Ends a request's span with its response; that of a streamed response after the last piece was sent.
pub fn end(span: Span, answer: Answer) -> Answer {
    if span.current().context().is_none() {
        return answer;
    }
    let code = answer.status();
    span.set(|| {
        let mut attributes = vec![KeyValue::number("http.response.status_code", code.as_u16())];
        if let Some(size) = answer.body().size_hint().exact().filter(|size| *size > 0) {
            attributes.push(KeyValue::number("http.response.body.size", size));
        }
        attributes
    });
    if code.is_server_error() {
        span.fail("");
    }
    if answer.body().is_whole() { answer } else { answer.map(|body| body.hold(span)) }
}

/// The span of the handler, for requests that upstream traces in handlers.
pub fn start_handler(cx: &RequestContext) -> Span {
    let name = match cx.info.verb {
        "get" => "Get",
        "list" => "List",
        "watch" if cx.query.flag("sendInitialEvents") && cx.query.flag("allowWatchBookmarks") => "WatchList",
        "create" => "Create",
        "update" => "Update",
        "patch" => "Patch",
        "delete" | "deletecollection" => "Delete",
        _ => return Span::default(),
    };
    if !cx.info.is_resource || matches!(cx.info.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward") {
        return Span::default();
    }
    cx.trace.child(name, || handler_attributes(cx))
}

/// The method and the path, with placeholders for namespace and name.
fn span_name(method: &str, info: &RequestInfo) -> String {
    if !info.is_resource {
        return method.to_owned();
    }
    let mut name = format!("{method} /{}", info.prefix);
    let mut part = |text: &str| {
        name.push('/');
        name.push_str(text);
    };
    if !info.group.is_empty() {
        part(&info.group);
    }
    part(&info.version);
    if !info.namespace.is_empty() {
        part("namespaces/{:namespace}");
    }
    part(&info.resource);
    if !info.name.is_empty() {
        part("{:name}");
    }
    if !info.subresource.is_empty() {
        part(&info.subresource);
    }
    name
}

fn request_attributes(parts: &Parts, peer: IpAddr) -> Vec<KeyValue> {
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse().ok());
    let host: Option<http::uri::Authority> = host.or_else(|| parts.uri.authority().cloned());
    let method = parts.method.as_str();
    let known = METHODS.contains(&method);
    let forwarded = text(parts.headers.get(HeaderName::from_static("x-forwarded-for")));
    let client = forwarded.split(',').next().map(str::to_owned).filter(|client| !client.is_empty());
    let target = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut attributes = vec![
        KeyValue::text("server.address", host.as_ref().map_or("", |host| host.host())),
        KeyValue::text("http.request.method", if known { method } else { "GET" }),
        KeyValue::text("url.scheme", "https"),
        KeyValue::text("network.peer.address", peer.to_string()),
        KeyValue::text("client.address", client.unwrap_or_else(|| peer.to_string())),
        KeyValue::text("url.path", parts.uri.path()),
        KeyValue::text("network.protocol.version", protocol(parts.version).trim_start_matches("HTTP/")),
        KeyValue::text("http.target", target),
    ];
    if !known {
        attributes.push(KeyValue::text("http.request.method_original", method));
    }
    if let Some(port) = host.and_then(|host| host.port_u16()).filter(|port| *port != HTTPS) {
        attributes.push(KeyValue::number("server.port", port));
    }
    let agent = text(parts.headers.get(header::USER_AGENT));
    if !agent.is_empty() {
        attributes.push(KeyValue::text("user_agent.original", agent));
    }
    let length = text(parts.headers.get(header::CONTENT_LENGTH)).parse::<u64>().unwrap_or(0);
    if length > 0 {
        attributes.push(KeyValue::number("http.request.body.size", length));
    }
    attributes
}

fn handler_attributes(cx: &RequestContext) -> Vec<KeyValue> {
    let i = &cx.info;
    let scope = match () {
        () if !i.name.is_empty() || i.verb == "create" => "resource",
        () if !i.namespace.is_empty() => "namespace",
        () => "cluster",
    };
    let verb = match i.verb {
        "list" | "watch" | "deletecollection" => i.verb.to_ascii_uppercase(),
        "patch" if text(cx.headers.get(header::CONTENT_TYPE)).starts_with("application/apply-patch") => "APPLY".into(),
        _ => cx.method.as_str().to_owned(),
    };
    vec![
        KeyValue::text("accept", text(cx.headers.get(header::ACCEPT))),
        KeyValue::text("audit-id", text(Some(&cx.audit_id))),
        KeyValue::text("client", cx.peer.to_string()),
        KeyValue::text("api-group", i.group.as_str()),
        KeyValue::text("api-version", i.version.as_str()),
        KeyValue::text("name", i.name.as_str()),
        KeyValue::text("subresource", i.subresource.as_str()),
        KeyValue::text("namespace", i.namespace.as_str()),
        KeyValue::text("protocol", protocol(cx.version)),
        KeyValue::text("resource", i.resource.as_str()),
        KeyValue::text("scope", scope),
        KeyValue::text("url", cx.uri.path()),
        KeyValue::text("user-agent", user_agent(&cx.headers)),
        KeyValue::text("verb", verb),
    ]
}

fn user_agent(headers: &HeaderMap) -> String {
    let agent = text(headers.get(header::USER_AGENT));
    match agent.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= USER_AGENT_BYTES_MAX).last() {
        Some(end) if end < agent.len() => format!("{}{TRUNCATED}", &agent[..end]),
        _ if agent.is_empty() => "unknown".to_owned(),
        _ => agent.to_owned(),
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

fn text(value: Option<&HeaderValue>) -> &str {
    value.and_then(|value| value.to_str().ok()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn names_are_paths_without_what_they_name() {
        for (method, uri, want) in [
            (Method::GET, "/api/v1/namespaces/a/pods/b/log", "GET /api/v1/namespaces/{:namespace}/pods/{:name}/log"),
            (
                Method::POST,
                "/apis/apps/v1/namespaces/a/deployments",
                "POST /apis/apps/v1/namespaces/{:namespace}/deployments",
            ),
            (Method::GET, "/api/v1/nodes?watch=1", "GET /api/v1/nodes"),
            (Method::GET, "/readyz", "GET"),
        ] {
            assert_eq!(span_name(method.as_str(), &RequestInfo::of(&method, uri)), want);
        }
    }

    #[test]
    fn long_user_agents_are_cut() {
        let agent = |text: String| HeaderMap::from_iter([(header::USER_AGENT, text.parse().expect("a value"))]);
        assert_eq!(user_agent(&HeaderMap::new()), "unknown");
        assert_eq!(user_agent(&agent("a".repeat(1024))), "a".repeat(1024));
        assert_eq!(user_agent(&agent("a".repeat(1025))), "a".repeat(1024) + TRUNCATED);
    }
}
