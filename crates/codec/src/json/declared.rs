//! JSON with the fields in the order in which their types declare them, as Kubernetes responds and as people compare
//! documents. Objects of unknown structure have sorted fields, both in Kubernetes and here.
use kelson_schema::{FieldType, Kind, Schema, TypeId};
use serde_json::{Map, Value};

use super::write::{write_list, write_members};
use super::{write, write_text};
use crate::document::canonical_json;

/// Compact JSON with the fields in the order of the object's type, or sorted if its type is not built in.
pub fn declared_json(object: &Value) -> Vec<u8> {
    const GUESS_BYTES: usize = 4096;
    let Some(ty) = own_type(object) else { return canonical_json(object) };
    let mut out = Vec::with_capacity(GUESS_BYTES);
    write_declared(ty, object, &mut out);
    out
}

/// Appends the JSON of an object of a type.
pub fn write_declared(ty: TypeId, object: &Value, out: &mut Vec<u8>) {
    write_declared_with(ty, object, None, out);
}

/// Appends the JSON of an object. The JSON in `managed_fields` replaces a `null` in `metadata.managedFields`.
pub fn write_declared_with(ty: TypeId, object: &Value, managed_fields: Option<&str>, out: &mut Vec<u8>) {
    match object {
        Value::Object(fields) => Writer { members: Vec::new(), managed_fields }.object(ty, fields, out),
        other => write(other, out),
    }
}

/// The built-in type with the object's API version and kind.
fn own_type(object: &Value) -> Option<TypeId> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    Schema::builtin().by_api_version(text("apiVersion")?, text("kind")?)
}

/// A member to be written: its position in the declaration (the last position if it is not declared), key, value and type.
type Entry<'a> = (u8, &'a str, &'a Value, Option<FieldType>);

struct Writer<'a> {
    /// The members of the objects that are being written, the outermost first. One allocation serves all of them.
    members: Vec<Entry<'a>>,
    /// The JSON that replaces the first `managedFields` that is `null`.
    managed_fields: Option<&'a str>,
}

impl<'a> Writer<'a> {
    fn object(&mut self, ty: TypeId, fields: &'a Map<String, Value>, out: &mut Vec<u8>) {
        let start = self.members.len();
        // The members and the fields of the type are both sorted by name.
        let mut next = 0;
        self.members.extend(fields.iter().map(|(key, value)| match ty.position_from(next, key) {
            Ok(at) => {
                next = at + 1;
                (ty.rank(at), key.as_str(), value, Some(ty.json_field(at).ty()))
            }
            Err(at) => {
                next = at;
                (u8::MAX, key.as_str(), value, None)
            }
        }));
        self.members[start..].sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp(b.1)));
        out.push(b'{');
        for i in start..self.members.len() {
            let (_, key, value, ty) = self.members[i];
            if i > start {
                out.push(b',');
            }
            let Some(ty) = ty else {
                write_text(key, out);
                out.push(b':');
                write(value, out);
                continue;
            };
            // No field's name has a character that needs an escape.
            out.push(b'"');
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\":");
            match self.managed_fields {
                Some(text) if value.is_null() && key == "managedFields" => {
                    out.extend_from_slice(text.as_bytes());
                    self.managed_fields = None;
                }
                _ => self.value(ty, value, out),
            }
        }
        out.push(b'}');
        self.members.truncate(start);
    }

    fn value(&mut self, ty: FieldType, value: &'a Value, out: &mut Vec<u8>) {
        match (ty.kind(), value) {
            (
                Kind::Struct(ty) | Kind::SchemaOrBool(ty) | Kind::SchemaOrArray(ty) | Kind::SchemaOrStringArray(ty),
                Value::Object(fields),
            ) => self.object(ty, fields, out),
            (Kind::SchemaOrArray(ty), Value::Array(items)) => write_list(items, out, |item, out| match item {
                Value::Object(fields) => self.object(ty, fields, out),
                other => write(other, out),
            }),
            (Kind::List(element) | Kind::WrappedList(element), Value::Array(items)) => {
                write_list(items, out, |item, out| self.value(element, item, out));
            }
            (Kind::Map(of), Value::Object(map)) => {
                let members = map.iter().map(|(key, value)| (key.as_str(), value));
                write_members(members, out, |value, out| self.value(of, value, out));
            }
            (Kind::RawExtension, Value::Object(fields)) => match own_type(value) {
                Some(ty) => self.object(ty, fields, out),
                None => write(value, out),
            },
            _ => write(value, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_in_declaration_order() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "surplus": 1,
            "metadata": {"uid": "u", "name": "a", "namespace": "n", "labels": {"b": "1", "a": "2"}, "managedFields": [
                {"time": "t", "manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {}, "f:metadata": {}}}]},
            "spec": {"nodeName": "x", "containers": [{"image": "i", "name": "c", "env": [{"value": "v", "name": "n"}]}],
                "volumes": [], "initContainers": []},
        });
        let mut out = Vec::new();
        write_declared(own_type(&pod).expect("a pod"), &pod, &mut out);
        let text = String::from_utf8(out).expect("text");
        let want = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","labels":{"a":"2","b":"1"},"managedFields":[{"manager":"m","operation":"Update","time":"t","fieldsV1":{"f:metadata":{},"f:spec":{}}}]},"spec":{"volumes":[],"initContainers":[],"containers":[{"name":"c","image":"i","env":[{"name":"n","value":"v"}]}],"nodeName":"x"},"surplus":1}"#;
        assert_eq!(text, want);
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), pod);
    }

    #[test]
    fn json_schemas_are_written_in_each_of_their_forms() {
        let schema = json!({"type": "object", "description": "d", "items": [{"type": "string", "format": "f"}, true],
            "additionalProperties": {"type": "object", "description": "d"}, "additionalItems": false,
            "dependencies": {"a": ["b"], "c": {"type": "string", "description": "d"}}});
        let ty =
            Schema::builtin().by_name("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "JSONSchemaProps");
        let mut out = Vec::new();
        write_declared(ty.expect("known"), &schema, &mut out);
        let text = String::from_utf8(out).expect("text");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), schema);
        assert!(
            text.starts_with(r#"{"description":"d","type":"object","items":[{"type":"string","format":"f"},true]"#),
            "{text}"
        );
        assert!(text.contains(r#""additionalProperties":{"description":"d","type":"object"}"#), "{text}");
    }
}
