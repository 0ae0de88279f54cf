//! One audit event, and its JSON (`audit.k8s.io/v1` Event).
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use kelson_auth::UserInfo;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// The prefix of the fields in an event that is written alone.
const TYPE_META: &[u8] = br#""kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// How much of a request is logged; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// The request is not written down.
    None,
    /// Metadata of the request: user, time, resource and result.
    Metadata,
    /// The object of the request as well.
    Request,
    /// The object of the answer as well.
    RequestResponse,
}

impl Level {
    /// All, the least first.
    pub const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Request, Self::RequestResponse];

    /// The API's word for it.
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
    /// Its sender is known; nothing was done yet.
    RequestReceived,
    /// The head of a long answer (a watch, an exec) is sent, or its sender was not believed.
    ResponseStarted,
    /// The answer is made, or its receiver went.
    ResponseComplete,
    /// The server had a fault.
    Panic,
}

impl Stage {
    /// All, in the order of a request.
    pub const ALL: [Self; 4] = [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    /// The API's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// The object a request is for; empty fields are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The resource of the request's path, such as pods.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Namespace; for cluster-scoped objects empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name; of a create, the one that the object itself carries.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The object's uid, when the request says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// API group; empty for the legacy one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// Version of the group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The revision that the request was made for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The subresource of the request's path, such as status.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// How the user of a request was impersonated.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationMetadata {
    /// The verb of the constrained way of impersonating that allowed it, such as `impersonate:user-info` (KEP-5284).
    pub impersonation_constraint: String,
}

/// One stage of one request.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The level of the event.
    pub level: Level,
    /// Names the request in logs on both sides (`Audit-ID`).
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The stage of the request.
    pub stage: Stage,
    /// Path and query as they came.
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
    /// The client's word about itself, shortened.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The object of the request; `None` for non-resource paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    /// The fields of the answer's `Status` (of another answer, the code alone).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<Value>,
    /// The object of the request, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Arc<RawValue>>,
    /// The object of the answer, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Arc<RawValue>>,
    /// When the request was received.
    #[serde(rename = "requestReceivedTimestamp", serialize_with = "micro")]
    pub received_at: Timestamp,
    /// When it reached this stage.
    #[serde(rename = "stageTimestamp", serialize_with = "micro")]
    pub stage_at: Timestamp,
    /// Annotations of authorization and admission.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn micro<S: Serializer>(t: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&kelson_meta::format_micro(*t))
}

impl Event {
    /// The event as an item of a list, which does not say its kind.
    pub fn json(&self) -> Bytes {
        // Nothing in it can fail to be written: its maps have text keys.
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

/// Many items as one `EventList`.
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

    /// An event with something in every field.
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
