//! Route: parses a request's method, path and query, before authorization. Follows upstream's `endpoints/request/requestinfo.go`.
//! Whether the resource exists is decided later, by the catalog.
use http::Method;
use kelson_meta::url::{Query, decode};

use crate::request::selectors::ParsedSelectors;

/// The parsed request, as authorization and audit use it. It is made from the method, the path and the query only: an existing
/// resource is not required. For a path such as `/api/v1/namespaces/a/pods/b/log` it contains the verb, group, version, namespace,
/// resource, name and subresource; for any other path, only the verb, which is the lower-case method.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether the path names a resource.
    pub is_resource: bool,
    /// API verb, or the lower-case method for other paths.
    pub verb: &'static str,
    /// `api` or `apis`.
    pub prefix: &'static str,
    /// API group; empty for the legacy group.
    pub group: String,
    /// The version in the path, such as `v1`.
    pub version: String,
    /// Namespace; empty for cluster-scoped paths.
    pub namespace: String,
    /// The plural name in the path, such as `pods`.
    pub resource: String,
    /// Subresource; empty for none.
    pub subresource: String,
    /// Object name; empty for collections.
    pub name: String,
    /// Whether the name comes from a field selector; the path then names a collection.
    pub selected: bool,
    /// The path after the subresource (proxy paths), each segment decoded.
    pub tail: Vec<String>,
    /// A legacy `/watch/` path.
    pub watch_path: bool,
}

impl RequestInfo {
    /// Parses a method and a path with its query.
    pub fn of(method: &Method, path_and_query: &str) -> Self {
        let (path, query) = path_and_query.split_once('?').unzip();
        let query = Query::parse(query);
        route(method, path.unwrap_or(path_and_query), &query, &ParsedSelectors::parse(&query))
    }
}

/// Parses a request's path. A path with invalid escapes is not a resource path.
pub fn route(method: &Method, path: &str, query: &Query, selectors: &ParsedSelectors) -> RequestInfo {
    let other = || RequestInfo { verb: lower(method), ..RequestInfo::default() };
    let Some(segments) = path.split('/').filter(|s| !s.is_empty()).map(decode).collect::<Option<Vec<_>>>() else {
        return other();
    };
    let mut segments = segments.into_iter().peekable();
    let (prefix, group) = match segments.next().as_deref() {
        Some("api") => ("api", String::new()),
        Some("apis") => match segments.next() {
            Some(group) => ("apis", group),
            None => return other(),
        },
        _ => return other(),
    };
    let Some(version) = segments.next() else { return other() };
    if segments.peek().is_none() {
        return other();
    }
    let mut info =
        RequestInfo { is_resource: true, prefix, group, version, verb: verb(method), ..RequestInfo::default() };
    if segments.peek().is_some_and(|s| s == "watch") {
        segments.next();
        info.verb = "watch";
        info.watch_path = true;
    }
    let mut rest: Vec<String> = segments.collect();
    if rest.is_empty() {
        return other();
    }
    if rest[0] == "namespaces" && rest.len() > 1 {
        info.namespace = rest[1].clone();
        if rest.len() > 2 && !matches!(rest[2].as_str(), "status" | "finalize") {
            rest.drain(..2);
        }
    }
    let mut parts = rest.into_iter();
    info.resource = parts.next().unwrap_or_default();
    info.name = parts.next().unwrap_or_default();
    info.subresource = parts.next().unwrap_or_default();
    info.tail = parts.collect();
    // The legacy prefix is for reads only; it must not turn another request into a watch.
    if info.watch_path && !(*method == Method::GET && info.subresource.is_empty()) {
        return other();
    }
    refine(&mut info, query, selectors);
    info
}

fn refine(info: &mut RequestInfo, query: &Query, selectors: &ParsedSelectors) {
    if info.name.is_empty() && info.verb == "get" {
        info.verb = if query.flag("watch") { "watch" } else { "list" };
    } else if info.name.is_empty() && info.verb == "delete" {
        info.verb = "deletecollection";
    }
    // A selector of one name narrows the request to that object, so that RBAC's resourceNames apply.
    if info.name.is_empty()
        && matches!(info.verb, "list" | "watch" | "deletecollection")
        && let Some(selector) = selectors.fields()
        && let Some(name) = selector.exact("metadata.name")
        && kelson_meta::is_path_segment_name(name).is_ok()
    {
        info.name = name.to_owned();
        info.selected = true;
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The verb of a path that is not a resource path.
fn lower(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, uri: &str, expected: &str) {
        let (path, query) = uri.split_once('?').map_or((uri, None), |(p, q)| (p, Some(q)));
        let query = Query::parse(query);
        let i = route(&method.parse().unwrap(), path, &query, &ParsedSelectors::parse(&query));
        let got = if i.is_resource {
            format!(
                "{} g={} v={} ns={} r={} n={}{} s={} t={:?}",
                i.verb,
                i.group,
                i.version,
                i.namespace,
                i.resource,
                i.name,
                if i.selected { " selected" } else { "" },
                i.subresource,
                i.tail
            )
        } else {
            format!("{} other", i.verb)
        };
        assert_eq!(got, expected, "{method} {uri}");
    }

    #[test]
    fn paths() {
        check("GET", "/api/v1/pods", "list g= v=v1 ns= r=pods n= s= t=[]");
        check("GET", "/api/v1/pods?watch=1", "watch g= v=v1 ns= r=pods n= s= t=[]");
        check("GET", "/api/v1/watch/pods", "watch g= v=v1 ns= r=pods n= s= t=[]");
        check("GET", "/api/v1/watch/namespaces/a/pods/b", "watch g= v=v1 ns=a r=pods n=b s= t=[]");
        check("POST", "/api/v1/watch/nodes/n/proxy/run/a/b/c", "post other");
        check("GET", "/api/v1/watch/nodes/n/proxy/exec/a/b/c", "get other");
        check("DELETE", "/api/v1/watch/pods", "delete other");
        check("GET", "/api/v1/namespaces/a/pods/b/log", "get g= v=v1 ns=a r=pods n=b s=log t=[]");
        check("GET", "/api/v1/namespaces/a", "get g= v=v1 ns=a r=namespaces n=a s= t=[]");
        check("PUT", "/api/v1/namespaces/a/finalize", "update g= v=v1 ns=a r=namespaces n=a s=finalize t=[]");
        check("GET", "/api/v1/namespaces", "list g= v=v1 ns= r=namespaces n= s= t=[]");
        check(
            "DELETE",
            "/apis/apps/v1/namespaces/a/deployments",
            "deletecollection g=apps v=v1 ns=a r=deployments n= s= t=[]",
        );
        check("GET", "/api/v1/nodes/n/proxy/a%2Fb/c", "get g= v=v1 ns= r=nodes n=n s=proxy t=[\"a/b\", \"c\"]");
        check("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list g= v=v1 ns= r=pods n=x selected s= t=[]");
        check(
            "GET",
            "/api/v1/watch/pods?fieldSelector=metadata.name%3Dx",
            "watch g= v=v1 ns= r=pods n=x selected s= t=[]",
        );
        check("GET", "/api/v1/pods/x?fieldSelector=metadata.name%3Dx", "get g= v=v1 ns= r=pods n=x s= t=[]");
        check("GET", "/apis/apps/v1", "get other");
        check("GET", "/apis/apps", "get other");
        check("GET", "/api", "get other");
        check("POST", "/healthz", "post other");
        check("GET", "/api/v1/%zz", "get other");
    }
}
