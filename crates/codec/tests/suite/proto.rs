//! Protobuf beyond single documents: lists from encoded items, watch frames, hostile input.
use kelson_codec::EncodeError;
use kelson_codec::proto::{self, ListEncoder};
use kelson_schema::Schema;
use serde_json::json;

#[test]
fn a_list_of_encoded_items_equals_the_encoded_list() {
    let schema = Schema::builtin();
    let (pod, list) = (schema.by_gvk("", "v1", "Pod").expect("pod"), schema.by_gvk("", "v1", "PodList").expect("list"));
    let items: Vec<_> = (0..3)
        .map(|i| {
            let text =
                json!({"metadata":{"name":"p".repeat(100 * i + 1)},"spec":{"containers":[{"name":"c"}]}}).to_string();
            kelson_codec::json::decode(Some(pod), text.as_bytes(), false).expect("decodes").value
        })
        .collect();
    let metadata = json!({"resourceVersion":"17"});
    let whole = json!({"apiVersion":"v1","kind":"PodList","metadata":metadata,"items":items});
    let expected = proto::encode(list, &whole).expect("encodes");
    let encoded: Vec<Vec<u8>> = items.iter().map(|i| proto::encode_message(pod, i).expect("encodes")).collect();
    let encoder = ListEncoder::new(list, "v1", "PodList", &metadata, encoded.iter().map(Vec::len)).expect("list");
    let mut bytes = encoder.header().to_vec();
    for item in &encoded {
        encoder.put_item_prefix(item.len(), &mut bytes);
        bytes.extend(item);
    }
    bytes.extend(ListEncoder::TRAILER);
    assert_eq!(bytes, expected);
    assert_eq!(proto::decode(&bytes).expect("decodes").1, whole);
}

#[test]
fn watch_frames_carry_whole_documents() {
    let schema = Schema::builtin();
    let config_map = schema.by_gvk("", "v1", "ConfigMap").expect("kind");
    let object = json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"b"}});
    let document = proto::encode(config_map, &object).expect("encodes");
    let mut stream = proto::watch_frame("ADDED", &document);
    stream.extend(proto::watch_frame("DELETED", &document));
    assert_eq!(proto::frame(&stream[..10]), Ok(None));
    let (body, used) = proto::frame(&stream).expect("fits").expect("whole");
    let event_type = schema.by_gvk("", "v1", "WatchEvent").expect("event");
    assert_eq!(proto::decode_message(event_type, body).expect("decodes"), json!({"type":"ADDED","object":object}));
    let (body, _) = proto::frame(&stream[used..]).expect("fits").expect("whole");
    assert_eq!(proto::decode_message(event_type, body).expect("decodes")["type"], "DELETED");
    assert!(proto::frame(&[0xff, 0xff, 0xff, 0xff]).is_err());
}

#[test]
fn a_stored_text_gives_the_message_of_its_tree() {
    let schema = Schema::builtin();
    let set = schema.by_gvk("apps", "v1", "StatefulSet").expect("kind");
    // Escapes in keys and values, null, numbers of each kind, an integer or string of both kinds, empty and nested containers.
    let object = json!({"apiVersion":"apps/v1","kind":"StatefulSet",
        "metadata":{"name":"a\"\\\n\u{1}é😀","annotations":{"k\"\u{7f}":"\t","":""},"creationTimestamp":null,"generation":i64::MAX,
            "managedFields":[{"manager":"m","operation":"Apply","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1",
                "fieldsV1":{"f:spec":{"k:{\"a\":1}":{}, ".":{}}}}]},
        "spec":{"replicas":-1,"selector":null,"serviceName":"s","updateStrategy":{"rollingUpdate":{"maxUnavailable":"50%"}},
            "template":{"metadata":{},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"100m","memory":1}},
                "livenessProbe":{"httpGet":{"port":80}}},null]}}}});
    let stored = kelson_codec::canonical_json(&object);
    let stored = std::str::from_utf8(&stored).expect("UTF-8");
    let message = proto::encode_stored(set, stored).expect("encodes");
    assert_eq!(message, proto::encode_message(set, &object).expect("encodes"));
    // Each cut of the text is an error, never a panic or a shorter message.
    for end in (0..stored.len()).filter(|end| stored.is_char_boundary(*end)) {
        assert!(matches!(proto::encode_stored(set, &stored[..end]), Err(EncodeError::Stored(_))), "{end}");
    }
    let wrong = stored.replace("\"replicas\":-1", "\"replicas\":1.5");
    assert!(matches!(proto::encode_stored(set, &wrong), Err(EncodeError::Mismatch { .. })));
}

