//! Small documents that could use much memory. Each must be rejected, or decoded with little memory and on the small
//! stack of the server's threads.
//!
//! A separate process: its memory is limited to [`MEMORY_BYTES_MAX`], and it ends if it needs more, as the kernel would
//! end a server.
use std::sync::Once;

use kelson_codec::{DecodeError, Encoding, Exceeded, NESTING_DEPTH_MAX, decode, proto, yaml};
use kelson_schema::{Schema, TypeId};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The memory limit of this process with all its threads, in bytes.
const MEMORY_BYTES_MAX: u64 = 320 * 1024 * 1024;

fn limit_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = Rlimit { current: Some(MEMORY_BYTES_MAX), maximum: Some(MEMORY_BYTES_MAX) };
        setrlimit(Resource::Data, limit).expect("a process may lower its limit");
    });
}

fn ty(group: &str, version: &str, kind: &str) -> TypeId {
    Schema::builtin().by_gvk(group, version, kind).expect("built in")
}

#[track_caller]
fn refused(encoding: Encoding, ty: Option<TypeId>, body: &[u8]) -> DecodeError {
    limit_memory();
    decode(encoding, ty, body, true).expect_err("must be refused")
}

#[test]
fn aliases_are_charged_by_the_byte() {
    let mut text = format!("a: &a {}\nb:\n", "x".repeat(1_000_000));
    (0..1000).for_each(|_| text.push_str("- *a\n"));
    let error = refused(Encoding::Yaml, None, text.as_bytes());
    assert_eq!(error.to_string(), "yaml: document contains excessive aliasing");
}

#[test]
fn anchors_within_each_other_are_not_copied() {
    limit_memory();
    let row = "x,".repeat(300);
    let mut text = String::new();
    for i in 0..NESTING_DEPTH_MAX - 1 {
        text.push_str(&format!("&a{i} [{row}"));
    }
    text.push_str(&"]".repeat(NESTING_DEPTH_MAX - 1));
    let (value, _) = yaml::to_value(text.as_bytes()).expect("it is a plain document");
    assert_eq!(value.as_array().expect("a list").len(), 301);
}

#[test]
fn aliases_do_not_nest_deeper_than_text() {
    let (open, close) = ("[".repeat(100), "]".repeat(100));
    let mut text = format!("a0: &a0 {open}x{close}\n");
    for i in 1..1000 {
        text.push_str(&format!("a{i}: &a{i} {open}*a{}{close}\n", i - 1));
    }
    assert_eq!(yaml::to_value(text.as_bytes()), Err(DecodeError::TooDeep));
}

#[test]
fn at_most_a_hundred_duplicate_keys_are_reported() {
    limit_memory();
    let (_, duplicates) = yaml::to_value("a: 1\n".repeat(500_000).as_bytes()).expect("reads");
    assert_eq!(duplicates.len(), kelson_codec::STRICT_ERRORS_MAX);
}

#[test]
fn empty_elements_are_charged_for_their_zero_values() {
    let pod = Some(ty("", "v1", "Pod"));
    let over = DecodeError::OverBudget(Exceeded::Bytes(kelson_codec::Limits::DOCUMENT.bytes));
    for element in ["{}", "null"] {
        let text = format!(r#"{{"spec":{{"containers":[{}{element}]}}}}"#, format!("{element},").repeat(500_000));
        assert_eq!(refused(Encoding::Json, pod, text.as_bytes()), over, "{element}");
    }
    let text = format!("[{}1]", "{\"a\":0},".repeat(350_000));
    assert_eq!(refused(Encoding::Json, None, text.as_bytes()), over);
    // In YAML the pod is too large, while the lists alone would fit.
    let text = format!("spec:\n  containers:\n{}", "  - {}\n".repeat(200_000));
    assert_eq!(refused(Encoding::Yaml, pod, text.as_bytes()), over);
    // Pod{spec: PodSpec{containers: [{}, {}, …]}}
    let spec = [0x12, 0].repeat(1_000_000);
    let body = proto::wrap("v1", "Pod", &field(2, &spec));
    assert_eq!(refused(Encoding::Protobuf, pod, &body), over);
}

#[test]
fn long_keys_are_not_repeated_in_every_finding() {
    limit_memory();
    let fields = r#""x":1,"#.repeat(300_000);
    let text = format!(r#"{{"metadata":{{"labels":{{}}}},"spec":{{"{}":{{{fields}"y":1}}}}}}"#, "k".repeat(1_000_000));
    let decoded = decode(Encoding::Json, None, text.as_bytes(), true).expect("reads");
    assert_eq!(decoded.strict.0.len(), 1);
}

/// Encodes a length-delimited field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    if number > 15 {
        out = vec![(number << 3 | 2) | 0x80, number >> 4];
    }
    let mut length = content.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

#[test]
fn protobuf_documents_within_documents_count_as_nesting() {
    // ControllerRevision{data: RawExtension{raw: a ControllerRevision …}}
    let mut body = proto::wrap("apps/v1", "ControllerRevision", &[]);
    for _ in 0..3000 {
        body = proto::wrap("apps/v1", "ControllerRevision", &field(2, &field(1, &body)));
    }
    let error = refused(Encoding::Protobuf, Some(ty("apps", "v1", "ControllerRevision")), &body);
    assert_eq!(error, DecodeError::TooDeep);
}

#[test]
fn field_sets_contain_only_json() {
    // Pod{metadata: ObjectMeta{managedFields: [{fieldsV1: FieldsV1{raw: a Pod …}}]}}
    let mut body = proto::wrap("v1", "Pod", &[]);
    for _ in 0..3000 {
        body = proto::wrap("v1", "Pod", &field(1, &field(17, &field(7, &field(1, &body)))));
    }
    let error = refused(Encoding::Protobuf, Some(ty("", "v1", "Pod")), &body);
    assert!(matches!(error, DecodeError::Json(_)), "{error}");
}

#[test]
fn json_within_protobuf_counts_as_nesting() {
    let json = format!("{}{}", "[".repeat(NESTING_DEPTH_MAX), "]".repeat(NESTING_DEPTH_MAX));
    let inner = proto::wrap("apps/v1", "ControllerRevision", &field(2, &field(1, json.as_bytes())));
    let body = proto::wrap("apps/v1", "ControllerRevision", &field(2, &field(1, &inner)));
    let error = refused(Encoding::Protobuf, Some(ty("apps", "v1", "ControllerRevision")), &body);
    assert_eq!(error, DecodeError::TooDeep);
}
