//! The names of types and fields in Go, for findings.
use kelson_schema::{FieldType, Kind, TypeId};

/// The bytes of paths after which no more findings are noted, since a key of a megabyte is part of the path of each field below it.
pub(super) const NOTED_BYTES_MAX: usize = 256 * 1024;

pub(super) fn token_name(byte: Option<u8>) -> &'static str {
    match byte {
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "bool",
        _ => "number",
    }
}

pub(super) fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

pub(super) fn struct_name(id: TypeId) -> String {
    format!("{}.{}", id.package().rsplit('/').next().unwrap_or(""), id.name())
}

/// The type as Go prints it. Named string types print as `string`, because the schema table does not keep their names.
pub(super) fn go_type(ty: FieldType) -> String {
    match ty.kind() {
        Kind::Bool => "bool".into(),
        Kind::Int32 => "int32".into(),
        Kind::Int64 => "int64".into(),
        Kind::Double => "float64".into(),
        Kind::String => "string".into(),
        Kind::Bytes => "[]uint8".into(),
        Kind::Struct(id) => struct_name(id),
        Kind::List(elem) | Kind::WrappedList(elem) => format!("[]{}", go_type(elem)),
        Kind::Map(value) => format!("map[string]{}", go_type(value)),
        Kind::Quantity => "resource.Quantity".into(),
        other => format!("v1.{other:?}"),
    }
}
