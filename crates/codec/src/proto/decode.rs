//! Decodes protobuf to the canonical tree. Unknown fields are skipped, and the nesting is bounded.
use super::envelope;
use super::wire::{Reader, Wire};
use crate::{
    Budget, DecodeError, TypeMeta, budget::tree_bytes, json::decode::canonical_float, scalar, scalar::Moment, zero,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use kelson_schema::{Field, FieldType, Kind, TypeId};
use serde_json::{Map, Value};

/// Decodes a document as the built-in type that its envelope names.
pub(super) fn known(data: &[u8], budget: &mut Budget) -> Result<(TypeMeta, Value), DecodeError> {
    let meta = envelope::peek(data)?;
    let ty = meta.type_id().ok_or_else(|| {
        DecodeError::Proto(format!("no kind \"{}\" is registered for version \"{}\"", meta.kind, meta.api_version))
    })?;
    decode_within(ty, data, budget)
}

/// Decodes a document as the given type and charges the budget for it.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_within(ty: TypeId, data: &[u8], budget: &mut Budget) -> Result<(TypeMeta, Value), DecodeError> {
    let envelope = envelope::read(data)?;
    let mut map = message(ty, envelope.raw, budget)?;
    if ty.is_kind() {
        for (key, text) in [("apiVersion", &envelope.meta.api_version), ("kind", &envelope.meta.kind)] {
            if !text.is_empty() {
                map.insert(key.into(), Value::from(text.as_str()));
            }
        }
    }
    Ok((envelope.meta, Value::Object(map)))
}

/// Decodes one message to the canonical object.
pub(super) fn message(ty: TypeId, data: &[u8], budget: &mut Budget) -> Result<Map<String, Value>, DecodeError> {
    let mut map = Map::new();
    fields(ty, data, &mut map, budget)?;
    budget.bytes(zero::finish(ty, &mut map))?;
    Ok(map)
}

fn fields(ty: TypeId, data: &[u8], map: &mut Map<String, Value>, budget: &mut Budget) -> Result<(), DecodeError> {
    budget.enter()?;
    let mut reader = Reader::new(data);
    while let Some((number, wire)) = reader.tag()? {
        let Some(field) = ty.field_by_number(number) else {
            reader.skip(wire)?;
            continue;
        };
        let kind = field.ty().kind();
        match kind {
            Kind::Struct(inner) if field.is_inline() => {
                expect(wire, Wire::Bytes, field)?;
                fields(inner, reader.bytes()?, map, budget)?;
            }
            Kind::List(elem) => element(&mut reader, wire, elem, field, map, budget)?,
            Kind::Map(elem) => {
                expect(wire, Wire::Bytes, field)?;
                let (key, v) = entry(reader.bytes()?, elem, field, budget)?;
                let entries = map.get(field.json()).and_then(Value::as_object).map_or(0, Map::len);
                budget.member(entries, &key)?;
                match map.get_mut(field.json()) {
                    Some(Value::Object(entries)) => {
                        entries.insert(key, v);
                    }
                    _ => {
                        map.insert(field.json().to_owned(), Value::Object(Map::from_iter([(key, v)])));
                    }
                }
            }
            _ => {
                budget.member(map.len(), field.json())?;
                let v = value(&mut reader, wire, field.ty(), field, budget)?;
                if v.is_null() && matches!(kind, Kind::RawExtension | Kind::FieldsV1 | Kind::Json) {
                    // An empty embedded document counts as absent, as null does in JSON.
                    map.remove(field.json());
                } else {
                    zero::store(map, field, v);
                }
            }
        }
    }
    budget.leave();
    Ok(())
}

fn expect(wire: Wire, wanted: Wire, field: Field) -> Result<(), DecodeError> {
    if wire == wanted {
        return Ok(());
    }
    Err(DecodeError::Proto(format!("proto: wrong wireType = {wire:?} for field {}", field.json())))
}

fn element(
    reader: &mut Reader<'_>,
    wire: Wire,
    elem: FieldType,
    field: Field,
    map: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), DecodeError> {
    if !map.contains_key(field.json()) {
        budget.member(map.len(), field.json())?;
        map.insert(field.json().to_owned(), Value::Array(Vec::new()));
    }
    let Some(Value::Array(items)) = map.get_mut(field.json()) else { return Ok(()) };
    let packed = wire == Wire::Bytes && matches!(elem.kind(), Kind::Bool | Kind::Int32 | Kind::Int64 | Kind::Double);
    if packed {
        let mut inner = Reader::new(reader.bytes()?);
        let wire = if elem.kind() == Kind::Double { Wire::Fixed64 } else { Wire::Varint };
        while !inner.at_end() {
            budget.element(items.len())?;
            items.push(value(&mut inner, wire, elem, field, budget)?);
        }
        return Ok(());
    }
    budget.element(items.len())?;
    items.push(value(reader, wire, elem, field, budget)?);
    Ok(())
}

fn entry(data: &[u8], elem: FieldType, field: Field, budget: &mut Budget) -> Result<(String, Value), DecodeError> {
    let (mut key, mut found) = ("", None);
    let mut reader = Reader::new(data);
    while let Some((number, wire)) = reader.tag()? {
        match number {
            1 => {
                expect(wire, Wire::Bytes, field)?;
                key = reader.text()?;
            }
            2 => found = Some(value(&mut reader, wire, elem, field, budget)?),
            _ => reader.skip(wire)?,
        }
    }
    let v = match found {
        Some(v) => v,
        None if elem.kind() == Kind::Bytes => Value::String(String::new()),
        None => {
            let v = zero::zero(elem);
            budget.bytes(tree_bytes(&v))?;
            v
        }
    };
    Ok((key.to_owned(), v))
}

