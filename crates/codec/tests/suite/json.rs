//! JSON and YAML decoding: canonical form, strict findings, type errors and limits, with upstream's messages.
use kelson_codec::{DecodeError, Decoded, Encoding, NESTING_DEPTH_MAX, TypeMeta, decode, peek, proto};
use kelson_schema::{Schema, TypeId};
use serde_json::{Value, json};

fn ty(group: &str, version: &str, kind: &str) -> TypeId {
    Schema::builtin().by_gvk(group, version, kind).expect("built in")
}

fn deployment(text: &str) -> Result<Decoded, DecodeError> {
    decode(Encoding::Json, Some(ty("apps", "v1", "Deployment")), text.as_bytes(), true)
}

fn pod(value: Value) -> Result<Decoded, DecodeError> {
    decode(Encoding::Json, Some(ty("", "v1", "Pod")), value.to_string().as_bytes(), true)
}

#[test]
fn unknown_and_duplicate_fields() {
    let text = r#"{"kind":"Deployment","foo":1,"spec":{"replicas":1,"replicas":2,"bar":{},"Replicas":3,
        "template":{"metadata":{"labels":{"a":"1","a":"2"}},"spec":{"containers":[{"name":"a"},{"name":"b","imag":"x","imag":"y"}]}}}}"#;
    let decoded = deployment(text).expect("decodes");
    assert_eq!(
        decoded.strict.to_string(),
        "strict decoding error: unknown field \"foo\", duplicate field \"spec.replicas\", unknown field \"spec.bar\", \
         unknown field \"spec.Replicas\", duplicate field \"spec.template.metadata.labels.a\", \
         unknown field \"spec.template.spec.containers[1].imag\""
    );
    assert_eq!(decoded.value["spec"]["replicas"], 2);
    assert_eq!(decoded.value.get("foo"), None);
    let lenient =
        decode(Encoding::Json, Some(ty("apps", "v1", "Deployment")), text.as_bytes(), false).expect("decodes");
    assert!(lenient.strict.is_empty());
    assert_eq!(lenient.value, decoded.value);
}

#[track_caller]
fn type_error(text: &str, expected: &str) {
    assert_eq!(deployment(text).expect_err("refused").to_string(), expected);
}

