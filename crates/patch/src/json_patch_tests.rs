//! JSON patches are applied and rejected as by version 4 of upstream's library.
use crate::{JSON_PATCH_OPERATIONS_MAX, PatchError, json_patch};
use serde_json::{Value, json};

#[track_caller]
fn check(document: Value, patch: Value, expected: Result<Value, &str>) {
    let mut found = document;
    let result = json_patch(&mut found, &patch).map(|()| found).map_err(|e| e.to_string());
    assert_eq!(result, expected.map_err(str::to_owned));
}

#[test]
fn operations() {
    check(
        json!({"a":[1]}),
        json!([{"op":"add","path":"/a/0","value":0},{"op":"add","path":"/a/-","value":2}]),
        Ok(json!({"a":[0,1,2]})),
    );
    check(json!({"a":{"b~/c":1}}), json!([{"op":"remove","path":"/a/b~0~1c"}]), Ok(json!({"a":{}})));
    check(json!({"a":1}), json!([{"op":"replace","path":"/a","value":null}]), Ok(json!({"a":null})));
    check(json!({"a":{"b":1}}), json!([{"op":"move","from":"/a/b","path":"/c"}]), Ok(json!({"a":{},"c":1})));
    check(json!({"a":[1,2]}), json!([{"op":"copy","from":"/a/1","path":"/a/0"}]), Ok(json!({"a":[2,1,2]})));
    check(json!({"a":[1,2]}), json!([{"op":"test","path":"/a/-1","value":2}]), Ok(json!({"a":[1,2]})));
    check(json!({"a":1}), json!([{"op":"replace","path":"","value":{"b":2}}]), Ok(json!({"b":2})));
}

#[test]
fn refusals() {
    check(
        json!({}),
        json!([{"op":"remove","path":"/a"}]),
        Err("error in remove for path: '/a': Unable to remove nonexistent key: a: missing value"),
    );
    check(
        json!({"a": []}),
        json!([{"op":"replace","path":"/a/0","value":1}]),
        Err("replace operation does not apply: doc is missing key: /a/0: missing value"),
    );
    check(
        json!({}),
        json!([{"op":"replace","path":"/a/b","value":1}]),
        Err("replace operation does not apply: doc is missing path: /a/b: missing value"),
    );
    check(
        json!({"a": 1}),
        json!([{"op":"move","from":"/a","path":"/b/c"}]),
        Err("move operation does not apply: doc is missing destination path: /b/c: missing value"),
    );
    check(
        json!({}),
        json!([{"op":"move","from":"/a/b","path":"/b"}]),
        Err("move operation does not apply: doc is missing from path: /a/b: missing value"),
    );
    check(
        json!({}),
        json!([{"op":"add","path":"/a/b","value":1}]),
        Err("add operation does not apply: doc is missing path: \"/a/b\": missing value"),
    );
    // The root can be replaced by an object or a list. Adding to the root needs a member's name.
    check(
        json!({}),
        json!([{"op":"add","path":"","value":{}}]),
        Err("add operation does not apply: doc is missing path: \"\": missing value"),
    );
    check(
        json!({}),
        json!([{"op":"replace","path":"","value":1}]),
        Err("replace operation value must be object or array"),
    );
    check(json!({"a":1}), json!([{"op":"test","path":"/a","value":2}]), Err("testing value /a failed: test failed"));
    check(
        json!({"a":[1]}),
        json!([{"op":"add","path":"/a/5","value":2}]),
        Err("error in add for path: '/a/5': Unable to access invalid index: 5: invalid index referenced"),
    );
}

