//! Parts of an audit event that come from the request and its response: source addresses, object reference, and objects as JSON. Pure.
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Uri, header};
use kelson_audit::ObjectReference;
use kelson_codec::Encoding;
use kelson_meta::Gvk;
use kelson_schema::Schema;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::request::answer::Answer;
use crate::request::route::RequestInfo;
use crate::request::routes::Route;

/// Limit of a user agent's bytes (upstream `maxUserAgentLength`).
const USER_AGENT_BYTES_MAX: usize = 1024;
/// Limit of addresses taken from proxy headers, because a client can send any number.
const SOURCES_MAX: usize = 32;

/// The addresses that a request came through: those that proxies reported, then the peer, which cannot be forged.
pub fn source_ips(headers: &HeaderMap, peer: IpAddr) -> Vec<IpAddr> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let forwarded = text("x-forwarded-for").split(',').filter_map(|ip| ip.trim().parse().ok());
    let mut all: Vec<IpAddr> = forwarded.take(SOURCES_MAX).collect();
    if let Ok(real) = text("x-real-ip").trim().parse()
        && !all.contains(&real)
    {
        all.push(real);
    }
    let peer = peer.to_canonical();
    if all.last() != Some(&peer) {
        all.push(peer);
    }
    all
}

/// The `User-Agent` header, shortened.
pub fn user_agent(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).map(|v| String::from_utf8_lossy(v.as_bytes())).unwrap_or_default();
    if agent.len() <= USER_AGENT_BYTES_MAX {
        return agent.into_owned();
    }
    format!("{}...TRUNCATED", &agent[..agent.floor_char_boundary(USER_AGENT_BYTES_MAX)])
}

/// The request's path and query, which policy rules match. Over HTTP/2, the URI also contains scheme and host; they are dropped.
pub fn request_uri(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string)
}

