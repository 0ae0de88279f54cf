//! Server-side apply (KEP-555): ownership, conflicts, removal, lists, custom resources, and properties of random trees.

use crate::common::{T1, T2, T3, deployment, deployments, entry, managers};
use kelson_patch::{ApplyError, FieldManager, FieldSet};
use kelson_schema::Shape;
use kelson_structural::{Structural, publish};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

#[test]
fn create_tracks_the_writer() {
    let mut object = deployment(
        json!({"replicas":3,"selector":{"matchLabels":{"a":"b"}},"strategy":{},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","resources":{}}]}}}),
    );
    object["metadata"]["uid"] = json!("u");
    object["status"] = json!({"replicas":1});
    deployments().update(None, &mut object, "kubectl-create", T1);
    let expected = json!({"f:spec":{
        "f:replicas":{},
        "f:selector":{},
        "f:template":{"f:metadata":{"f:labels":{".":{},"f:a":{}}},
            "f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},"f:image":{},"f:resources":{}}}}}}});
    let found = entry(&object, "kubectl-create", "Update");
    assert_eq!(found["fieldsV1"], expected);
    assert_eq!(
        (found["time"].as_str(), found["apiVersion"].as_str(), found["fieldsType"].as_str()),
        (Some(T1), Some("apps/v1"), Some("FieldsV1"))
    );
}

#[test]
fn entries_of_a_create_as_text_are_those_of_the_tree() {
    let of_pods = |subresource| FieldManager::builtin("", "v1", "Pod", subresource, FieldSet::of(&[&["status"]]));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"a\n\"b": "c"}},
        "spec": {"containers": [{"name": "a", "env": [{"name": "A"}]}], "nodeName": "n"}, "status": {"phase": "x"}});
    for (object, writer, subresource) in
        [(&pod, "me \"too\"", ""), (&pod, "", "resize"), (&json!({"metadata": {"name": "b"}}), "me", "")]
    {
        let manager = of_pods(subresource);
        let mut tracked = object.clone();
        manager.update(None, &mut tracked, writer, T1);
        let text = manager.of_create(object, writer, T1);
        let entries: Option<Value> = text.map(|text| serde_json::from_str(&text).expect("JSON"));
        assert_eq!(entries.as_ref(), tracked["metadata"].get("managedFields"), "{object}");
    }
}

#[test]
fn update_moves_ownership() {
    let manager = deployments();
    let mut first = deployment(json!({"replicas":3,"paused":true}));
    manager.update(None, &mut first, "a", T1);
    let mut second = first.clone();
    second["spec"]["replicas"] = json!(5);
    manager.update(Some(&first), &mut second, "b", T2);
    assert_eq!(entry(&second, "a", "Update")["fieldsV1"], json!({"f:spec":{"f:paused":{}}}));
    assert_eq!(entry(&second, "b", "Update")["fieldsV1"], json!({"f:spec":{"f:replicas":{}}}));
    let mut third = second.clone();
    manager.update(Some(&second), &mut third, "c", T3);
    assert_eq!(third, second, "a write without changes leaves no trace");
}

#[test]
fn conflict_messages() {
    let manager = deployments();
    let mut live = deployment(json!({"replicas":3,"paused":true}));
    manager.update(None, &mut live, "kubectl", T1);
    let one = manager.apply(Some(&live), &deployment(json!({"replicas":1})), "me", false, T2).expect_err("conflict");
    assert_eq!(
        one.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl\" using apps/v1: .spec.replicas"
    );
    let two = manager
        .apply(Some(&live), &deployment(json!({"replicas":1,"paused":false})), "me", false, T2)
        .expect_err("conflicts");
    assert_eq!(
        two.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl\" using apps/v1:\n- .spec.paused\n- .spec.replicas"
    );
    let forced = manager.apply(Some(&live), &deployment(json!({"replicas":1})), "me", true, T2).expect("forced");
    assert_eq!(forced["spec"]["replicas"], 1);
    assert_eq!(entry(&forced, "me", "Apply")["fieldsV1"], json!({"f:spec":{"f:replicas":{}}}));
    assert_eq!(entry(&forced, "kubectl", "Update")["fieldsV1"], json!({"f:spec":{"f:paused":{}}}));
}

#[test]
fn equal_values_are_shared_and_released() {
    let manager = deployments();
    let first = manager.apply(None, &deployment(json!({"replicas":3})), "a", false, T1).expect("a");
    let both = manager.apply(Some(&first), &deployment(json!({"replicas":3})), "b", false, T2).expect("b");
    assert_eq!(managers(&both), ["b", "a"], "an entry without a time sorts first");
    let gone = manager.apply(Some(&both), &deployment(json!({})), "a", false, T3).expect("a lets go");
    assert_eq!(gone["spec"]["replicas"], 3, "b still owns it");
    let none = manager.apply(Some(&gone), &deployment(json!({})), "b", false, T3).expect("b lets go");
    assert_eq!(none["spec"].get("replicas"), None);
}

#[test]
fn associative_lists_merge_by_key_and_prune() {
    let manager = deployments();
    let spec = |containers: Value| deployment(json!({"template":{"spec":{"containers":containers}}}));
    let first = manager
        .apply(None, &spec(json!([{"name":"a","image":"1"},{"name":"b","image":"1"}])), "a", false, T1)
        .expect("a");
    let second = manager.apply(Some(&first), &spec(json!([{"name":"s","image":"side"}])), "b", false, T2).expect("b");
    let names = |o: &Value| {
        let list = o["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
        list.iter().map(|c| c["name"].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&second), ["a", "b", "s"]);
    let third =
        manager.apply(Some(&second), &spec(json!([{"name":"b","image":"2"}])), "a", false, T3).expect("a drops one");
    assert_eq!(names(&third), ["b", "s"]);
    assert_eq!(third["spec"]["template"]["spec"]["containers"][0]["image"], "2");
    let twice = manager.apply(None, &spec(json!([{"name":"a"},{"name":"a"}])), "a", false, T1).expect_err("duplicates");
    assert_eq!(
        twice.to_string(),
        "failed to create typed patch object (default/web; apps/v1, Kind=Deployment): .spec.template.spec.containers: duplicate entries for key [name=\"a\"]"
    );
}

#[test]
fn port_keys_take_their_default() {
    let manager = FieldManager::builtin("", "v1", "Service", "", FieldSet::default());
    let service =
        |ports: Value| json!({"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"ports":ports}});
    let object = manager.apply(None, &service(json!([{"port":80}])), "a", false, T1).expect("applies");
    let fields = &entry(&object, "a", "Apply")["fieldsV1"]["f:spec"]["f:ports"];
    assert!(fields.get("k:{\"port\":80,\"protocol\":\"TCP\"}").is_some(), "{fields}");
    let mut live = object.clone();
    live["spec"]["ports"][0]["protocol"] = json!("TCP");
    let again =
        manager.apply(Some(&live), &service(json!([{"port":80,"name":"http"}])), "a", false, T2).expect("applies");
    assert_eq!(again["spec"]["ports"], json!([{"port":80,"protocol":"TCP","name":"http"}]));
}

#[test]
fn sets_and_atomics() {
    let manager = FieldManager::builtin("", "v1", "ConfigMap", "", FieldSet::default());
    let config = |f: Value| json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","finalizers":f}});
    let first = manager.apply(None, &config(json!(["a/a", "b/b"])), "x", false, T1).expect("x");
    assert_eq!(
        entry(&first, "x", "Apply")["fieldsV1"],
        json!({"f:metadata":{"f:finalizers":{"v:\"a/a\"":{},"v:\"b/b\"":{}}}})
    );
    let second = manager.apply(Some(&first), &config(json!(["b/b"])), "x", false, T2).expect("x");
    assert_eq!(second["metadata"]["finalizers"], json!(["b/b"]));
    let deployments = deployments();
    let selector = |labels: Value| deployment(json!({"selector":{"matchLabels":labels}}));
    let first = deployments.apply(None, &selector(json!({"a":"1"})), "x", false, T1).expect("x");
    let error = deployments.apply(Some(&first), &selector(json!({"b":"1"})), "y", false, T2).expect_err("atomic");
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"x\": .spec.selector");
}

#[test]
fn objects_without_managers_get_one_before_the_first_apply() {
    let manager = deployments();
    let mut live = deployment(json!({"replicas":3}));
    live["metadata"]["uid"] = json!("u");
    let mut untouched = live.clone();
    untouched["spec"]["replicas"] = json!(4);
    manager.update(Some(&live), &mut untouched, "old", T1);
    assert!(managers(&untouched).is_empty(), "not tracked until applied");
    let error = manager.apply(Some(&live), &deployment(json!({"replicas":1})), "me", false, T2).expect_err("conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn kubectl_moves_from_its_annotation_without_conflict() {
    let manager = deployments();
    let mut live = deployment(json!({"replicas":3}));
    live["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": deployment(json!({"replicas":3})).to_string()});
    manager.update(None, &mut live, "kubectl-client-side-apply", T1);
    let moved =
        manager.apply(Some(&live), &deployment(json!({"replicas":5})), "kubectl", false, T2).expect("no conflict");
    assert_eq!(moved["spec"]["replicas"], 5);
    let annotation =
        moved["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str().unwrap_or("");
    assert!(annotation.contains("\"replicas\":5"), "{annotation}");
}

#[test]
fn status_subresource_has_its_own_entry() {
    let main = deployments();
    let status = FieldManager::builtin("apps", "v1", "Deployment", "status", FieldSet::of(&[&["spec"]]));
    let mut live = deployment(json!({"replicas":3}));
    live["status"] = json!({});
    main.update(None, &mut live, "kubectl", T1);
    live["metadata"]["uid"] = json!("u");
    let mut updated = live.clone();
    updated["status"] = json!({"replicas":3});
    status.update(Some(&live), &mut updated, "controller", T2);
    let found = entry(&updated, "controller", "Update");
    assert_eq!(
        (found["subresource"].as_str(), &found["fieldsV1"]),
        (Some("status"), &json!({"f:status":{"f:replicas":{}}}))
    );
}

#[test]
fn refused_configurations() {
    let manager = deployments();
    let mut wrong = deployment(json!({}));
    wrong["apiVersion"] = json!("apps/v1beta1");
    let error = manager.apply(None, &wrong, "m", false, T1).expect_err("version");
    assert!(matches!(error, ApplyError::OtherType { .. }), "{error:?}");
    assert_eq!(error.to_string(), "invalid object type: apps/v1beta1, Kind=Deployment");
    let mut wrong = deployment(json!({}));
    wrong["kind"] = json!("Odd");
    let error = manager.apply(Some(&deployment(json!({}))), &wrong, "m", true, T1).expect_err("kind");
    assert_eq!(error.to_string(), "invalid object type: apps/v1, Kind=Odd");
    let mut managed = deployment(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    let error = manager.apply(None, &managed, "m", false, T1).expect_err("owners");
    assert_eq!((error.to_string().as_str(), error), ("metadata.managedFields must be nil", ApplyError::NamesOwners));
    let error = manager.apply(None, &deployment(json!({"foo":1})), "m", false, T1).expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "failed to create typed patch object (default/web; apps/v1, Kind=Deployment): .spec.foo: field not declared in schema"
    );
}

#[test]
fn resetting_managed_fields() {
    let manager = deployments();
    let mut live = deployment(json!({"replicas":3}));
    manager.update(None, &mut live, "a", T1);
    live["metadata"]["uid"] = json!("u");
    for reset in [json!([]), json!([{}])] {
        let mut new = live.clone();
        new["metadata"]["managedFields"] = reset;
        manager.update(Some(&live), &mut new, "b", T2);
        assert!(managers(&new).is_empty());
    }
}

#[test]
fn old_writers_are_merged() {
    let manager = FieldManager::builtin("", "v1", "ConfigMap", "", FieldSet::default());
    let mut live = json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{}});
    manager.update(None, &mut live, "w0", T1);
    for i in 0..30 {
        let mut new = live.clone();
        new["data"][format!("k{i}")] = json!("v");
        manager.update(Some(&live), &mut new, &format!("w{i:02}"), &format!("2026-01-01T00:01:{i:02}Z"));
        live = new;
    }
    let names = managers(&live);
    assert_eq!(names.len(), 10, "{names:?}");
    assert!(names.contains(&"ancient-changes") && names.contains(&"w29"));
}

#[test]
fn custom_resources_by_schema_and_without() {
    let schema = json!({"type":"object","properties":{"spec":{"type":"object","properties":{
        "items":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["id"],"items":{"type":"object","properties":{"id":{"type":"string"},"v":{"type":"integer"}}}},
        "plain":{"type":"array","items":{"type":"string"}}}}}});
    let typed = FieldManager::new(
        publish::shape(Structural::parse(&schema).unwrap().resource()),
        "x.io/v1",
        "Thing",
        "",
        FieldSet::default(),
    );
    let thing = |spec: Value| json!({"apiVersion":"x.io/v1","kind":"Thing","metadata":{"name":"t"},"spec":spec});
    let first =
        typed.apply(None, &thing(json!({"items":[{"id":"a","v":1}],"plain":["p"]})), "a", false, T1).expect("a");
    let second = typed.apply(Some(&first), &thing(json!({"items":[{"id":"b","v":2}]})), "b", false, T2).expect("b");
    assert_eq!(second["spec"]["items"], json!([{"id":"a","v":1},{"id":"b","v":2}]));
    assert_eq!(
        entry(&first, "a", "Apply")["fieldsV1"],
        json!({"f:spec":{"f:items":{"k:{\"id\":\"a\"}":{".":{},"f:id":{},"f:v":{}}},"f:plain":{}}})
    );
    let untyped = FieldManager::new(Shape::Untyped, "x.io/v1", "Thing", "", FieldSet::default());
    let mut live = thing(json!({"a":{"b":1},"l":[1]}));
    untyped.update(None, &mut live, "w", T1);
    assert_eq!(entry(&live, "w", "Update")["fieldsV1"], json!({"f:spec":{".":{},"f:a":{".":{},"f:b":{}},"f:l":{}}}));
}

#[test]
fn writes_that_only_touch_times_are_undone() {
    let manager = deployments();
    let old = manager.apply(None, &deployment(json!({"replicas":3})), "a", false, T1).expect("a");
    let mut same = old.clone();
    same["metadata"]["managedFields"][0]["time"] = json!(T2);
    kelson_patch::apply::keep_times(&old, &mut same);
    assert_eq!(same, old);
    let mut other = old.clone();
    other["metadata"]["managedFields"][0]["time"] = json!(T2);
    other["spec"]["replicas"] = json!(4);
    kelson_patch::apply::keep_times(&old, &mut other);
    assert_eq!(other["metadata"]["managedFields"][0]["time"], T2);
}

fn random_data(rng: &mut StdRng) -> Value {
    let mut data = serde_json::Map::new();
    let mut containers = Vec::new();
    for name in ["a", "b", "c", "d"] {
        if rng.random_bool(0.5) {
            data.insert(name.into(), json!(format!("{}", rng.random_range(0..3))));
        }
        if rng.random_bool(0.5) {
            containers.push(json!({"name":name,"image":format!("i{}", rng.random_range(0..3))}));
        }
    }
    if rng.random_bool(0.5) {
        containers.reverse();
    }
    let mut config = deployment(json!({"template":{}}));
    if !data.is_empty() {
        config["spec"]["template"]["metadata"] = json!({"labels":data});
    }
    if !containers.is_empty() {
        config["spec"]["template"]["spec"] = json!({"containers":containers});
    }
    if rng.random_bool(0.3) {
        config["spec"]["replicas"] = json!(rng.random_range(0..3));
    }
    config
}

fn holds(config: &Value, object: &Value) -> bool {
    match (config, object) {
        (Value::Object(c), Value::Object(o)) => {
            c.iter().all(|(k, v)| o.get(k).map_or(v == &json!({}), |found| holds(v, found)))
        }
        (Value::Array(c), Value::Array(o)) => {
            c.iter().all(|v| o.iter().any(|found| found["name"] == v["name"] && holds(v, found)))
        }
        _ => config == object,
    }
}

/// Returns the object that the server stores after an apply.
fn stored(object: Value) -> Value {
    let ty = kelson_schema::Schema::builtin().by_gvk("apps", "v1", "Deployment").expect("built in");
    kelson_codec::normalize(ty, object, false).expect("fits").value
}

#[test]
fn laws_of_apply() {
    let manager = deployments();
    for seed in 0..400 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut live: Option<Value> = None;
        let mut latest: [Option<Value>; 3] = [None, None, None];
        for _ in 0..6 {
            let who = rng.random_range(0..3);
            let config = random_data(&mut rng);
            let object = manager.apply(live.as_ref(), &config, ["x", "y", "z"][who], true, T1).expect("forced");
            let object = stored(object);
            assert!(holds(&config, &object), "seed {seed}: {config} is not in {object}");
            let again = manager
                .apply(Some(&object), &config, ["x", "y", "z"][who], false, T2)
                .expect("no conflict with itself");
            assert_eq!(stored(again), object, "seed {seed}: applying twice changes nothing");
            latest[who] = Some(config);
            live = Some(object);
        }
        // When all managers release all fields, nothing remains.
        for (who, config) in latest.iter().enumerate() {
            if config.is_some() {
                let object = manager
                    .apply(live.as_ref(), &deployment(json!({})), ["x", "y", "z"][who], true, T3)
                    .expect("lets go");
                live = Some(stored(object));
            }
        }
        let object = live.expect("live");
        let template = &object["spec"]["template"];
        let rest = [&template["metadata"]["labels"], &template["spec"]["containers"]];
        let empty = rest.iter().all(|v| v.is_null() || v == &&json!([]) || v == &&json!({}));
        assert!(empty && object["spec"].get("replicas").is_none(), "seed {seed}: left over {object}");
    }
}
