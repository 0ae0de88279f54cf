//! An audit event and its JSON (`audit.k8s.io/v1` Event).
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use kelson_auth::UserInfo;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// The type fields of an event that is written as a separate document.
const TYPE_META: &[u8] = br#""kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// The level of detail of the audit log. Each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// The request is not logged.
    None,
    /// The metadata of the request is logged: user, time, resource and result.
    Metadata,
    /// The object of the request is also logged.
    Request,
    /// The object of the response is also logged.
    RequestResponse,
}

impl Level {
    /// All levels in ascending order.
    pub const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Request, Self::RequestResponse];

    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// The stage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// The user is authenticated, and nothing else has happened.
    RequestReceived,
    /// The headers of a long response (watch, exec) were sent, or authentication failed.
    ResponseStarted,
    /// The response is complete, or the client has disconnected.
    ResponseComplete,
    /// The server panicked.
    Panic,
}

impl Stage {
    /// All stages in the order of a request.
    pub const ALL: [Self; 4] = [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// The object of a request. Empty fields are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The resource in the path of the request, such as `pods`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// The namespace; empty for cluster-scoped objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name. For a create request, it is the name in the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The UID of the object, if the request specifies it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The API group; empty for the legacy group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The version of the group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The resourceVersion in the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The subresource in the path of the request, such as `status`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// The impersonation of a request's user.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationMetadata {
    /// The verb that allowed a constrained impersonation, such as `impersonate:user-info` (KEP-5284).
    pub impersonation_constraint: String,
}

/// One stage of one request, as the audit log records it (`audit.k8s.io/v1` Event). The level in the policy decides
/// whether it has the objects of the request and the response. Field names and order match upstream's JSON.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The level of the event.
    pub level: Level,
    /// The ID of the request in the logs of client and server (`Audit-ID`).
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The stage of the request.
    pub stage: Stage,
    /// The path and the query as received.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The API verb, or the lower-case HTTP method for non-resource paths.
    pub verb: String,
    /// The authenticated user, before impersonation.
    pub user: Arc<UserInfo>,
    /// The impersonated user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<Arc<UserInfo>>,
    /// The constraint that allowed the impersonation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication_metadata: Option<AuthenticationMetadata>,
    /// The source addresses: those that proxies report, then the peer's own.
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<IpAddr>,
    /// The `User-Agent` of the client, truncated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The object of the request; `None` for non-resource paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    /// The fields of the `Status` response. For another response, only the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<Value>,
    /// The object of the request in JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Arc<RawValue>>,
    /// The object of the response in JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Arc<RawValue>>,
    /// The time when the request was received.
    #[serde(rename = "requestReceivedTimestamp", serialize_with = "micro")]
    pub received_at: Timestamp,
    /// The time when the request reached this stage.
    #[serde(rename = "stageTimestamp", serialize_with = "micro")]
    pub stage_at: Timestamp,
    /// The annotations from authorization and admission.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn micro<S: Serializer>(t: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&kelson_meta::format_micro(*t))
}

impl Event {
    /// Returns the event as an item of a list, without its kind.
    pub fn json(&self) -> Bytes {
        // Encoding cannot fail, because all maps have string keys.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// Returns an item of a list as a separate document with a line end.
pub fn alone(item: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(item.len() + TYPE_META.len() + 1);
    line.push(b'{');
    line.extend_from_slice(TYPE_META);
    line.extend_from_slice(item.get(1..).unwrap_or_default());
    line.push(b'\n');
    line.into()
}

/// Encodes items as one `EventList`.
pub fn list<'a>(items: impl ExactSizeIterator<Item = &'a Bytes>) -> Bytes {
    let mut all = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    for (i, item) in items.enumerate() {
        if i > 0 {
            all.push(b',');
        }
        all.extend_from_slice(item);
    }
    all.extend_from_slice(b"]}");
    all.into()
}

#[cfg(test)]
pub mod sample {
    use super::*;

    /// Returns an event with a value in every field.
    pub fn full() -> Event {
        let raw = |text: &str| Some(Arc::from(RawValue::from_string(text.to_owned()).expect("JSON")));
        let at: Timestamp = "2026-01-02T03:04:05.678901Z".parse().expect("a time");
        Event {
            level: Level::RequestResponse,
            audit_id: "id-1".into(),
            stage: Stage::ResponseComplete,
            request_uri: "/api/v1/namespaces/a/secrets?x=1".into(),
            verb: "create".into(),
            user: Arc::new(UserInfo::new("jane", ["dev", "ops"])),
            impersonated_user: Some(Arc::new(UserInfo::new("bot", ["robots"]))),
            authentication_metadata: Some(AuthenticationMetadata {
                impersonation_constraint: "impersonate:user-info".into(),
            }),
            source_ips: vec!["192.0.2.1".parse().expect("an address")],
            user_agent: "kubectl/v1.2".into(),
            object_ref: Some(ObjectReference {
                resource: "secrets".into(),
                namespace: "a".into(),
                name: "s".into(),
                api_version: "v1".into(),
                ..ObjectReference::default()
            }),
            response_status: Some(serde_json::json!({"metadata": {}, "code": 201})),
            request_object: raw(r#"{"kind":"Secret"}"#),
            response_object: raw(r#"{"kind":"Secret","metadata":{"uid":"1"}}"#),
            received_at: at,
            stage_at: at,
            annotations: BTreeMap::from([("authorization.k8s.io/decision".into(), "allow".into())]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_form_of_an_event() {
        let line = alone(&sample::full().json());
        assert!(line.ends_with(b"}\n"));
        let got: Value = serde_json::from_slice(&line).unwrap();
        let want = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "auditID": "id-1",
            "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/a/secrets?x=1", "verb": "create",
            "user": {"username": "jane", "groups": ["dev", "ops"]},
            "impersonatedUser": {"username": "bot", "groups": ["robots"]},
            "authenticationMetadata": {"impersonationConstraint": "impersonate:user-info"},
            "sourceIPs": ["192.0.2.1"], "userAgent": "kubectl/v1.2",
            "objectRef": {"resource": "secrets", "namespace": "a", "name": "s", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 201},
            "requestObject": {"kind": "Secret"}, "responseObject": {"kind": "Secret", "metadata": {"uid": "1"}},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z",
            "stageTimestamp": "2026-01-02T03:04:05.678901Z",
            "annotations": {"authorization.k8s.io/decision": "allow"},
        });
        assert_eq!(got, want);
    }

    #[test]
    fn the_form_of_a_list() {
        let item = sample::full().json();
        let got: Value = serde_json::from_slice(&list([item.clone(), item].iter())).unwrap();
        assert_eq!((got["kind"].as_str(), got["items"].as_array().map(Vec::len)), (Some("EventList"), Some(2)));
        assert_eq!(got["items"][1]["auditID"], "id-1");
        assert!(got["items"][0].get("kind").is_none(), "items do not repeat their kind");
    }
}