#[test]
fn values_of_the_wrong_type() {
    type_error(
        r#"{"spec":{"replicas":"x"}}"#,
        "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
    );
    type_error(
        r#"{"spec":{"replicas":1.5}}"#,
        "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
    );
    type_error(
        r#"{"spec":{"replicas":9999999999}}"#,
        "json: cannot unmarshal number 9999999999 into Go struct field DeploymentSpec.spec.replicas of type int32",
    );
    type_error(
        r#"{"spec":[]}"#,
        "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec",
    );
    type_error(
        r#"{"metadata":{"labels":{"a":1}}}"#,
        "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
    );
    type_error(
        r#"{"spec":{"template":{"spec":{"containers":{}}}}}"#,
        "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
    );
    type_error(r#"[]"#, "json: cannot unmarshal array into Go value of type v1.Deployment");
    type_error(
        r#"{"spec":{"template":{"spec":{"volumes":[{"emptyDir":1}]}}}}"#,
        "json: cannot unmarshal number into Go struct field Volume.spec.template.spec.volumes.VolumeSource.emptyDir of type v1.EmptyDirVolumeSource",
    );
    type_error(
        r#"{"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"lots"}}}]}}}}"#,
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    );
    type_error(
        r#"{"metadata":{"creationTimestamp":"yesterday"}}"#,
        r#"parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#,
    );
}

#[test]
fn broken_syntax() {
    type_error("{", "unexpected end of JSON input");
    type_error("{\"a\"}", "invalid character '}' after object key");
    type_error("{\"kind\":}", "invalid character '}' looking for beginning of value");
    type_error("{\"kind\":\"a\" \"b\"}", "invalid character '\"' after object key:value pair");
    type_error("{\"kind\":\"a\",}", "invalid character '}' looking for beginning of object key string");
    type_error("{\"foo\":[1,]}", "invalid character ']' looking for beginning of value");
    type_error("{\"foo\":tru}", "invalid character '}' in literal true (expecting 'e')");
    type_error("{} x", "invalid character 'x' after top-level value");
    type_error("{\"kind\":\"a\nb\"}", r"invalid character '\n' in string literal");
    type_error("{\"foo\":01}", "invalid character '1' after object key:value pair");
}

#[test]
fn canonical_form() {
    let decoded = pod(json!({
        "metadata": {"name": "p", "labels": {}, "annotations": null, "creationTimestamp": null, "deletionTimestamp": "2024-01-01T02:00:00.5+02:00"},
        "spec": {"containers": [{"name": "c", "image": "", "stdin": false, "args": [], "resources": {"limits": {"cpu": "1000m", "memory": 0.5, "x": "1024Ki", "y": "0.5"}},
            "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"tcpSocket": {"port": 80}}}],
            "activeDeadlineSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}], "hostNetwork": false}
    }));
    let expected = json!({
        "metadata": {"name": "p", "deletionTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "500m", "x": "1Mi", "y": "500m"}},
            "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"tcpSocket": {"port": 80}}}],
            "activeDeadlineSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}]},
        "status": {}
    });
    assert_eq!(decoded.expect("decodes").value, expected);
    let empty = deployment("{}").expect("decodes").value;
    assert_eq!(
        empty,
        json!({"metadata":{},"spec":{"selector":null,"strategy":{},"template":{"metadata":{},"spec":{"containers":null}}},"status":{}})
    );
}

#[test]
fn canonical_form_is_what_protobuf_keeps() {
    let ty = ty("", "v1", "Pod");
    let value = pod(json!({"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"c"}],"tolerations":[{"tolerationSeconds":0}]}})).expect("decodes").value;
    let bytes = proto::encode(ty, &value).expect("encodes");
    let (meta, again) = proto::decode(&bytes).expect("decodes");
    assert_eq!(again, value);
    assert_eq!(meta, TypeMeta { api_version: "v1".into(), kind: "Pod".into() });
    assert_eq!(kelson_codec::normalize(ty, value.clone(), true).expect("fits").value, value);
}

#[test]
fn nesting_is_bounded() {
    let deep = "[".repeat(NESTING_DEPTH_MAX + 1);
    assert_eq!(decode(Encoding::Json, None, deep.as_bytes(), false).expect_err("deep"), DecodeError::TooDeep);
    let flow = format!("{}{}", "[".repeat(NESTING_DEPTH_MAX + 2), "]".repeat(NESTING_DEPTH_MAX + 2));
    assert_eq!(decode(Encoding::Yaml, None, flow.as_bytes(), false).expect_err("deep"), DecodeError::TooDeep);
    let hostile = "[".repeat(100_000);
    assert!(decode(Encoding::Yaml, None, hostile.as_bytes(), false).is_err());
    let text = format!("{}1{}", "[".repeat(NESTING_DEPTH_MAX), "]".repeat(NESTING_DEPTH_MAX));
    assert!(decode(Encoding::Json, None, text.as_bytes(), false).is_ok());
}

#[test]
fn untyped_objects() {
    let decoded = decode(
        Encoding::Json,
        None,
        br#"{"spec":{"a":1,"a":2,"n":[{"x":1,"x":1}],"f":1.0,"big":1e3,"u":"\u00e9\ud83d\ude00"}}"#,
        true,
    )
    .expect("decodes");
    assert_eq!(decoded.value, json!({"spec":{"a":2,"n":[{"x":1}],"f":1,"big":1000,"u":"é😀"}}));
    assert_eq!(
        decoded.strict.to_string(),
        "strict decoding error: duplicate field \"spec.a\", duplicate field \"spec.n[0].x\""
    );
}

#[test]
fn peeking() {
    let found = peek(Encoding::Json, br#"{"spec":{"kind":"x"},"kind":"Pod","apiVersion":"v1"}"#).expect("reads");
    assert_eq!(found, TypeMeta { api_version: "v1".into(), kind: "Pod".into() });
    let error = peek(Encoding::Json, b"{\"a\"").expect_err("broken");
    assert_eq!(error.to_string(), "couldn't get version/kind; json parse error: unexpected end of JSON input");
    assert_eq!(peek(Encoding::Yaml, b"kind: Pod\napiVersion: v1\n").expect("reads").kind, "Pod");
}

#[test]
fn yaml_scalars_and_duplicates() {
    let text = b"kind: ConfigMap\ndata:\n  a: 'yes'\n  b: |\n    x\n    y\n  c: \"1\"\n  a: z\nimmutable: yes\n";
    let decoded = decode(Encoding::Yaml, Some(ty("", "v1", "ConfigMap")), text, true).expect("decodes");
    assert_eq!(
        decoded.value,
        json!({"kind":"ConfigMap","metadata":{},"data":{"a":"z","b":"x\ny\n","c":"1"},"immutable":true})
    );
    assert_eq!(
        decoded.strict.to_string(),
        "strict decoding error: yaml: unmarshal errors:\n  line 8: key \"a\" already set in map"
    );
    let (value, _) =
        kelson_codec::yaml::to_value(b"[0644, 0x1F, 1_000, 1.50, 2024-01-01, 12:30, ~, off, '1', .5, 1e2, -5, \"<<\"]")
            .expect("reads");
    assert_eq!(value, json!([420, 31, 1000, 1.5, "2024-01-01", "12:30", null, false, "1", 0.5, 100, -5, "<<"]));
    let (merged, _) =
        kelson_codec::yaml::to_value(b"base: &b {x: 1, z: 2}\nuse:\n  <<: *b\n  z: 3\n1: one\ny: t\n").expect("reads");
    assert_eq!(merged, json!({"base":{"x":1,"z":2},"use":{"x":1,"z":3},"1":"one","true":"t"}));
    let error = decode(Encoding::Yaml, Some(ty("", "v1", "ConfigMap")), b"data: {a: 1}", true).expect_err("number");
    assert_eq!(error.to_string(), "json: cannot unmarshal number into Go struct field ConfigMap.data of type string");
}

#[test]
fn alias_bombs_are_refused() {
    let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        text.push_str(&format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(",")));
    }
    let error = kelson_codec::yaml::to_value(text.as_bytes()).expect_err("bomb");
    assert_eq!(error.to_string(), "yaml: document contains excessive aliasing");
}

#[test]
fn custom_resource_schemas_keep_their_unions() {
    let crd = ty("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let schema = json!({"type":"object","additionalProperties":false,"properties":{"a":{"items":{"type":"string","unheard":1},"default":{"x":[1]}},"b":{"additionalProperties":{"type":"integer"},"maximum":1.5}}});
    let text = json!({"spec":{"group":"g","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":schema}}]}}).to_string();
    let decoded = decode(Encoding::Json, Some(crd), text.as_bytes(), true).expect("decodes");
    assert!(decoded.strict.is_empty(), "upstream is not strict inside these unions");
    let found = &decoded.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(found["properties"]["a"], json!({"items":{"type":"string"},"default":{"x":[1]}}));
    assert_eq!(found["additionalProperties"], false);
    let bytes = proto::encode(crd, &decoded.value).expect("encodes");
    assert_eq!(proto::decode_as(crd, &bytes).expect("decodes").1, decoded.value);
}