/// Whether upstream's audit records the `ResponseStarted` stage (`pkg/controlplane/apiserver`, `LongRunningFunc`).
pub fn has_response_started_stage(info: &RequestInfo) -> bool {
    info.verb == "watch"
        || matches!(info.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward") && info.is_resource
}

/// Kind and version of the object that a request sends; `None` for patches, which are not objects.
pub fn request_kind(info: &RequestInfo, route: Option<&Route>) -> Option<Gvk> {
    if info.verb.starts_with("delete") {
        return Some(Gvk::new("meta.k8s.io", "v1", "DeleteOptions"));
    }
    let Some(Route::Stored(served)) = route.filter(|_| matches!(info.verb, "create" | "update")) else { return None };
    match info.subresource.as_str() {
        "" => Some(served.gvk.clone()),
        name => served.sub(name).map(|sub| sub.gvk.clone()),
    }
}

/// The object with kind and version, which a client may omit because the path implies them.
pub fn with_kind(object: Arc<RawValue>, gvk: &Gvk) -> Arc<RawValue> {
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Typed {
        kind: Option<Value>,
        api_version: Option<Value>,
    }
    let Ok(Typed { kind, api_version }) = serde_json::from_str(object.get()) else { return object };
    let is_set = |field: Option<Value>| field.is_some_and(|v| v.as_str().is_some_and(|text| !text.is_empty()));
    let missing: Vec<(&str, String)> =
        [("kind", kind, gvk.kind.clone()), ("apiVersion", api_version, gvk.api_version())]
            .into_iter()
            .filter_map(|(name, found, value)| (!is_set(found)).then_some((name, value)))
            .collect();
    if missing.is_empty() {
        return object;
    }
    let Ok(Value::Object(mut rest)) = serde_json::from_str::<Value>(object.get()) else { return object };
    for (name, value) in missing {
        rest.insert(name.to_owned(), value.into());
    }
    serde_json::value::to_raw_value(&rest).map_or(object, Arc::from)
}

/// Reference to the object that the path names.
pub fn reference(info: &RequestInfo) -> Option<ObjectReference> {
    info.is_resource.then(|| ObjectReference {
        resource: info.resource.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
        api_group: info.group.clone(),
        api_version: info.version.clone(),
        subresource: info.subresource.clone(),
        ..ObjectReference::default()
    })
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    metadata: Option<Meta>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Fills fields that the path does not contain from the object that was sent.
pub fn fill_reference(reference: &mut ObjectReference, object: &RawValue) {
    let Ok(Named { metadata: Some(meta) }) = serde_json::from_str(object.get()) else { return };
    for (to, from) in [
        (&mut reference.name, meta.name),
        (&mut reference.namespace, meta.namespace),
        (&mut reference.uid, meta.uid),
        (&mut reference.resource_version, meta.resource_version),
    ] {
        if to.is_empty() {
            *to = from.unwrap_or_default();
        }
    }
}

/// The object (or patch) in a body as one line of JSON; `None` if the body is not one.
pub fn object(headers: &HeaderMap, bytes: &[u8], omit_managed_fields: bool) -> Option<Arc<RawValue>> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let media_type = media_type.split(';').next().unwrap_or("").trim();
    let encoding = match media_type {
        "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
        t if t.is_empty() || t.ends_with("json") => Encoding::Json,
        t if t.ends_with("yaml") => Encoding::Yaml,
        _ => return None,
    };
    if encoding == Encoding::Json && !omit_managed_fields {
        let whole = serde_json::from_slice::<&RawValue>(bytes).ok()?;
        if !whole.get().contains('\n') {
            return Some(whole.to_owned().into());
        }
    }
    let mut tree = match encoding {
        Encoding::Protobuf => {
            let meta = kelson_codec::peek(encoding, bytes).ok()?;
            let ty = Schema::builtin().by_api_version(&meta.api_version, &meta.kind)?;
            kelson_codec::decode(encoding, Some(ty), bytes, false).ok()?.value
        }
        _ => kelson_codec::decode(encoding, None, bytes, false).ok()?.value,
    };
    if omit_managed_fields {
        drop_managed_fields(&mut tree);
    }
    serde_json::value::to_raw_value(&tree).ok().map(Arc::from)
}

/// Removes `metadata.managedFields` from an object, the items of a list, or the objects in a table's rows.
fn drop_managed_fields(tree: &mut Value) {
    fn of_object(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
    fn of_items<'a>(tree: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
        tree.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
    }
    of_object(tree);
    of_items(tree, "items").for_each(of_object);
    of_items(tree, "rows").filter_map(|row| row.get_mut("object")).for_each(of_object);
}

/// The `responseStatus` of an event: fields of the response's `Status` if it is one, otherwise only the code.
pub fn response_status(answer: &Answer) -> Value {
    let mut status = json!({"metadata": {}, "code": answer.status().as_u16()});
    if let Some(reported) = answer.extensions().get::<Arc<kelson_meta::Status>>()
        && let Ok(Value::Object(reported)) = serde_json::to_value(&**reported)
    {
        for field in ["status", "message", "reason", "details"] {
            if let Some(value) = reported.get(field).filter(|v| !v.is_null()) {
                status[field] = value.clone();
            }
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(k, v)| (http::HeaderName::from_static(k), v.parse().unwrap())).collect()
    }

    #[test]
    fn source_addresses_end_with_the_peer() {
        let check = |all: &[(&'static str, &str)], peer: &str, expected: &str| {
            let ips = source_ips(&headers(all), peer.parse().unwrap());
            let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
            assert_eq!(ips.join(" "), expected);
        };
        check(&[], "::ffff:192.0.2.1", "192.0.2.1");
        check(&[("x-forwarded-for", "192.0.2.7, nonsense,192.0.2.8")], "192.0.2.1", "192.0.2.7 192.0.2.8 192.0.2.1");
        let both = [("x-forwarded-for", "192.0.2.7"), ("x-real-ip", "192.0.2.7")];
        check(&both, "192.0.2.7", "192.0.2.7");
        check(&[("x-real-ip", "192.0.2.9")], "192.0.2.1", "192.0.2.9 192.0.2.1");
    }

    #[test]
    fn the_uri_is_path_and_query_over_either_protocol() {
        for uri in ["https://192.0.2.1:6443/api/v1/pods?limit=1", "/api/v1/pods?limit=1"] {
            assert_eq!(request_uri(&uri.parse().unwrap()), "/api/v1/pods?limit=1", "{uri}");
        }
        assert_eq!(request_uri(&"https://192.0.2.1:6443".parse().unwrap()), "/");
    }

    #[test]
    fn omitted_kinds_are_added() {
        let gvk = Gvk::new("", "v1", "ConfigMap");
        for (sent, expected) in [
            (r#"{"metadata":{"name":"a"}}"#, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#),
            (r#"{"kind":"","data":{}}"#, r#"{"apiVersion":"v1","data":{},"kind":"ConfigMap"}"#),
            (r#"{"data":{},"kind":"Other","apiVersion":"v2"}"#, r#"{"data":{},"kind":"Other","apiVersion":"v2"}"#),
            ("{}", r#"{"apiVersion":"v1","kind":"ConfigMap"}"#),
            ("[]", "[]"),
        ] {
            let object = Arc::from(RawValue::from_string(sent.to_owned()).unwrap());
            assert_eq!(with_kind(object, &gvk).get(), expected, "{sent}");
        }
    }

    #[test]
    fn objects_are_one_line_of_json() {
        let check = |media_type: &str, bytes: &[u8], omit: bool, expected: Option<&str>| {
            let got = object(&headers(&[("content-type", media_type)]), bytes, omit);
            assert_eq!(got.as_deref().map(RawValue::get), expected, "{media_type}");
        };
        check("application/json", b"{\"a\":1}\n", false, Some(r#"{"a":1}"#));
        check("application/json;as=Table", b"{\n \"a\": 1\n}", false, Some(r#"{"a":1}"#));
        check("application/apply-patch+yaml", b"a: 1\nb: x", false, Some(r#"{"a":1,"b":"x"}"#));
        check("application/merge-patch+json", br#"{"a":null}"#, false, Some(r#"{"a":null}"#));
        check("text/plain", b"{}", false, None);
        check("application/json", b"{", false, None);
        let managed = br#"{"items":[{"metadata":{"managedFields":[1],"name":"x"}}],"metadata":{"managedFields":[]}}"#;
        check("application/json", managed, true, Some(r#"{"items":[{"metadata":{"name":"x"}}],"metadata":{}}"#));
    }

    #[test]
    fn a_user_agent_is_shortened() {
        let long = "ä".repeat(USER_AGENT_BYTES_MAX);
        let mut all = HeaderMap::new();
        all.insert(header::USER_AGENT, http::HeaderValue::from_bytes(long.as_bytes()).unwrap());
        assert_eq!(user_agent(&all).len(), USER_AGENT_BYTES_MAX + "...TRUNCATED".len());
    }

    #[test]
    fn the_object_fills_missing_fields_of_the_reference() {
        let mut found = ObjectReference { namespace: "a".into(), ..ObjectReference::default() };
        let raw =
            RawValue::from_string(r#"{"metadata":{"name":"x","namespace":"b","uid":"u"},"data":{}}"#.into()).unwrap();
        fill_reference(&mut found, &raw);
        assert_eq!((&*found.name, &*found.namespace, &*found.uid), ("x", "a", "u"));
    }
}
