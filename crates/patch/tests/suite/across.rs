//! Server-side apply where entries name other versions of the kind, and through `scale`.

use crate::common::{T1, T2, T3, deployment, deployments, entry, managers};
use kelson_patch::apply::scale::{self, ReplicaPaths};
use kelson_patch::apply::{ConvertError, Converting, Versions};
use kelson_patch::{ApplyError, FieldManager, FieldSet};
use kelson_schema::Shape;
use serde_json::{Value, json};

/// Two versions of one kind: `spec.size` in v1 is `spec.scale.size` in v2.
struct Sizes(std::sync::Arc<FieldManager>, std::sync::Arc<FieldManager>);

fn things(version: &str) -> FieldManager {
    let api_version = format!("x.io/{version}");
    FieldManager::new(Shape::Untyped, &api_version, "Thing", "", FieldSet::default())
}

impl Sizes {
    fn new() -> Self {
        Self(things("v1").into(), things("v2").into())
    }
}

impl Versions for Sizes {
    fn manager(&self, api_version: &str) -> Option<std::sync::Arc<FieldManager>> {
        match api_version {
            "x.io/v1" => Some(self.0.clone()),
            "x.io/v2" => Some(self.1.clone()),
            _ => None,
        }
    }
    fn convert<'a>(&'a self, mut object: Value, to: &'a str) -> Converting<'a> {
        Box::pin(async move {
            let from = object["apiVersion"].as_str().unwrap_or_default().to_owned();
            let mut nothing = serde_json::Map::new();
            let spec = object.get_mut("spec").and_then(Value::as_object_mut).unwrap_or(&mut nothing);
            match (from.as_str(), to) {
                ("x.io/v1", "x.io/v2") => {
                    let size = spec.remove("size");
                    size.and_then(|size| spec.insert("scale".into(), json!({ "size": size })));
                }
                ("x.io/v2", "x.io/v1") => {
                    let size = spec.remove("scale").map(|mut scale| scale["size"].take());
                    size.and_then(|size| spec.insert("size".into(), size));
                }
                _ => return Err(ConvertError::NotServed { from, to: to.to_owned() }),
            }
            object["apiVersion"] = to.into();
            Ok(object)
        })
    }
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("these conversions never wait"),
    }
}

fn thing(version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("x.io/{version}"), "kind": "Thing", "metadata": {"name": "t"}, "spec": spec})
}

/// Returns the fields that a manager owns in `spec`.
fn owned(object: &Value, manager: &str) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().expect("entries");
    let entry = entries.iter().find(|entry| entry["manager"] == manager).expect("an entry");
    let fields = entry["fieldsV1"]["f:spec"].as_object().expect("fields");
    fields.keys().filter(|key| *key != ".").cloned().collect()
}

/// Converts a stored object as a store does between two requests of other versions.
fn seen_in(object: Value, version: &str) -> Value {
    ready(Sizes::new().convert(object, &format!("x.io/{version}"))).expect("converts")
}

#[test]
fn fields_of_other_versions_are_compared_there() {
    let versions = Sizes::new();
    let (v1, v2) = (things("v1"), things("v2"));
    let first = ready(v1.apply_across(None, &thing("v1", json!({"size": 3, "a": 1})), "one", false, T1, &versions));
    let live = seen_in(first.unwrap(), "v2");
    // Another value of the field under its other name is a conflict, which names the field as the owner does.
    let other = thing("v2", json!({"scale": {"size": 4}}));
    let refused = ready(v2.apply_across(Some(&live), &other, "two", false, T2, &versions)).unwrap_err();
    let ApplyError::Conflicts(conflicts) = refused else { panic!("{refused:?}") };
    assert_eq!((conflicts.len(), conflicts[0].field.as_str()), (1, ".spec.size"));
    let forced = ready(v2.apply_across(Some(&live), &other, "two", true, T2, &versions)).unwrap();
    assert_eq!(owned(&forced, "one"), ["f:a"]);
    assert_eq!(owned(&forced, "two"), ["f:scale"]);
    // A plain write in the newer version takes the field from its owner in the older version, and leaves the other
    // fields.
    let mut written = live.clone();
    written["spec"]["scale"]["size"] = json!(5);
    ready(v2.update_across(Some(&live), &mut written, "three", T3, &versions)).unwrap();
    assert_eq!(owned(&written, "one"), ["f:a"]);
    assert_eq!(owned(&written, "three"), ["f:scale"]);
    // A manager that does not change the field does not get it.
    let mut same = live.clone();
    same["spec"]["b"] = json!(true);
    ready(v2.update_across(Some(&live), &mut same, "four", T3, &versions)).unwrap();
    assert_eq!(owned(&same, "one"), ["f:a", "f:size"]);
}