#[test]
fn hostile_messages_are_refused_or_skipped() {
    let pod = Schema::builtin().by_gvk("", "v1", "Pod").expect("pod");
    assert!(proto::decode(b"{}").is_err());
    let decode = |message: &[u8]| proto::decode_message(pod, message);
    assert_eq!(decode(&[0x0a, 0x7f]).expect_err("short").to_string(), "unexpected EOF");
    assert_eq!(decode(&[0xff; 11]).expect_err("long").to_string(), "proto: integer overflow");
    assert!(decode(&[0x08, 0x01]).expect_err("wire type").to_string().starts_with("proto: wrong wireType"));
    // An unknown field, and an unknown group, are skipped.
    let empty = decode(&[]).expect("empty");
    assert_eq!(decode(&[0xf2, 0x07, 0x02, 1, 2]).expect("skips"), empty);
    assert_eq!(decode(&[0xf3, 0x07, 0x08, 0x01, 0xf4, 0x07]).expect("skips"), empty);
    assert!(decode(&[0xf3, 0x07].repeat(100)).is_err());
    // Every truncation of a valid document gives an error or a value, never a panic.
    let text = json!({"metadata":{"name":"p","labels":{"a":"b"}},"spec":{"containers":[{"name":"c","ports":[{"containerPort":1}]}]}}).to_string();
    let value = kelson_codec::json::decode(Some(pod), text.as_bytes(), false).expect("decodes").value;
    let bytes = proto::encode_message(pod, &value).expect("encodes");
    let good = (0..bytes.len()).filter(|n| decode(&bytes[..*n]).is_ok()).count();
    assert!(good < bytes.len() / 4, "{good}");
}

#[test]
fn nesting_is_bounded() {
    let crd = Schema::builtin()
        .by_name("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "JSONSchemaProps")
        .expect("type");
    let not = crd.field_by_json("not").expect("field").number();
    let mut message = Vec::new();
    for _ in 0..200 {
        let mut outer = Vec::new();
        for mut n in [u64::from(not << 3 | 2), message.len() as u64] {
            while n >= 0x80 {
                outer.push(n as u8 | 0x80);
                n >>= 7;
            }
            outer.push(n as u8);
        }
        outer.extend(&message);
        message = outer;
    }
    assert_eq!(proto::decode_message(crd, &message).expect_err("deep"), kelson_codec::DecodeError::TooDeep);
}

#[test]
fn a_zero_time_that_may_be_absent_is_absent() {
    let pod = Schema::builtin().by_gvk("", "v1", "Pod").expect("pod");
    let zero = json!({"metadata": {"name": "p", "deletionTimestamp": "0001-01-01T00:00:00Z"}}).to_string();
    let from_json = kelson_codec::json::decode(Some(pod), zero.as_bytes(), false).expect("decodes").value;
    assert_eq!(from_json["metadata"], json!({"name": "p"}));
    // Field 9 of the metadata is a time of zero bytes.
    let message = b"\x0a\x05\x0a\x01p\x4a\x00";
    let mut document = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12".to_vec();
    document.push(u8::try_from(message.len()).expect("short"));
    document.extend(message);
    assert_eq!(proto::decode(&document).expect("decodes").1["metadata"], json!({"name": "p"}));
}
