//! Strategic merge patches as kubectl makes them: apply, set image, label, edit, scale, and every directive.
use kelson_patch::strategic_merge_patch;
use kelson_schema::Shape;
use serde_json::{Value, json};

#[track_caller]
fn check(kind: (&str, &str, &str), original: Value, patch: Value, expected: Value) {
    let shape = Shape::of_kind(kind.0, kind.1, kind.2);
    let found = strategic_merge_patch(original, patch, &shape).expect("applies");
    assert_eq!(found, expected);
}

const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
const POD: (&str, &str, &str) = ("", "v1", "Pod");
const SERVICE: (&str, &str, &str) = ("", "v1", "Service");

fn containers(list: Value) -> Value {
    json!({"spec": {"template": {"spec": {"containers": list}}}})
}

#[test]
fn set_image_merges_the_named_container() {
    check(
        DEPLOYMENT,
        containers(json!([{"name":"a","image":"a:1","args":["x"]},{"name":"b","image":"b:1"}])),
        containers(json!([{"name":"b","image":"b:2"}])),
        containers(json!([{"name":"a","image":"a:1","args":["x"]},{"name":"b","image":"b:2"}])),
    );
}

#[test]
fn new_elements_go_behind_and_order_is_set() {
    check(
        DEPLOYMENT,
        containers(json!([{"name":"a"},{"name":"b"}])),
        json!({"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"c"},{"name":"a"}],"containers":[{"name":"c","image":"c"}]}}}}),
        containers(json!([{"name":"c","image":"c"},{"name":"a"},{"name":"b"}])),
    );
}

#[test]
fn server_only_elements_keep_their_place() {
    check(
        POD,
        json!({"spec":{"volumes":[{"name":"injected"},{"name":"one"},{"name":"two"}]}}),
        json!({"spec":{"$setElementOrder/volumes":[{"name":"two"},{"name":"one"}]}}),
        json!({"spec":{"volumes":[{"name":"injected"},{"name":"two"},{"name":"one"}]}}),
    );
}

#[test]
fn delete_directive_removes_an_element() {
    check(
        DEPLOYMENT,
        containers(json!([{"name":"a"},{"name":"b"}])),
        containers(json!([{"name":"a","$patch":"delete"}])),
        containers(json!([{"name":"b"}])),
    );
}

#[test]
fn replace_directive_in_a_list_replaces_it() {
    check(
        DEPLOYMENT,
        containers(json!([{"name":"a"},{"name":"b"}])),
        containers(json!([{"$patch":"replace"},{"name":"c"}])),
        containers(json!([{"name":"c"}])),
    );
}

#[test]
fn replace_and_delete_directives_in_maps() {
    check(
        POD,
        json!({"metadata":{"labels":{"a":"1","b":"2"}}}),
        json!({"metadata":{"labels":{"$patch":"replace","c":"3"}}}),
        json!({"metadata":{"labels":{"c":"3"}}}),
    );
    check(
        POD,
        json!({"metadata":{"labels":{"a":"1"}}}),
        json!({"metadata":{"labels":{"$patch":"delete"}}}),
        json!({"metadata":{"labels":{}}}),
    );
}

#[test]
fn labels_and_null() {
    check(
        POD,
        json!({"metadata":{"labels":{"a":"1","b":"2"}}}),
        json!({"metadata":{"labels":{"a":null,"c":"3"}}}),
        json!({"metadata":{"labels":{"b":"2","c":"3"}}}),
    );
    check(
        POD,
        json!({"metadata":{}}),
        json!({"metadata":{"labels":{"a":null,"c":"3"}}}),
        json!({"metadata":{"labels":{"c":"3"}}}),
    );
}

#[test]
fn service_ports_merge_by_port() {
    check(
        SERVICE,
        json!({"spec":{"ports":[{"port":80,"targetPort":8080},{"port":443}]}}),
        json!({"spec":{"ports":[{"port":80,"targetPort":9090}]}}),
        json!({"spec":{"ports":[{"port":80,"targetPort":9090},{"port":443}]}}),
    );
}

#[test]
fn primitive_lists() {
    // Finalizers merge as a set, new ones first (as upstream has it); args are replaced.
    check(
        POD,
        json!({"metadata":{"finalizers":["a","b"]}}),
        json!({"metadata":{"finalizers":["c"]}}),
        json!({"metadata":{"finalizers":["c","a","b"]}}),
    );
    check(
        POD,
        json!({"metadata":{"finalizers":["a","b"]}}),
        json!({"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}),
        json!({"metadata":{"finalizers":["b"]}}),
    );
    check(
        POD,
        json!({"spec":{"containers":[{"name":"a","args":["x","y"]}]}}),
        json!({"spec":{"containers":[{"name":"a","args":["z"]}]}}),
        json!({"spec":{"containers":[{"name":"a","args":["z"]}]}}),
    );
}

#[test]
fn retain_keys_switches_a_union() {
    check(
        DEPLOYMENT,
        json!({"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":1}}}}),
        json!({"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}),
        json!({"spec":{"strategy":{"type":"Recreate"}}}),
    );
    check(
        POD,
        json!({"spec":{"volumes":[{"name":"v","hostPath":{"path":"/x"}}]}}),
        json!({"spec":{"volumes":[{"name":"v","$retainKeys":["name","emptyDir"],"emptyDir":{}}]}}),
        json!({"spec":{"volumes":[{"name":"v","emptyDir":{}}]}}),
    );
}

#[test]
fn refusals() {
    let shape = Shape::of_kind(DEPLOYMENT.0, DEPLOYMENT.1, DEPLOYMENT.2);
    let refuse = |original: Value, patch: Value| {
        strategic_merge_patch(original, patch, &shape).expect_err("refused").to_string()
    };
    let no_key = refuse(containers(json!([{"name":"a"}])), containers(json!([{"image":"x"}])));
    assert_eq!(no_key, "map: map[image:x] does not contain declared merge key: name");
    let keys = refuse(
        json!({"spec":{"strategy":{"type":"x"}}}),
        json!({"spec":{"strategy":{"$retainKeys":["a"],"type":"y"}}}),
    );
    assert_eq!(keys, "invalid patch format of retainKeys");
    let directive = refuse(json!({"spec":{}}), json!({"spec":{"$patch":"explode"}}));
    assert!(directive.starts_with("unknown patch type"), "{directive}");
    assert!(strategic_merge_patch(json!({}), json!({}), &Shape::Untyped).is_err());
}
