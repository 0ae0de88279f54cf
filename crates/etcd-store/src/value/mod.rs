//! Values: from what the reference stores to what the store keeps and back. Built-in kinds are protobuf in its envelope, as
//! are those of other media types that begin otherwise; definitions, APIServices and custom resources are JSON. Neither
//! holds a resourceVersion. Pure.

mod definition;

use kelson_codec::{EncodeError, json, proto};
use kelson_meta::Gvk;
use kelson_schema::{Schema, TypeId};
use kelson_store::{Body, Fields, Key, Labels, RecordMeta, StoreError, Uid};
use serde_json::{Map, Value};

use crate::key::{self, Row};

/// The form in which built-in kinds are stored (`--storage-media-type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaType {
    /// Values are stored as JSON (`application/json`).
    Json,
    /// Values are stored as protobuf (`application/vnd.kubernetes.protobuf`).
    #[default]
    Protobuf,
}

impl MediaType {
    /// Returns the form with this media type, or `None` for a form in which nothing is stored here.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "application/json" => Some(Self::Json),
            "" | "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

/// Groups whose built-in kinds upstream stores as JSON, because their servers have other codecs.
const AS_JSON: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Describes why a value does not decode or encode.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadValue(String);

fn bad(why: impl std::fmt::Display) -> BadValue {
    BadValue(why.to_string())
}

/// A decoded value.
pub(crate) struct Decoded {
    pub body: Body,
    pub meta: RecordMeta,
}

/// Decodes the object in an unencrypted value.
///
/// # Errors
/// The value is not an object of the key's kind.
pub(crate) fn decode(key: &Key, value: &[u8]) -> Result<Decoded, BadValue> {
    let row = key::row(key.resource);
    let mut tree = match row {
        Some(row) => builtin(row, value)?,
        None => custom(value)?,
    };
    let metadata = tree.get_mut("metadata").and_then(Value::as_object_mut).ok_or_else(|| bad("has no metadata"))?;
    if metadata.get("name").and_then(Value::as_str) != Some(&*key.name) {
        return Err(bad("its name differs from its key"));
    }
    metadata.insert("resourceVersion".into(), Value::String(String::new()));
    let meta = beside(row, &tree);
    let body = Body::locate(kelson_codec::declared_json(&tree)).map_err(bad)?;
    Ok(Decoded { body, meta })
}

fn builtin(row: &Row, value: &[u8]) -> Result<Value, BadValue> {
    let storage = &row.strategy.options().storage;
    let typed = |api_version: &str, kind: &str| -> Result<TypeId, BadValue> {
        if kind != storage.kind {
            return Err(bad(format!("expected kind {}, got {kind}", storage.kind)));
        }
        // A version that is not served here has the fields of the stored one, as far as both have them.
        let found = Schema::builtin().by_api_version(api_version, kind).or(row.ty);
        found.ok_or_else(|| bad(format!("no kind {kind} is registered for version {api_version}")))
    };
    let mut tree = if proto::is_protobuf(value) {
        let says = proto::peek(value).map_err(bad)?;
        proto::decode_as(typed(&says.api_version, &says.kind)?, value).map_err(bad)?.1
    } else {
        let says = json::peek(value).map_err(bad)?;
        if definition::is_old(&says) {
            let old = json::decode(None, value, false).map_err(bad)?.value;
            kelson_codec::normalize(typed(&storage.api_version(), &says.kind)?, definition::renewed(old), false)
                .map_err(bad)?
                .value
        } else {
            json::decode(Some(typed(&says.api_version, &says.kind)?), value, false).map_err(bad)?.value
        }
    };
    let says = Gvk::new(&storage.group, version_of(&tree), &storage.kind);
    if says != *storage {
        tree = kelson_resources::convert(&says, storage, tree).map_err(|status| bad(status.message))?;
    }
    // Fields that came with later releases have their defaults, as when the reference reads them.
    row.strategy.default(&storage.version, &mut tree).map_err(|status| bad(status.message))?;
    Ok(tree)
}

fn version_of(tree: &Value) -> &str {
    let api_version = tree.get("apiVersion").and_then(Value::as_str).unwrap_or("");
    api_version.rsplit_once('/').map_or(api_version, |(_, version)| version)
}

fn custom(value: &[u8]) -> Result<Value, BadValue> {
    json::decode(None, value, false).map(|decoded| decoded.value).map_err(bad)
}

/// Returns the metadata that the store keeps beside an object. Selectable fields of custom resources are not part of
/// it; a selector looks them up in the object.
fn beside(row: Option<&Row>, tree: &Value) -> RecordMeta {
    let none = Map::new();
    let metadata = tree.get("metadata").and_then(Value::as_object).unwrap_or(&none);
    let labels = metadata.get("labels").and_then(Value::as_object);
    let labels = Labels::new(labels.into_iter().flatten().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))));
    let fields = row.map(|row| {
        let values: Vec<String> = row.fields.iter().map(|field| row.strategy.field_value(tree, field)).collect();
        Fields::new(&row.fields, values.iter().map(String::as_str))
    });
    RecordMeta {
        uid: Uid::new(metadata.get("uid").and_then(Value::as_str).unwrap_or("")),
        labels,
        fields: fields.unwrap_or_default(),
        deleting: metadata.get("deletionTimestamp").is_some_and(|v| !v.is_null()),
        // Etcd ends it, by its lease.
        expires_at_s: 0,
    }
}

