//! Custom resources: every verb, patch and view, schemas and validation rules, versions, and errors of a definition
//! with their usual messages.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::Api, Outcome, Raw, Subject, Test, eventually};
use serde_json::{Value, json};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "definitions::every_verb_and_patch", needs: Api, run: every_verb_and_patch },
        Test { name: "definitions::views_of_an_object", needs: Api, run: views_of_an_object },
        Test { name: "definitions::schemas_and_rules_hold", needs: Api, run: schemas_and_rules_hold },
        Test { name: "definitions::versions_and_owners", needs: Api, run: versions_and_owners },
        Test { name: "definitions::faults_of_a_definition", needs: Api, run: faults_of_a_definition },
        Test { name: "definitions::bodies_of_another_kind", needs: Api, run: bodies_of_another_kind },
    ]
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A separate definition for each test, so that they do not interfere.
fn definition(plural: &str) -> Value {
    let size = json!({"type": "integer", "minimum": 1, "maximum": 100});
    let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"},
        "v": {"type": "string", "nullable": true}, "port": {"x-kubernetes-int-or-string": true}}});
    let rule = json!({"rule": "!has(self.replicas) || self.replicas <= self.size", "reason": "FieldValueInvalid",
        "messageExpression": "self.replicas > 100 ? 'far over' : 'over size'", "fieldPath": ".replicas"});
    let spec = json!({"type": "object", "required": ["size"], "x-kubernetes-validations": [rule], "properties": {
        "size": size,
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "replicas": {"type": "integer"},
        "names": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string", "maxLength": 5}},
        "items": {"type": "array", "maxItems": 10, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": item},
        "when": {"type": "string", "format": "date-time"},
        "many": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "fixed": {"type": "string", "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "is immutable", "reason": "FieldValueForbidden"}]},
    }});
    let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "sel": {"type": "string"}}});
    let first = json!({"name": "v1", "served": true, "storage": true,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.sel"}},
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
        "selectableFields": [{"jsonPath": ".spec.color"}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}});
    let second = json!({"name": "v1beta1", "served": true, "storage": false, "deprecated": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.defs.example.com")},
        "spec": {"group": "defs.example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind(plural)}, "versions": [first, second]}})
}

fn kind(plural: &str) -> String {
    let singular = plural.trim_end_matches('s');
    format!("{}{}", singular[..1].to_uppercase(), &singular[1..])
}

/// Waits until a definition is established. Upstream answers before it has a condition, which makes kubectl fail.
pub fn established(s: &Subject, name: &str) -> Outcome {
    let definition = format!("crd/{name}");
    eventually("the definition is established", Duration::from_secs(60), || {
        s.kubectl.ok(&["wait", "--for=condition=Established", &definition, "--timeout=60s"])
    })?;
    Ok(())
}

/// A served definition, and the path of its objects.
struct Defined {
    raw: Raw,
    plural: &'static str,
}

impl Defined {
    fn new(s: &Subject, plural: &'static str) -> anyhow::Result<Self> {
        let raw = Raw::open(&s.kubectl)?;
        let made = raw.json("POST", DEFINITIONS, &definition(plural))?;
        ensure!(made.code == 201, "{}", made.message());
        established(s, &format!("{plural}.defs.example.com"))?;
        let defined = Self { raw, plural };
        // Upstream serves a kind shortly after its condition says so.
        for version in ["v1", "v1beta1"] {
            eventually("the kind is served", Duration::from_secs(60), || {
                let list = defined.raw.send("GET", &defined.path(version, ""), &[], b"")?;
                ensure!(list.code == 200, "{}", list.code);
                Ok(())
            })?;
        }
        Ok(defined)
    }
    fn path(&self, version: &str, rest: &str) -> String {
        format!("/apis/defs.example.com/{version}/namespaces/default/{}{rest}", self.plural)
    }
    fn object(&self, version: &str, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": format!("defs.example.com/{version}"), "kind": kind(self.plural),
            "metadata": {"name": name}, "spec": spec})
    }
    fn create(&self, name: &str, spec: &Value) -> anyhow::Result<Value> {
        let made = self.raw.json("POST", &self.path("v1", ""), &self.object("v1", name, spec))?;
        ensure!(made.code == 201, "{name}: {} {}", made.code, made.message());
        Ok(made.json())
    }
    fn get(&self, rest: &str) -> anyhow::Result<Value> {
        let found = self.raw.send("GET", &self.path("v1", rest), &[], b"")?;
        ensure!(found.code == 200, "{rest}: {} {}", found.code, found.message());
        Ok(found.json())
    }
    fn end(self) -> Outcome {
        let gone = self.raw.send("DELETE", &format!("{DEFINITIONS}/{}.defs.example.com", self.plural), &[], b"")?;
        ensure!(gone.code == 200, "{}", gone.message());
        Ok(())
    }
}

