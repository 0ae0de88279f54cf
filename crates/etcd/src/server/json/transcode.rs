//! Converts messages between protobuf's binary and JSON forms.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use serde_json::{Map, Value};

use super::fields::{Field, Kind, Message};

const ANY_PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const PLAIN: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, ANY_PADDING);
const OF_URLS: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, ANY_PADDING);

/// Encodes a message from JSON. Unknown fields are ignored, as etcd's gateway does.
///
/// # Errors
/// The invalid field and what is wrong with it.
pub(super) fn to_bytes(message: &Message, value: &Value) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    write(message, value, &mut bytes)?;
    Ok(bytes)
}

fn write(message: &Message, value: &Value, into: &mut Vec<u8>) -> Result<(), String> {
    let Value::Object(members) = value else { return Err(format!("unexpected token {value}, expected an object")) };
    for (name, value) in members {
        let Some(field) = message.0.iter().find(|field| field.name == name || camel(field.name) == *name) else {
            continue;
        };
        let wrong = |why: String| format!("invalid value for field {}: {why}", field.name);
        match (value, field.repeated) {
            (Value::Null, _) => {}
            (Value::Array(items), true) => {
                items.iter().try_for_each(|item| write_field(field, item, into)).map_err(wrong)?;
            }
            (_, true) => return Err(wrong("expected an array".to_owned())),
            (_, false) => write_field(field, value, into).map_err(wrong)?,
        }
    }
    Ok(())
}

/// Converts a name to camel case: `range_end` to `rangeEnd`.
fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        all.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        all.push_str(letters.as_str());
    }
    all
}

fn write_field(field: &Field, value: &Value, into: &mut Vec<u8>) -> Result<(), String> {
    let bytes = match field.kind {
        Kind::Bytes => from_base64(text(value)?)?,
        Kind::Text => text(value)?.as_bytes().to_vec(),
        Kind::Message(message) => to_bytes(message, value)?,
        Kind::Bool | Kind::Int | Kind::Uint | Kind::Uint32 | Kind::Enum(_) => {
            let number = number(field.kind, value)?;
            encode_key(field.number, WireType::Varint, into);
            encode_varint(number, into);
            return Ok(());
        }
    };
    encode_key(field.number, WireType::LengthDelimited, into);
    encode_varint(bytes.len() as u64, into);
    into.extend_from_slice(&bytes);
    Ok(())
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{value} is not a string"))
}

fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    let engine = if text.contains(['-', '_']) { &OF_URLS } else { &PLAIN };
    engine.decode(text).map_err(|error| format!("illegal base64 data: {error}"))
}

fn number(kind: Kind, value: &Value) -> Result<u64, String> {
    let wrong = || format!("{value} is not a value of this type");
    match kind {
        Kind::Bool => value.as_bool().map(u64::from).ok_or_else(wrong),
        Kind::Enum(names) => match value.as_str() {
            Some(name) => names.iter().position(|known| *known == name).map(|at| at as u64).ok_or_else(wrong),
            None => value.as_u64().ok_or_else(wrong),
        },
        // Numbers may be strings, and strings numbers.
        Kind::Int => {
            let number = value.as_str().map_or_else(|| value.as_i64(), |text| text.parse::<i64>().ok());
            number.map(i64::cast_unsigned).ok_or_else(wrong)
        }
        _ => value.as_str().map_or_else(|| value.as_u64(), |text| text.parse().ok()).ok_or_else(wrong),
    }
}

/// Converts a message to JSON. Zero values are left out. `None` if the bytes are not a message, which this server never
/// produces.
pub(super) fn to_json(message: &Message, mut bytes: &[u8]) -> Option<Value> {
    let mut members = Map::new();
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).ok()?;
        let field = message.0.iter().find(|field| field.number == number);
        let value = match wire {
            WireType::Varint => {
                let number = decode_varint(&mut bytes).ok()?;
                field.and_then(|field| of_number(field.kind, number))
            }
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                let (content, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                match field {
                    Some(field) => Some(of_content(field.kind, content)?),
                    None => None,
                }
            }
            _ => return None,
        };
        let Some((field, value)) = field.zip(value) else { continue };
        match (field.repeated, members.get_mut(field.name)) {
            (true, Some(Value::Array(items))) => items.push(value),
            (true, _) => drop(members.insert(field.name.to_owned(), Value::Array(vec![value]))),
            (false, _) => drop(members.insert(field.name.to_owned(), value)),
        }
    }
    Some(Value::Object(members))
}

fn of_number(kind: Kind, number: u64) -> Option<Value> {
    Some(match kind {
        Kind::Bool => Value::Bool(number != 0),
        Kind::Int => Value::String(number.cast_signed().to_string()),
        Kind::Uint => Value::String(number.to_string()),
        Kind::Uint32 => number.into(),
        Kind::Enum(names) => match usize::try_from(number).ok().and_then(|at| names.get(at)) {
            Some(name) => Value::String((*name).to_owned()),
            None => number.into(),
        },
        Kind::Bytes | Kind::Text | Kind::Message(_) => return None,
    })
}