/// Returns the value to store for an object.
///
/// # Errors
/// [`StoreError::BadBody`] if the body is not an object of the key's kind, which is a bug of the caller.
pub(crate) fn encode(media: MediaType, key: &Key, body: &Body) -> Result<Vec<u8>, StoreError> {
    if let Some(ty) = message_type(media, key) {
        // The revision in a body is empty, so its message has none.
        let text = std::str::from_utf8(body.json()).map_err(|_| StoreError::BadBody)?;
        return proto::encode_stored_document(ty, text).map_err(|error| rejected(key, &error));
    }
    encode_json(media, key, body.json())
}

/// The type of an object that is stored as protobuf; `None` for one that is stored as JSON.
fn message_type(media: MediaType, key: &Key) -> Option<TypeId> {
    let row = key::row(key.resource).filter(|_| !AS_JSON.contains(&key.resource.group()))?;
    row.ty.filter(|ty| media == MediaType::Protobuf && ty.has_proto())
}

fn rejected(key: &Key, error: &EncodeError) -> StoreError {
    tracing::error!(%key, %error, "object cannot be encoded as protobuf");
    StoreError::BadBody
}

/// Returns the value to store for an object in JSON, with or without a `resourceVersion`.
///
/// # Errors
/// As [`encode`].
pub(crate) fn encode_json(media: MediaType, key: &Key, object: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut tree: Value = serde_json::from_slice(object).map_err(|_| StoreError::BadBody)?;
    let metadata = tree.get_mut("metadata").and_then(Value::as_object_mut).ok_or(StoreError::BadBody)?;
    metadata.remove("resourceVersion");
    match message_type(media, key) {
        Some(ty) => proto::encode(ty, &tree).map_err(|error| rejected(key, &error)),
        None => {
            let mut bytes = kelson_codec::declared_json(&tree);
            bytes.push(b'\n');
            Ok(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use kelson_store::Resource;
    use serde_json::json;

    use super::*;

    fn key(resource: &str, namespace: &str, name: &str) -> Key {
        Key::new(Resource::parse(resource), namespace, name)
    }

    /// A Service as the reference stored it.
    const SERVICE: &[u8] =
        b"k8s\x00\n\x0d\n\x02v1\x12\x07Service\x12\xe3\x04\n\xee\x03\n\nkubernetes\x12\x00\x1a\x07default\"\x00*$9\
        475852c-cd20-4d4e-be7c-bf06b5143bae2\x008\x00B\x08\x08\xc1\xc8\x8c\xd8\x06\x10\x00Z\x16\n\x09component\
        \x12\x09apiserverZ\x16\n\x08provider\x12\nkubernetes\x8a\x01\xed\x02\n\x0ekube-apiserver\x12\x06Update\
        \x1a\x02v1\"\x08\x08\xc1\xc8\x8c\xd8\x06\x10\x002\x08FieldsV1:\xb8\x02\n\xb5\x02{\"f:metadata\":{\"f:lab\
        els\":{\".\":{},\"f:component\":{},\"f:provider\":{}}},\"f:spec\":{\"f:clusterIP\":{},\"f:internalTraffi\
        cPolicy\":{},\"f:ipFamilyPolicy\":{},\"f:ports\":{\".\":{},\"k:{\\\"port\\\":443,\\\"protocol\\\":\\\"TC\
        P\\\"}\":{\".\":{},\"f:name\":{},\"f:port\":{},\"f:protocol\":{},\"f:targetPort\":{}}},\"f:sessionAffini\
        ty\":{},\"f:type\":{}}}B\x00\x12l\n\x1b\n\x05https\x12\x03TCP\x18\xbb\x03\"\x08\x08\x00\x10\xcb\xce\x01\
        \x1a\x00(\x00\x1a\x0810.0.0.1\"\x09ClusterIP:\x04NoneB\x00R\x00Z\x00`\x00h\x00\x8a\x01\x0bSingleStack\
        \x92\x01\x0810.0.0.1\x9a\x01\x04IPv4\xb2\x01\x07Cluster\x1a\x02\n\x00\x1a\x00\"\x00";

    fn tree(decoded: &Decoded) -> Value {
        serde_json::from_slice(decoded.body.json()).unwrap()
    }

    #[test]
    fn a_value_of_the_reference_is_read_and_written_as_it_was() {
        let service = key("services", "default", "kubernetes");
        let decoded = decode(&service, SERVICE).unwrap();
        assert_eq!(tree(&decoded)["spec"]["clusterIPs"], json!(["10.0.0.1"]));
        assert_eq!(tree(&decoded)["metadata"]["resourceVersion"], "");
        assert_eq!(decoded.meta.uid.to_string(), "9475852c-cd20-4d4e-be7c-bf06b5143bae");
        assert_eq!(decoded.meta.labels.get("component"), Some("apiserver"));
        assert_eq!(decoded.meta.fields.get("spec.type"), Some("ClusterIP"));
        assert_eq!(encode(MediaType::Protobuf, &service, &decoded.body).unwrap(), SERVICE);
        let text = String::from_utf8(decoded.body.json().to_vec()).unwrap();
        let record = text.replace(r#""resourceVersion":"""#, r#""resourceVersion":"77""#);
        assert_ne!(record, text);
        assert_eq!(
            encode_json(MediaType::Protobuf, &service, record.as_bytes()).unwrap(),
            SERVICE,
            "as in a migration"
        );
        let json = encode(MediaType::Json, &service, &decoded.body).unwrap();
        assert_eq!(tree(&decode(&service, &json).unwrap()), tree(&decoded));
    }

    #[test]
    fn custom_resources_keep_every_field() {
        let widget = key("example.com/widgets", "default", "w1");
        let stored = br#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generation":1,"labels":{"a":"b"},"name":"w1","namespace":"default"},"spec":{"a":"x","n":1.5,"nul":null}}
"#;
        let decoded = decode(&widget, stored).unwrap();
        assert_eq!(decoded.meta.labels.get("a"), Some("b"));
        assert_eq!(tree(&decoded)["spec"], json!({"a": "x", "n": 1.5, "nul": null}));
        assert_eq!(encode(MediaType::Protobuf, &widget, &decoded.body).unwrap(), stored);
    }

    #[test]
    fn an_older_version_becomes_the_stored_one() {
        let hpa = key("autoscaling/horizontalpodautoscalers", "default", "h");
        let stored = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h", "namespace": "default"},
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
                "maxReplicas": 3, "targetCPUUtilizationPercentage": 40}});
        let decoded = decode(&hpa, stored.to_string().as_bytes()).unwrap();
        assert_eq!(tree(&decoded)["apiVersion"], "autoscaling/v2");
        assert_eq!(tree(&decoded)["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 40);
    }

    #[test]
    fn definitions_and_api_services_are_json() {
        let service = key("apiregistration.k8s.io/apiservices", "", "v1.");
        let stored = br#"{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"v1."},"spec":{"version":"v1","groupPriorityMinimum":18000,"versionPriority":1},"status":{}}"#;
        let decoded = decode(&service, stored).unwrap();
        assert_eq!(encode(MediaType::Protobuf, &service, &decoded.body).unwrap()[0], b'{');
    }

    #[test]
    fn other_values_than_objects_are_errors_and_never_panics() {
        let pod = key("pods", "default", "a");
        let cut = &SERVICE[..SERVICE.len() / 2];
        let other = br#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}"#;
        let named = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}"#;
        for value in [&b""[..], b"k8s\0", b"k8s\0\xff\xff\xff", b"[]", b"{}", b"null", cut, SERVICE, other, named] {
            assert!(decode(&pod, value).is_err(), "{}", String::from_utf8_lossy(value));
        }
        for value in [&b"\x00\x01"[..], b"[]", b"{\"metadata\":1}", b"{\"metadata\":{}}"] {
            assert!(decode(&key("example.com/widgets", "", "w"), value).is_err());
        }
    }
}
