//! Valid and invalid definitions, with their messages.
use crate::definition::{default, store_version, validate_create, validate_status_update, validate_update, warnings};
use kelson_meta::FieldErrors;
use serde_json::{Value, json};

pub(super) fn definition(schema: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "conversion": {"strategy": "None"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
        "status": {"storedVersions": ["v1"]},
    })
}

fn plain() -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}})
}

pub(super) fn texts(errors: &FieldErrors) -> Vec<String> {
    errors.0.iter().map(ToString::to_string).collect()
}

/// Faults of a valid definition with one value put at a pointer.
fn with(pointer: &str, value: Value) -> Vec<String> {
    let mut tree = definition(plain());
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match tree.pointer_mut(parent).unwrap() {
        Value::Array(list) => list.insert(key.parse().unwrap(), value),
        parent => parent[key] = value,
    }
    texts(&validate_create(&tree))
}

fn check(pointer: &str, value: Value, want: &[&str]) {
    assert_eq!(with(pointer, value.clone()), want, "{pointer} = {value}");
}

#[test]
fn a_plain_one_is_fine() {
    assert_eq!(texts(&validate_create(&definition(plain()))), [""; 0]);
}

#[test]
fn names_and_group() {
    const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    check(
        "/metadata/name",
        json!("other"),
        &["metadata.name: Invalid value: \"other\": must be spec.names.plural+\".\"+spec.group"],
    );
    check(
        "/spec/scope",
        json!("World"),
        &["spec.scope: Unsupported value: \"World\": supported values: \"Cluster\", \"Namespaced\""],
    );
    check("/spec/scope", json!(""), &["spec.scope: Required value"]);
    let dotless = with("/spec/group", json!("example"));
    assert!(
        dotless
            .contains(&"spec.group: Invalid value: \"example\": should be a domain with at least one dot".to_owned())
    );
    check("/spec/names/singular", json!(""), &["spec.names.singular: Required value"]);
    check(
        "/spec/names/listKind",
        json!("Thing"),
        &["spec.names.listKind: Invalid value: \"Thing\": kind and listKind may not be the same"],
    );
    check(
        "/spec/names/shortNames",
        json!(["ok", "Bad"]),
        &[&format!("spec.names.shortNames[1]: Invalid value: \"Bad\": {LABEL}")],
    );
    check(
        "/spec/names/kind",
        json!("A b"),
        &[&format!(
            "spec.names.kind: Invalid value: \"A b\": may have mixed case, but should otherwise match: {LABEL}"
        )],
    );
    check(
        "/status/acceptedNames",
        json!({"plural": "A"}),
        &[&format!("status.acceptedNames.plural: Invalid value: \"A\": {LABEL}")],
    );
    assert_eq!(texts(&validate_status_update(&json!({"status": {"acceptedNames": {"plural": "A"}}}))).len(), 1);
}

#[test]
fn versions_and_what_is_stored() {
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": plain()}})
    };
    check("/spec/versions/1", version("v2", false), &[]);
    let two = with("/spec/versions/1", version("v2", true));
    let held = |name: &str| {
        format!(
            "{{\"Name\":\"{name}\",\"Served\":true,\"Storage\":true,\"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}"
        )
    };
    let shown = format!("spec.versions: Invalid value: [{},{}]: ", held("v1"), held("v2"));
    assert_eq!(two[0], format!("{shown}must have exactly one version marked as storage version"));
    assert!(two[1].ends_with("must have the storage version v2"), "{two:?}");
    assert!(with("/spec/versions/1", version("v1", false))[0].ends_with("must contain unique version names"));
    check("/spec/versions/0/schema", json!(null), &["spec.versions[0].schema.openAPIV3Schema: Required value"]);
    check(
        "/status/storedVersions",
        json!(["v0", "v1"]),
        &[
            "status.storedVersions[0]: Invalid value: \"v0\": missing from spec.versions; v0 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v0 and removes v0 from status.storedVersions",
        ],
    );
    check(
        "/status/storedVersions",
        json!([]),
        &["status.storedVersions: Invalid value: []: must have at least one stored version"],
    );
    check(
        "/spec/versions/0/deprecationWarning",
        json!("old"),
        &["spec.versions[0].deprecationWarning: Invalid value: \"old\": can only be set for deprecated versions"],
    );
    check(
        "/spec/preserveUnknownFields",
        json!(true),
        &[
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ],
    );
}

#[test]
fn columns_subresources_and_selectable_fields() {
    let column = |ty: &str, path: &str| json!([{"name": "N", "type": ty, "jsonPath": path}]);
    check("/spec/versions/0/additionalPrinterColumns", column("integer", ".spec.n"), &[]);
    check(
        "/spec/versions/0/additionalPrinterColumns",
        column("float", "spec.n"),
        &[
            "spec.additionalPrinterColumns[0].type: Invalid value: \"float\": must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec.n\": must be a simple json path starting with .",
        ],
    );
    let scale = |spec: &str, status: &str| json!({"scale": {"specReplicasPath": spec, "statusReplicasPath": status}});
    check("/spec/versions/0/subresources", scale(".spec.n", ".status.n"), &[]);
    check(
        "/spec/versions/0/subresources",
        scale(".status.n", ""),
        &[
            "spec.subresources.scale.specReplicasPath: Invalid value: \".status.n\": should be a json path under .spec",
            "spec.subresources.scale.statusReplicasPath: Required value",
        ],
    );
    let fields = |paths: &[&str]| Value::from(paths.iter().map(|p| json!({"jsonPath": p})).collect::<Vec<_>>());
    check("/spec/versions/0/selectableFields", fields(&[".spec.n"]), &[]);
    check(
        "/spec/versions/0/selectableFields",
        fields(&[".spec.n", ".spec.n", ".spec", ".spec.m", ".a['b']"]),
        &[
            "spec.selectableFields[1].jsonPath: Duplicate value: \".spec.n\"",
            "spec.selectableFields[2].jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            "spec.selectableFields[3].jsonPath: Invalid value: \".spec.m\": is an invalid path: does not refer to a valid field",
            "spec.selectableFields[4].jsonPath: Invalid value: \".a['b']\": is an invalid path: does not refer to a valid field",
        ],
    );
}