#[test]
fn what_was_applied_in_another_version_is_released_there() {
    let versions = Sizes::new();
    let (v1, v2) = (things("v1"), things("v2"));
    let first = ready(v1.apply_across(None, &thing("v1", json!({"size": 3, "a": 1})), "one", false, T1, &versions));
    let live = seen_in(first.unwrap(), "v2");
    // The same configuration in the other version removes nothing, and the entry is in that version now.
    let moved = thing("v2", json!({"scale": {"size": 3}, "a": 1}));
    let kept = ready(v2.apply_across(Some(&live), &moved, "one", false, T2, &versions)).unwrap();
    assert_eq!(kept["spec"], json!({"scale": {"size": 3}, "a": 1}));
    assert_eq!(entry(&kept, "one", "Apply")["apiVersion"], "x.io/v2");
    assert_eq!(managers(&kept), ["one"]);
    // Without the size, the field that was applied as `spec.size` is removed, and nothing else.
    let less = ready(v2.apply_across(Some(&live), &thing("v2", json!({"a": 1})), "one", false, T2, &versions)).unwrap();
    assert_eq!(less["spec"]["scale"]["size"], Value::Null);
    assert_eq!(less["spec"]["a"], 1);
    // A field that another manager owns stays, whatever version that manager used.
    let shared = thing("v2", json!({"scale": {"size": 3}}));
    let shared = ready(v2.apply_across(Some(&live), &shared, "two", false, T2, &versions)).unwrap();
    let kept =
        ready(v2.apply_across(Some(&shared), &thing("v2", json!({"a": 1})), "one", false, T3, &versions)).unwrap();
    assert_eq!(kept["spec"], json!({"scale": {"size": 3}, "a": 1}));
}

#[test]
fn entries_of_versions_that_are_gone_are_forgotten() {
    let v2 = things("v2");
    let mut live = thing("v2", json!({"a": 1}));
    live["metadata"]["uid"] = json!("u");
    let of = |version: &str| {
        json!({"manager": version, "operation": "Update", "apiVersion": format!("x.io/{version}"), "time": T1,
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:a": {}}}})
    };
    live["metadata"]["managedFields"] = json!([of("v0"), of("v2")]);
    let mut new = live.clone();
    new["spec"]["b"] = json!(1);
    ready(v2.update_across(Some(&live), &mut new, "three", T2, &Sizes::new())).unwrap();
    assert_eq!(managers(&new), ["v2", "three"]);
}

#[test]
fn the_count_of_a_scale_has_the_owners_of_the_object() {
    let manager = deployments();
    let paths: ReplicaPaths =
        [("apps/v1".to_owned(), Some(vec!["spec".to_owned(), "replicas".to_owned()]))].into_iter().collect();
    let config = deployment(json!({"replicas": 3, "paused": true}));
    let mut live = manager.apply(None, &config, "owner", false, T1).unwrap();
    live["metadata"]["uid"] = json!("u");
    let view = |object: &Value| {
        let count = &object["spec"]["replicas"];
        let mut view = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web", "uid": "u"},
            "spec": {"replicas": count}, "status": {"replicas": 1}});
        scale::to_scale(object, &paths, &mut view).unwrap();
        view
    };
    let scales = FieldManager::builtin("autoscaling", "v1", "Scale", "scale", FieldSet::default());
    let before = view(&live);
    assert_eq!(entry(&before, "owner", "Apply")["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    let wanted =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 5}});
    let refused = scales.apply(Some(&before), &wanted, "scaler", false, T2).unwrap_err();
    assert_eq!(refused.to_string(), "Apply failed with 1 conflict: conflict with \"owner\": .spec.replicas");
    let scaled = scales.apply(Some(&before), &wanted, "scaler", true, T2).unwrap();
    let mut object = live.clone();
    object["spec"]["replicas"] = json!(5);
    scale::to_parent(&live, &scaled, &paths, "apps/v1", &mut object).unwrap();
    assert_eq!(entry(&object, "owner", "Apply")["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
    let scaler = entry(&object, "scaler", "Apply");
    assert_eq!(
        (scaler["fieldsV1"].clone(), &scaler["subresource"], &scaler["apiVersion"]),
        (json!({"f:spec": {"f:replicas": {}}}), &json!("scale"), &json!("apps/v1"))
    );
    // The former owner conflicts with the new one when it applies the object again.
    let again = manager.apply(Some(&object), &config, "owner", false, T3).unwrap_err();
    assert_eq!(
        again.to_string(),
        "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\": .spec.replicas"
    );
}