fn every_verb_and_patch(s: &Subject) -> Outcome {
    let d = Defined::new(s, "verbs")?;
    let made = d.create("a", &json!({"size": 5}))?;
    ensure!(made["spec"] == json!({"size": 5, "color": "red"}), "defaulted: {made}");
    ensure!(made["metadata"]["generation"] == 1, "{made}");
    let again = d.raw.json("POST", &d.path("v1", ""), &d.object("v1", "a", &json!({"size": 5})))?;
    ensure!(
        again.code == 409 && again.message() == "verbs.defs.example.com \"a\" already exists",
        "{}",
        again.message()
    );
    for (kind, patch, code, size) in [
        (MERGE, json!({"spec": {"size": 7}}), 200, 7),
        (JSON_PATCH, json!([{"op": "replace", "path": "/spec/size", "value": 8}]), 200, 8),
        (JSON_PATCH, json!([{"op": "test", "path": "/spec/size", "value": 1}]), 422, 8),
        (STRATEGIC, json!({"spec": {"size": 9}}), 415, 8),
    ] {
        let got = d.raw.patch(&d.path("v1", "/a"), kind, &patch)?;
        ensure!(got.code == code, "{kind} {patch}: {} {}", got.code, got.message());
        ensure!(d.get("/a")?["spec"]["size"] == size, "{kind} {patch}");
    }
    let unversioned = d.raw.json("PUT", &d.path("v1", "/a"), &d.object("v1", "a", &json!({"size": 9})))?;
    let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    ensure!(unversioned.code == 422 && unversioned.message().contains(why), "{}", unversioned.message());
    let mut current = d.get("/a")?;
    current["spec"]["size"] = 10.into();
    let put = d.raw.json("PUT", &d.path("v1", "/a"), &current)?;
    ensure!(put.code == 200 && put.json()["metadata"]["generation"] == 4, "{}", put.json());
    let stale = d.raw.json("PUT", &d.path("v1", "/a"), &current)?;
    ensure!(stale.code == 409 && stale.json()["reason"] == "Conflict", "{}", stale.message());
    // A dry run answers as usual, and changes nothing.
    let dry = d.raw.patch(&d.path("v1", "/a?dryRun=All"), MERGE, &json!({"spec": {"size": 50}}))?;
    ensure!(dry.json()["spec"]["size"] == 50 && d.get("/a")?["spec"]["size"] == 10, "{}", dry.json());
    for (name, color) in [("b", "blue"), ("c", "red")] {
        d.create(name, &json!({"size": 1, "color": color}))?;
    }
    let gone = d.raw.send("DELETE", &d.path("v1", "/b"), &[], b"")?;
    ensure!(gone.code == 200 && gone.json()["status"] == "Success", "{}", gone.json());
    let all = d.raw.send("DELETE", &d.path("v1", ""), &[], b"")?;
    ensure!(all.code == 200, "{}", all.message());
    ensure!(d.get("")?["items"] == json!([]), "all are gone");
    d.end()
}