fn of_content(kind: Kind, content: &[u8]) -> Option<Value> {
    match kind {
        Kind::Bytes => Some(Value::String(STANDARD.encode(content))),
        Kind::Text => Some(Value::String(std::str::from_utf8(content).ok()?.to_owned())),
        Kind::Message(message) => to_json(message, content),
        Kind::Bool | Kind::Int | Kind::Uint | Kind::Uint32 | Kind::Enum(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use serde_json::json;

    use super::super::fields;
    use super::*;
    use crate::proto::{PutRequest, RangeRequest, TxnRequest, WatchRequest, compare, request_op, watch_request};

    fn decoded<Q: prost::Message + Default>(message: &Message, value: Value) -> Q {
        Q::decode(&to_bytes(message, &value).unwrap()[..]).unwrap()
    }

    #[test]
    fn requests_are_read_in_all_spellings() {
        let want = RangeRequest {
            key: "foo".into(),
            range_end: "fop".into(),
            limit: 7,
            revision: -1,
            sort_order: 2,
            keys_only: true,
            ..Default::default()
        };
        for value in [
            json!({"key": "Zm9v", "range_end": "Zm9w", "limit": "7", "revision": -1, "sort_order": "DESCEND", "keys_only": true}),
            json!({"key": "Zm9v", "rangeEnd": "Zm9w", "limit": 7, "revision": "-1", "sortOrder": 2, "keysOnly": true,
                "sort_target": null, "unknown": {"a": 1}}),
        ] {
            assert_eq!(decoded::<RangeRequest>(&fields::RANGE, value), want);
        }
        // Base64 with the URL alphabet, and without padding.
        for key in ["//8+", "__8-", "//8-"] {
            let value = json!({"key": key});
            let read = to_bytes(&fields::RANGE, &value);
            assert_eq!(read.is_ok(), key != "//8-", "{key}");
        }
        let put: PutRequest = decoded(&fields::PUT, json!({"key": "YQ", "value": "YQ=="}));
        assert_eq!((&put.key[..], &put.value[..]), (&b"a"[..], &b"a"[..]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (value, said) in [
            (json!({"key": 1}), "field key"),
            (json!({"key": "!"}), "base64"),
            (json!({"limit": "x"}), "field limit"),
            (json!({"limit": 1.5}), "field limit"),
            (json!({"keys_only": "true"}), "field keys_only"),
            (json!({"sort_order": "UP"}), "field sort_order"),
            (json!([]), "object"),
            (json!("x"), "object"),
        ] {
            let error = to_bytes(&fields::RANGE, &value).unwrap_err();
            assert!(error.contains(said), "{value}: {error}");
        }
        let error = to_bytes(&fields::TXN, &json!({"compare": {}})).unwrap_err();
        assert!(error.contains("array"), "{error}");
    }

    #[test]
    fn transactions_go_both_ways() {
        let txn = json!({
            "compare": [{"target": "CREATE", "key": "Zm9v", "create_revision": "0"},
                {"result": "NOT_EQUAL", "target": "VALUE", "key": "Zm9v", "value": "YmFy", "range_end": "AA=="}],
            "success": [{"request_put": {"key": "Zm9v", "value": "YmFy"}}],
            "failure": [{"request_txn": {"success": [{"request_delete_range": {"key": "Zm9v"}}]}}],
        });
        let read: TxnRequest = decoded(&fields::TXN, txn.clone());
        assert_eq!(read.compare[0].target_union, Some(compare::TargetUnion::CreateRevision(0)));
        assert_eq!(read.compare[1].result, compare::CompareResult::NotEqual as i32);
        assert!(matches!(&read.success[0].request, Some(request_op::Request::RequestPut(put)) if put.value == "bar"));
        assert_eq!(to_json(&fields::TXN, &read.encode_to_vec()).unwrap(), txn);
    }

    #[test]
    fn watches_and_their_events() {
        let watch: WatchRequest =
            decoded(&fields::WATCH, json!({"create_request": {"key": "YQ==", "filters": ["NOPUT", 1]}}));
        let Some(watch_request::RequestUnion::CreateRequest(create)) = watch.request_union else { panic!("no watch") };
        assert_eq!(create.filters, [0, 1]);
        let event = crate::proto::Event { r#type: 1, kv: Some(Default::default()), prev_kv: None };
        let answer = crate::proto::WatchResponse { watch_id: -1, events: vec![event], ..Default::default() };
        let want = json!({"watch_id": "-1", "events": [{"type": "DELETE", "kv": {}}]});
        assert_eq!(to_json(&fields::WATCHED, &answer.encode_to_vec()).unwrap(), want);
        assert_eq!(to_json(&fields::WATCHED, b"\xff"), None);
        assert_eq!(to_json(&fields::WATCHED, b"\x0a\x05x"), None, "cut");
    }
}