fn value(
    reader: &mut Reader<'_>,
    wire: Wire,
    ty: FieldType,
    field: Field,
    budget: &mut Budget,
) -> Result<Value, DecodeError> {
    let wanted = match ty.kind() {
        Kind::Bool | Kind::Int32 | Kind::Int64 => Wire::Varint,
        Kind::Double => Wire::Fixed64,
        _ => Wire::Bytes,
    };
    expect(wire, wanted, field)?;
    Ok(match ty.kind() {
        Kind::Bool => Value::Bool(reader.varint()? != 0),
        Kind::Int32 => Value::from(reader.varint()? as i32),
        Kind::Int64 => Value::from(reader.varint()? as i64),
        Kind::Double => canonical_float(f64::from_bits(reader.fixed64()?)).map_or(Value::Null, Value::Number),
        Kind::String => {
            let text = reader.text()?;
            budget.text(text.len())?;
            Value::String(text.to_owned())
        }
        Kind::Bytes => {
            let bytes = reader.bytes()?;
            budget.text(bytes.len() / 3 * 4)?;
            Value::String(STANDARD.encode(bytes))
        }
        Kind::Struct(id) => Value::Object(message(id, reader.bytes()?, budget)?),
        Kind::WrappedList(elem) => {
            let mut inner = Reader::new(reader.bytes()?);
            let mut items = Vec::new();
            while let Some((number, wire)) = inner.tag()? {
                match number {
                    1 => {
                        budget.element(items.len())?;
                        items.push(value(&mut inner, wire, elem, field, budget)?);
                    }
                    _ => inner.skip(wire)?,
                }
            }
            Value::Array(items)
        }
        kind => special(kind, reader.bytes()?, budget)?,
    })
}

/// Decodes messages whose JSON is not an object.
fn special(kind: Kind, data: &[u8], budget: &mut Budget) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(data);
    let (mut ints, mut texts): ([Option<i64>; 4], [Option<&[u8]>; 4]) = ([None; 4], [None; 4]);
    let mut schemas = Vec::new();
    while let Some((number, wire)) = reader.tag()? {
        match (number as usize, wire) {
            (n @ 1..4, Wire::Varint) => ints[n] = Some(reader.varint()? as i64),
            (n @ 1..4, Wire::Bytes) => {
                let bytes = reader.bytes()?;
                texts[n] = Some(bytes);
                if n == 2 {
                    schemas.push(bytes);
                }
            }
            _ => reader.skip(wire)?,
        }
    }
    let utf8 = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    Ok(match kind {
        Kind::Time | Kind::MicroTime => {
            let micro = kind == Kind::MicroTime;
            let nanos = u32::try_from(ints[2].unwrap_or(0)).unwrap_or(0).min(999_999_999);
            let moment = Moment { seconds: ints[1].unwrap_or(0), nanos: if micro { nanos / 1000 * 1000 } else { 0 } };
            if data.is_empty() || moment.is_zero() {
                return Ok(Value::Null);
            }
            if !(-62_135_596_800..=253_402_300_799).contains(&moment.seconds) {
                return Err(DecodeError::Proto("Time.MarshalJSON: year outside of range [0,9999]".into()));
            }
            Value::String(scalar::format_time(moment, micro))
        }
        Kind::Duration => Value::String(scalar::format_duration(ints[1].unwrap_or(0))),
        Kind::Quantity => match texts[1] {
            Some(text) => Value::String(scalar::quantity(&utf8(Some(text)))?),
            None => Value::from("0"),
        },
        Kind::IntOrString if ints[1].unwrap_or(0) == 1 => Value::String(utf8(texts[3])),
        Kind::IntOrString => Value::from(ints[2].unwrap_or(0) as i32),
        Kind::SchemaOrBool(id) => match texts[2] {
            Some(schema) => Value::Object(message(id, schema, budget)?),
            None => Value::Bool(ints[1].unwrap_or(0) != 0),
        },
        Kind::SchemaOrArray(id) if !schemas.is_empty() => {
            let mut items = Vec::with_capacity(schemas.len());
            for schema in schemas {
                budget.element(items.len())?;
                items.push(Value::Object(message(id, schema, budget)?));
            }
            Value::Array(items)
        }
        Kind::SchemaOrStringArray(_) if !schemas.is_empty() => {
            let mut items = Vec::with_capacity(schemas.len());
            for schema in schemas {
                budget.element(items.len())?;
                items.push(Value::String(utf8(Some(schema))));
            }
            Value::Array(items)
        }
        Kind::SchemaOrArray(id) | Kind::SchemaOrStringArray(id) => match texts[1] {
            Some(schema) => Value::Object(message(id, schema, budget)?),
            None => Value::Null,
        },
        _ => embedded(kind, texts[1].unwrap_or_default(), budget)?,
    })
}

/// Decodes the content of RawExtension, FieldsV1 and JSON: JSON, or (in RawExtension only) a protobuf document. It may
/// contain such documents too, so its depth continues from the current one.
fn embedded(kind: Kind, raw: &[u8], budget: &mut Budget) -> Result<Value, DecodeError> {
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    if kind == Kind::RawExtension && envelope::is_protobuf(raw) {
        return Ok(known(raw, budget)?.1);
    }
    Ok(crate::json::decode_within(None, raw, false, budget)?.value)
}
