//! Documents: JSON, YAML and protobuf of built-in kinds, definitions of custom kinds, CEL expressions.
use kelson_cel::Env;
use kelson_codec::{DOCUMENT_BYTES_MAX, Encoding, decode, encode};
use kelson_schema::{Schema, TypeId};
use kelson_structural::{Structural, definition};
use serde_json::Value;

/// Kinds with most forms of fields: maps, lists by key, quantities, times, raw documents.
const KINDS: [(&str, &str, &str); 6] = [
    ("", "v1", "Pod"),
    ("apps", "v1", "Deployment"),
    ("", "v1", "Secret"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"),
    ("", "v1", "Event"),
];

pub(crate) fn kinds() -> impl Iterator<Item = TypeId> {
    KINDS.iter().filter_map(|(group, version, kind)| Schema::builtin().by_gvk(group, version, kind))
}

/// Checks that an accepted document is the same after encoding and decoding.
fn round(ty: Option<TypeId>, value: &Value) {
    for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf] {
        if encoding == Encoding::Protobuf && ty.is_none_or(|ty| !ty.has_proto()) {
            continue;
        }
        let Ok(bytes) = encode(encoding, ty, value) else { continue };
        if bytes.len() > DOCUMENT_BYTES_MAX {
            // Another encoding of what just fits may not.
            continue;
        }
        let back = decode(encoding, ty, &bytes, false);
        let again = back.unwrap_or_else(|e| panic!("what was encoded as {encoding:?} does not decode: {e}"));
        let twice = encode(encoding, ty, &again.value).unwrap_or_else(|e| panic!("{encoding:?}: {e}"));
        assert_eq!(bytes, twice, "{encoding:?} is not stable");
    }
}

fn any(encoding: Encoding, data: &[u8]) {
    for ty in kinds().map(Some).chain([None]) {
        for strict in [false, true] {
            if let Ok(decoded) = decode(encoding, ty, data, strict)
                && strict
            {
                round(ty, &decoded.value);
            }
        }
    }
}

pub(crate) fn json(data: &[u8]) {
    any(Encoding::Json, data);
}

pub(crate) fn yaml(data: &[u8]) {
    any(Encoding::Yaml, data);
}

pub(crate) fn protobuf(data: &[u8]) {
    any(Encoding::Protobuf, data);
}

/// Validates a definition of a kind. The schemas of valid definitions can be built.
pub(crate) fn definition(data: &[u8]) {
    let kind = Schema::builtin().by_gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let Ok(decoded) = decode(Encoding::Json, kind, data, false) else { return };
    let mut value = decoded.value;
    if !value.is_object() {
        return;
    }
    definition::default(&mut value);
    let faults = definition::validate_create(&value);
    let versions = value["spec"]["versions"].as_array().cloned().unwrap_or_default();
    for version in versions {
        let built = Structural::parse(&version["schema"]["openAPIV3Schema"]);
        assert!(
            built.is_ok() || !faults.is_empty() || version["schema"].is_null(),
            "a schema that cannot be built passed"
        );
    }
}

pub(crate) fn cel(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let env = Env::builder().typed("self", kelson_cel::Type::Dyn).typed("oldSelf", kelson_cel::Type::Dyn).build();
    let _verdict = env.compile(source);
}