/// The expected results are those of version 4.13.0 of the library, which kube-apiserver 1.36 uses.
#[test]
fn leniency_of_the_library() {
    let pod = json!({"kind": "Pod", "metadata": {"name": "p", "labels": {"a": "1"}}, "n": null, "f": 1,
        "spec": {"containers": [{"name": "c", "args": ["x", "y"]}]}});
    let holds = |operation: Value, expected: bool| {
        let result = json_patch(&mut pod.clone(), &json!([operation]));
        assert_eq!(result.is_ok(), expected, "{operation}: {result:?}");
        if let Err(error) = result {
            assert!(matches!(error, PatchError::Unprocessable(_)), "{operation}: {error:?}");
        }
    };
    let test =
        |path: &str, value: Value, expected| holds(json!({"op": "test", "path": path, "value": value}), expected);
    test("/metadata/labels/b", json!(null), true);
    test("/metadata/labels/a", json!(null), false);
    test("/n", json!(null), true);
    test("/f", json!(1), true);
    test("/f", json!(1.0), false);
    test("/metadata/annotations/x", json!(null), false);
    test("/zz/yy", json!(null), false);
    test("/kind/a", json!(null), false);
    test("/n/a", json!(null), false);
    test("/spec/containers/0/args/5", json!(null), false);
    test("/spec/containers/0/args/-1", json!("y"), true);
    test("/spec/containers/0/args/-3", json!("x"), false);
    test("", pod.clone(), true);
    test("", json!({}), false);
    holds(json!({"op": "test", "path": "/metadata/labels/b"}), true);
    holds(json!({"op": "test", "path": "/metadata/labels/a"}), false);
    for (path, expected) in [
        ("/metadata/labels/n", true),
        ("/metadata/annotations", true),
        ("/spec/activeDeadlineSeconds", true),
        ("/nope", true),
        ("/metadata/annotations/x", false),
        ("/spec/containers/0/args/1", true),
        ("/spec/containers/0/args/2", false),
        ("/spec/containers/0/args/-", false),
        ("/spec/containers/-1", true),
        ("/kind/x", false),
        ("", false),
        ("nope", false),
        ("x/nope", true),
    ] {
        holds(json!({"op": "replace", "path": path, "value": "v"}), expected);
    }
    for operation in ["remove", "move", "copy"] {
        let from = |from: &str, expected| match operation {
            "remove" => holds(json!({"op": "remove", "path": from}), expected),
            op => holds(json!({"op": op, "from": from, "path": "/to"}), expected),
        };
        from("/metadata/labels/a", true);
        // A missing member is copied as null.
        from("/metadata/labels/b", operation == "copy");
        from("/metadata/annotations/b", false);
        from("/spec/containers/1", false);
        from("", false);
    }
    holds(json!({"op": "move", "from": "/metadata/labels", "path": "/metadata/labels/b"}), false);
    for odd in [
        json!(null),
        json!({}),
        json!({"op": "add"}),
        json!({"op": "x", "path": "/a"}),
        json!({"op": "copy", "path": "/a"}),
    ] {
        holds(odd, false);
    }
}

#[test]
fn an_absent_value_is_null() {
    let sets = |op: &str| json!([{"op": op, "path": "/a/b"}]);
    check(json!({"a": {}}), sets("add"), Ok(json!({"a": {"b": null}})));
    check(json!({"a": {}}), sets("replace"), Ok(json!({"a": {"b": null}})));
    check(json!({"a": {"b": 1}}), sets("replace"), Ok(json!({"a": {"b": null}})));
    check(json!({"a": {}}), json!([{"op": "copy", "from": "/a/x", "path": "/a/b"}]), Ok(json!({"a": {"b": null}})));
    check(json!({"a": {}}), json!([{"op": "replace", "path": "/a/b", "value": 2}]), Ok(json!({"a": {"b": 2}})));
    // A moved value is removed before its new location is looked up.
    check(
        json!([{"x": 1}, {"y": 2}]),
        json!([{"op": "move", "from": "/0", "path": "/0/z"}]),
        Ok(json!([{"y": 2, "z": {"x": 1}}])),
    );
}

#[test]
fn too_many_operations() {
    let patch = Value::Array(vec![json!({"op":"test","path":"/a","value":null}); JSON_PATCH_OPERATIONS_MAX + 1]);
    let error = json_patch(&mut json!({}), &patch).expect_err("too many");
    assert_eq!(
        error,
        PatchError::TooLarge(
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001".into()
        )
    );
}