fn views_of_an_object(s: &Subject) -> Outcome {
    let d = Defined::new(s, "views")?;
    let mut first = d.object("v1", "a", &json!({"size": 5, "color": "blue"}));
    first["metadata"]["labels"] = json!({"app": "x"});
    first["status"] = json!({"replicas": 4});
    let made = d.raw.json("POST", &d.path("v1", ""), &first)?;
    ensure!(made.code == 201 && made.json().get("status").is_none(), "a status is not created: {}", made.json());
    d.create("b", &json!({"size": 6}))?;
    let status = json!({"status": {"replicas": 3, "sel": "a=b"}, "spec": {"size": 50}});
    let now = d.raw.patch(&d.path("v1", "/a/status"), MERGE, &status)?.json();
    ensure!(now["spec"]["size"] == 5 && now["status"]["replicas"] == 3, "the view writes the status alone: {now}");
    ensure!(now["metadata"]["generation"] == 1, "and counts for nothing: {now}");
    let scale = d.raw.send("GET", &d.path("v1", "/a/scale"), &[], b"")?;
    let why = "Internal error occurred: the spec replicas field \".spec.replicas\" does not exist";
    ensure!(scale.code == 500 && scale.message() == why, "{}", scale.message());
    let scale = d.raw.patch(&d.path("v1", "/a/scale"), MERGE, &json!({"spec": {"replicas": 3}}))?.json();
    ensure!(
        scale["kind"] == "Scale" && scale["spec"]["replicas"] == 3 && scale["status"]["selector"] == "a=b",
        "{scale}"
    );
    ensure!(d.get("/a")?["spec"]["replicas"] == 3, "the object has the count");
    for (query, names) in [
        ("?fieldSelector=spec.color%3Dblue", vec!["a"]),
        ("?fieldSelector=spec.color%21%3Dblue", vec!["b"]),
        ("?labelSelector=app", vec!["a"]),
        ("?labelSelector=%21app", vec!["b"]),
        ("?fieldSelector=metadata.name%3Db", vec!["b"]),
    ] {
        let list = d.get(query)?;
        let found: Vec<_> = list["items"].as_array().context("items")?.iter().map(|o| &o["metadata"]["name"]).collect();
        ensure!(found == names, "{query}: {found:?}");
    }
    let unknown = d.raw.send("GET", &d.path("v1", "?fieldSelector=spec.size%3D5"), &[], b"")?;
    ensure!(
        unknown.code == 400 && unknown.message().contains("field label not supported: spec.size"),
        "{}",
        unknown.message()
    );
    let table = ["Accept: application/json;as=Table;v=v1;g=meta.k8s.io"];
    let table = d.raw.send("GET", &d.path("v1", ""), &table, b"")?.json();
    let columns: Vec<_> =
        table["columnDefinitions"].as_array().context("columns")?.iter().map(|c| &c["name"]).collect();
    ensure!(columns == ["Name", "Size"] && table["rows"][0]["cells"] == json!(["a", 5]), "{table}");
    let partial = ["Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"];
    let partial = d.raw.send("GET", &d.path("v1", "/a"), &partial, b"")?.json();
    ensure!(partial["kind"] == "PartialObjectMetadata" && partial.get("spec").is_none(), "{partial}");
    let binary = d.raw.send("GET", &d.path("v1", "/a"), &["Accept: application/vnd.kubernetes.protobuf"], b"")?;
    ensure!(binary.code == 406, "{}", binary.code);
    let watch = d.raw.send("GET", &d.path("v1", "?watch=1&resourceVersion=0&timeoutSeconds=2"), &[], b"")?;
    let lines =
        String::from_utf8_lossy(&watch.body).lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let added: Vec<_> =
        lines.iter().filter(|e| e["type"] == "ADDED").map(|e| &e["object"]["metadata"]["name"]).collect();
    ensure!(added == ["a", "b"], "{lines:?}");
    let explained = s.kubectl.ok(&["explain", "views.spec.items"])?;
    ensure!(explained.contains("GROUP:      defs.example.com") && explained.contains("<[]Object>"), "{explained}");
    d.end()
}

