//! Encodes an object of which only the metadata is known, from the metadata's stored text.
use kelson_schema::{Field, TypeId};

use super::encode;
use super::wire::RevBuf;
use crate::EncodeError;
use crate::json::tape::{Cursor, Tape};

/// Bytes of the metadata of a usual object.
const USUAL_BYTES: usize = 2048;

/// Encodes `PartialObjectMetadata` messages one after the other. Its memory is used again for each.
pub struct MetadataEncoder {
    field: Field,
    buf: RevBuf,
}

impl MetadataEncoder {
    /// An encoder of a type whose one field with a number is `metadata`.
    ///
    /// # Errors
    /// The type has another field in protobuf, or none.
    pub fn new(ty: TypeId) -> Result<Self, EncodeError> {
        let mut fields = ty.fields().filter(|field| field.number() > 0);
        match (fields.next(), fields.next()) {
            (Some(field), None) if ty.has_proto() && field.json() == "metadata" => {
                Ok(Self { field, buf: RevBuf::with_capacity(USUAL_BYTES) })
            }
            _ => Err(EncodeError::NoProtobuf),
        }
    }

    /// Encodes the message of an object with this metadata, which is JSON with sorted keys and no space; `None` for an object without metadata.
    /// The result is that of [`encode_message`](super::encode_message) with the object's tree.
    ///
    /// # Errors
    /// The text is not JSON of the metadata's type.
    pub fn encode(&mut self, metadata: Option<&str>) -> Result<(), EncodeError> {
        self.buf.clear();
        let tape = metadata.map(Tape::parse).transpose().map_err(EncodeError::Stored)?;
        let root: Option<Cursor<'_>> = tape.as_ref().map(Tape::root);
        encode::field(self.field, root, &mut self.buf)
    }

    /// The message that was encoded last.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        self.buf.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use kelson_schema::{Schema, resource, sample};
    use serde_json::{Value, json};

    use super::*;
    use crate::{canonical_json, proto};

    fn partial() -> TypeId {
        Schema::builtin().by_gvk("meta.k8s.io", "v1", "PartialObjectMetadata").expect("the type")
    }

    /// Compares the messages of a text and of its tree; whether there is one.
    fn agrees(encoder: &mut MetadataEncoder, text: &str) -> bool {
        let made = encoder.encode(Some(text)).map(|()| encoder.message().to_vec());
        match serde_json::from_str::<Value>(text) {
            Ok(tree) => {
                let expected = proto::encode_message(partial(), &json!({"metadata": tree}));
                assert_eq!(made.as_ref().ok(), expected.as_ref().ok(), "{text}");
                made.is_ok()
            }
            Err(_) => {
                assert!(matches!(made, Err(EncodeError::Stored(_))), "{text}");
                false
            }
        }
    }

    #[test]
    fn the_message_of_a_text_is_that_of_its_tree() {
        let mut encoder = MetadataEncoder::new(partial()).expect("an encoder");
        let mut texts: Vec<String> =
            ["{}", "null", r#"{"labels":null,"name":null}"#, "1", "[]"].map(str::to_owned).into();
        for r in resource::resources() {
            let ty = Schema::builtin().by_gvk(r.group, r.version, r.kind).expect("a served kind has a type");
            let metadata = sample::object(ty).remove("metadata").unwrap_or_default();
            texts.push(String::from_utf8(canonical_json(&metadata)).expect("UTF-8"));
        }
        texts.sort();
        texts.dedup();
        let encoded = texts.iter().filter(|text| agrees(&mut encoder, text)).count();
        assert!(encoded >= 4, "{encoded} of {}", texts.len());
        let longest = texts.iter().max_by_key(|text| text.len()).expect("a text").clone();
        // Each damage to the text is an error or another message, and the same as for the tree.
        let mut changed = 0;
        for at in (0..longest.len()).filter(|at| longest.is_char_boundary(at + 1) && longest.is_char_boundary(*at)) {
            for instead in ["", "\"", "{", "}", ",", "0", "\\n", "null", "é"] {
                changed += usize::from(agrees(&mut encoder, &[&longest[..at], instead, &longest[at + 1..]].concat()));
            }
        }
        assert!(changed > 100, "{changed}");
        encoder.encode(None).expect("encodes");
        assert_eq!(Ok(encoder.message().to_vec()), proto::encode_message(partial(), &json!({})));
    }

    #[test]
    fn managed_fields_are_copied_and_not_listed() {
        // In the order of stored objects, which a tree has too.
        let fields = format!("{{{}}}", (0..500).map(|n| format!(r#""f:n{n:03}":{{}}"#)).collect::<Vec<_>>().join(","));
        let text = format!(r#"{{"managedFields":[{{"apiVersion":"v1","fieldsV1":{fields}}}],"name":"a"}}"#);
        assert_eq!(
            Tape::parse(&text).expect("JSON").len(),
            6,
            "the object, the list, the entry with two members, the name"
        );
        assert!(agrees(&mut MetadataEncoder::new(partial()).expect("an encoder"), &text));
    }

    #[test]
    fn every_field_that_is_copied_is_encoded_as_its_text() {
        for r in resource::resources() {
            let ty = Schema::builtin().by_gvk(r.group, r.version, r.kind).expect("a served kind has a type");
            assert_fields(ty, &mut Vec::new());
        }
    }

    fn assert_fields(ty: TypeId, seen: &mut Vec<TypeId>) {
        if seen.contains(&ty) {
            return;
        }
        seen.push(ty);
        for field in ty.fields() {
            let mut inner = field.ty().kind();
            if field.json() == "fieldsV1" {
                assert_eq!(inner, kelson_schema::Kind::FieldsV1, "{}", field.json());
            }
            while let kelson_schema::Kind::List(elem) | kelson_schema::Kind::Map(elem) = inner {
                inner = elem.kind();
            }
            if let kelson_schema::Kind::Struct(id) = inner {
                assert_fields(id, seen);
            }
        }
    }

    #[test]
    fn a_type_with_more_than_metadata_has_no_encoder() {
        let pod = Schema::builtin().by_gvk("", "v1", "Pod").expect("the type");
        assert!(matches!(MetadataEncoder::new(pod), Err(EncodeError::NoProtobuf)));
    }
}