#[test]
fn conversions() {
    let hook = |config: Value, reviews: Value| {
        json!({"strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": reviews}})
    };
    let service = json!({"service": {"namespace": "n", "name": "s", "port": 443}});
    check("/spec/conversion", hook(service.clone(), json!(["v1"])), &[]);
    check(
        "/spec/conversion",
        hook(json!({"url": "http://x"}), json!(["v2", "v2"])),
        &[
            "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            "spec.conversion.conversionReviewVersions[1]: Invalid value: \"v2\": duplicate version",
            "spec.conversion.conversionReviewVersions: Invalid value: [\"v2\",\"v2\"]: must include at least one of v1, v1beta1",
        ],
    );
    check(
        "/spec/conversion",
        hook(json!({}), json!(["v1"])),
        &["spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required"],
    );
    check(
        "/spec/conversion",
        json!({"strategy": "None", "webhook": {"clientConfig": service}}),
        &["spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook"],
    );
    check(
        "/spec/conversion",
        json!({"strategy": "Magic"}),
        &["spec.conversion.strategy: Unsupported value: \"Magic\": supported values: \"None\", \"Webhook\""],
    );
}

#[test]
fn groups_of_the_community_need_approval() {
    let mut tree = definition(plain());
    tree["metadata"]["name"] = json!("things.x.k8s.io");
    tree["spec"]["group"] = json!("x.k8s.io");
    let key = "metadata.annotations[api-approved.kubernetes.io]";
    assert_eq!(
        texts(&validate_create(&tree)),
        [format!(
            "{key}: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
        )]
    );
    for (annotation, faults) in [("https://github.com/x/y/pull/1", 0), ("unapproved, a test", 0), ("yes", 1)] {
        tree["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": annotation});
        assert_eq!(validate_create(&tree).0.len(), faults, "{annotation}");
    }
}

#[test]
fn a_separate_status_limits_the_root() {
    let mut tree = definition(plain());
    tree["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    assert_eq!(texts(&validate_create(&tree)), [""; 0]);
    tree["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["maxProperties"] = json!(3);
    let found = texts(&validate_create(&tree));
    assert!(
        found[0].contains("only [Description Type Format") && found[0].contains("XValidations] fields are allowed"),
        "{found:?}"
    );
}

#[test]
fn different_versions_are_distinguished() {
    let mut tree = definition(plain());
    let bad = json!({"type": "object", "properties": {"a": {}}});
    let second = json!({"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": bad}});
    tree["spec"]["versions"].as_array_mut().unwrap().push(second);
    assert_eq!(
        texts(&validate_create(&tree)),
        [
            "spec.versions[1].schema.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields"
        ]
    );
}

#[test]
fn what_was_wrong_may_stay() {
    let old =
        definition(json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "set",
        "items": {"type": "object", "properties": {"a": {"type": "string"}}}}}}));
    assert_eq!(validate_create(&old).0.len(), 1);
    assert_eq!(texts(&validate_update(&old, &old)), [""; 0]);
    let mut moved = definition(plain());
    moved["spec"]["group"] = json!("other.com");
    moved["spec"]["scope"] = json!("Cluster");
    let mut old = definition(plain());
    assert_eq!(texts(&validate_update(&moved, &old)), ["spec.group: Invalid value: \"other.com\": field is immutable"]);
    old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    assert_eq!(
        texts(&validate_update(&moved, &old)),
        [
            "spec.scope: Invalid value: \"Cluster\": field is immutable",
            "spec.group: Invalid value: \"other.com\": field is immutable",
        ]
    );
}

#[test]
fn what_is_left_out_is_filled_in() {
    let mut tree = json!({"spec": {"names": {"kind": "Thing", "plural": "things"},
        "versions": [{"name": "v1"}, {"name": "v2", "storage": true}],
        "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"name": "s"}}}}}});
    default(&mut tree);
    assert_eq!(tree["spec"]["names"]["singular"], "thing");
    assert_eq!(tree["spec"]["names"]["listKind"], "ThingList");
    assert_eq!(tree["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"], 443);
    assert_eq!(tree["status"]["storedVersions"], json!(["v2"]));
    tree["spec"]["versions"][0]["storage"] = json!(true);
    tree["spec"]["versions"][1]["storage"] = json!(false);
    store_version(&mut tree);
    assert_eq!(tree["status"]["storedVersions"], json!(["v2", "v1"]));
}

#[test]
fn formats_that_mean_nothing_are_warned_of() {
    let with = |format: &str| {
        definition(
            json!({"type": "object", "properties": {"a": {"type": "string", "format": format}, "b": {"type": "integer", "format": "int32"}}}),
        )
    };
    assert_eq!(warnings(&with("date"), None), [""; 0]);
    assert_eq!(warnings(&with("made-up"), None), ["unrecognized format \"made-up\""]);
    assert_eq!(warnings(&with("made-up"), Some(&with("made-up"))), [""; 0]);
}