fn schemas_and_rules_hold(s: &Subject) -> Outcome {
    let d = Defined::new(s, "rules")?;
    let rest = ", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct \
                the existing errors to complete validation]";
    for (spec, why) in [
        (json!({"size": 0}), "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"),
        (
            json!({"size": "x"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (json!({}), "spec.size: Required value"),
        (
            json!({"size": 5, "color": "green"}),
            "spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\"",
        ),
        (json!({"size": 5, "names": ["a", "a"]}), "spec.names[1]: Duplicate value: \"a\""),
        (json!({"size": 5, "items": [{"k": "a"}, {"k": "a"}]}), "spec.items[1]: Duplicate value: {\"k\":\"a\"}"),
        (json!({"size": 5, "many": {"a": 1, "b": 2, "c": 3}}), "spec.many: Too many: 3: must have at most 2 items"),
        (json!({"size": 5, "when": "yesterday"}), "spec.when in body must be of type date-time: \"yesterday\""),
        (json!({"size": 5, "items": [{"k": "a", "port": true}]}), "must be of type integer,string: \"boolean\""),
        (json!({"size": 5, "replicas": 6}), "spec.replicas: Invalid value: over size"),
        (json!({"size": 5, "replicas": 600}), "spec.replicas: Invalid value: far over"),
    ] {
        let got = d.raw.json("POST", &d.path("v1", "?dryRun=All"), &d.object("v1", "x", &spec))?;
        ensure!(got.code == 422 && got.message().contains(why), "{spec}: {} {}", got.code, got.message());
    }
    let typed = d.raw.json("POST", &d.path("v1", ""), &d.object("v1", "x", &json!({"size": 5, "names": [1]})))?;
    ensure!(typed.message().ends_with(rest), "{}", typed.message());
    let unknown = d.object("v1", "x", &json!({"size": 5, "odd": 1, "any": {"odd": [{"a": null}]}}));
    let strict = d.raw.json("POST", &d.path("v1", "?fieldValidation=Strict"), &unknown)?;
    let why = "Rule in version \"v1\" cannot be handled as a Rule: strict decoding error: unknown field \"spec.odd\"";
    ensure!(strict.code == 400 && strict.message() == why, "{}", strict.message());
    let kept = d.create("a", &unknown["spec"])?;
    ensure!(kept["spec"].get("odd").is_none() && kept["spec"]["any"]["odd"][0]["a"].is_null(), "pruned: {kept}");
    let nulls = d.create("b", &json!({"size": 5, "color": null, "items": [{"k": "a", "v": null}]}))?;
    ensure!(nulls["spec"]["color"] == "red" && nulls["spec"]["items"] == json!([{"k": "a", "v": null}]), "{nulls}");
    d.create("c", &json!({"size": 5, "fixed": "q"}))?;
    let changed = d.raw.patch(&d.path("v1", "/c"), MERGE, &json!({"spec": {"fixed": "z"}}))?;
    ensure!(
        changed.message() == "Rule.defs.example.com \"c\" is invalid: spec.fixed: Forbidden: is immutable",
        "{}",
        changed.message()
    );
    ensure!(changed.json()["details"]["causes"][0]["reason"] == "FieldValueForbidden", "{}", changed.json());
    let other = d.raw.patch(&d.path("v1", "/c"), MERGE, &json!({"spec": {"size": 6}}))?;
    ensure!(other.code == 200, "{}", other.message());
    d.end()
}

fn versions_and_owners(s: &Subject) -> Outcome {
    let d = Defined::new(s, "owners")?;
    d.create("a", &json!({"size": 5}))?;
    let older = d.raw.send("GET", &d.path("v1beta1", "/a"), &[], b"")?.json();
    ensure!(older["apiVersion"] == "defs.example.com/v1beta1" && older["spec"]["size"] == 5, "{older}");
    let warned = s.kubectl.run(&["get", "owners.v1beta1.defs.example.com", "a"])?;
    let why = "Warning: defs.example.com/v1beta1 Owner is deprecated; use defs.example.com/v1 Owner";
    ensure!(warned.stderr.contains(why), "{}", warned.stderr);
    let applied = |version: &str, manager: &str, force: bool, spec: Value| {
        let path = d.path(version, &format!("/a?fieldManager={manager}{}", if force { "&force=true" } else { "" }));
        d.raw.patch(&path, APPLY, &d.object(version, "a", &spec))
    };
    let conflict = applied("v1", "m", false, json!({"size": 20}))?;
    let why = "Apply failed with 1 conflict: conflict with \"blackbox\" using defs.example.com/v1: .spec.size";
    ensure!(conflict.code == 409 && conflict.message() == why, "{}", conflict.message());
    ensure!(applied("v1", "m", true, json!({"size": 20, "items": [{"k": "z", "v": "1"}]}))?.code == 200, "by force");
    // The same manager in the other version: fields it no longer applies are removed, and its entry has that version.
    let moved = applied("v1beta1", "m", true, json!({"size": 21}))?;
    ensure!(moved.code == 200, "{}", moved.message());
    let now = d.get("/a")?;
    ensure!(now["spec"] == json!({"size": 21, "color": "red"}), "{now}");
    let entries = now["metadata"]["managedFields"].as_array().context("entries")?;
    let entry = entries.iter().find(|e| e["manager"] == "m").context("m")?;
    ensure!(entry["apiVersion"] == "defs.example.com/v1beta1" && entry["operation"] == "Apply", "{entry}");
    let conflict = applied("v1", "n", false, json!({"size": 22}))?;
    ensure!(
        conflict.code == 409 && conflict.message().contains("conflict with \"m\": .spec.size"),
        "{}",
        conflict.message()
    );
    let stored = d.raw.send("GET", &format!("{DEFINITIONS}/owners.defs.example.com"), &[], b"")?.json();
    ensure!(stored["status"]["storedVersions"] == json!(["v1"]), "{}", stored["status"]);
    // A version that may have stored objects cannot be removed.
    let gone = json!([{"op": "remove", "path": "/spec/versions/0"}, {"op": "replace", "path": "/spec/versions/0/storage", "value": true}]);
    let refused = d.raw.patch(&format!("{DEFINITIONS}/owners.defs.example.com"), JSON_PATCH, &gone)?;
    let why = "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version";
    ensure!(refused.code == 422 && refused.message().contains(why), "{}", refused.message());
    d.end()
}

fn faults_of_a_definition(s: &Subject) -> Outcome {
    let raw = Raw::open(&s.kubectl)?;
    let bad = |pointer: &str, value: Value, why: &str| -> Outcome {
        let mut made = definition("faults");
        let (parent, key) = pointer.rsplit_once('/').context("a pointer")?;
        made.pointer_mut(parent).context("a place")?[key] = value;
        let got = raw.json("POST", &format!("{DEFINITIONS}?dryRun=All"), &made)?;
        ensure!(
            got.code == 422 && got.message().contains(why),
            "{pointer}: {} {}\nnot: {why}",
            got.code,
            got.message()
        );
        Ok(())
    };
    let fields = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/bad";
    let at = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[bad]";
    bad(
        "/metadata/name",
        json!("f.defs.example.com"),
        "metadata.name: Invalid value: \"f.defs.example.com\": must be spec.names.plural+\".\"+spec.group",
    )?;
    bad("/spec/group", json!("defs"), "spec.group: Invalid value: \"defs\": should be a domain with at least one dot")?;
    bad(
        "/spec/scope",
        json!("Odd"),
        "spec.scope: Unsupported value: \"Odd\": supported values: \"Cluster\", \"Namespaced\"",
    )?;
    bad("/spec/versions/1/storage", json!(true), "must have exactly one version marked as storage version")?;
    bad("/spec/versions/1/name", json!("v1"), "must contain unique version names")?;
    bad(
        "/spec/conversion",
        json!({"strategy": "Webhook"}),
        "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
    )?;
    bad(
        "/spec/preserveUnknownFields",
        json!(true),
        "spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema",
    )?;
    bad(fields, json!({"type": "objekt"}), &format!("{at}.type: Unsupported value: \"objekt\": supported values:"))?;
    bad(fields, json!({}), &format!("{at}.type: Required value: must not be empty for specified object fields"))?;
    bad(fields, json!({"type": "array"}), &format!("{at}.items: Required value: must be specified"))?;
    bad(
        fields,
        json!({"type": "string", "default": 5}),
        &format!("{at}.default: Invalid value: \"integer\":  in body must be of type string: \"integer\""),
    )?;
    bad(
        fields,
        json!({"type": "string", "uniqueItems": true}),
        &format!(
            "{at}.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        ),
    )?;
    bad(
        fields,
        json!({"type": "string", "x-kubernetes-validations": [{"rule": "self.foo"}]}),
        "type 'string' does not support field selection",
    )?;
    bad(
        fields,
        json!({"type": "string", "x-kubernetes-validations": [{"rule": "size(self)"}]}),
        &format!("{at}.x-kubernetes-validations[0].rule: Invalid value:"),
    )?;
    bad(
        fields,
        json!({"type": "array", "items": {"type": "array", "items": {"type": "string"},
        "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}}),
        "estimated rule cost exceeds budget",
    )?;
    Ok(())
}

fn bodies_of_another_kind(s: &Subject) -> Outcome {
    let d = Defined::new(s, "bodies")?;
    let create = |body: Value| d.raw.json("POST", &d.path("v1", "?dryRun=All"), &body);
    let whole = d.object("v1", "x", &json!({"size": 1}));
    let without = |field: &str| {
        let mut body = whole.clone();
        body.as_object_mut().map(|o| o.remove(field));
        body
    };
    let got = create(without("kind"))?;
    ensure!(
        got.code == 400
            && got
                .message()
                .contains("the object provided is unrecognized (must be of type Bodie): Object 'Kind' is missing in '"),
        "{}",
        got.message()
    );
    let got = create(without("apiVersion"))?;
    let why = "the API version in the data () does not match the expected API version (defs.example.com/v1)";
    ensure!(got.code == 400 && got.message() == why, "{}", got.message());
    let mut other = whole.clone();
    other["kind"] = "Gadget".into();
    let got = create(other)?;
    let why = "Gadget.defs.example.com \"x\" is invalid: kind: Invalid value: \"Gadget\": must be Bodie";
    ensure!(got.code == 422 && got.message() == why, "{}", got.message());
    let got = d.raw.send("POST", &d.path("v1", ""), &[], b"{")?;
    let why = "the object provided is unrecognized (must be of type Bodie): couldn't get version/kind; json parse error: \
               unexpected end of JSON input ({)";
    ensure!(got.code == 400 && got.message() == why, "{}", got.message());
    d.end()
}
