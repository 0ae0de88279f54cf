//! The cost of patches: work is linear in the input, and no patch makes a document too deep or too large. Work is
//! counted in the budget's steps, never in seconds.
use kelson_codec::{Budget, Limits, NESTING_DEPTH_MAX};
use kelson_patch::{FieldManager, FieldSet, PatchError, json_patch, json_patch_within, strategic_merge_patch_within};
use kelson_schema::Shape;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T00:00:00Z";

fn pod() -> Shape {
    Shape::of_kind("", "v1", "Pod")
}

/// Returns the steps that a strategic merge takes.
#[track_caller]
fn steps(original: Value, patch: Value) -> usize {
    let mut budget = Budget::new(Limits::TRUSTED);
    strategic_merge_patch_within(original, patch, &pod(), &mut budget).expect("applies");
    budget.spent().steps
}

fn containers(count: usize, tag: &str) -> Vec<Value> {
    (0..count).map(|i| json!({"name": format!("c{i}"), "image": tag})).collect()
}

/// Returns an example of each kind of merge, on lists of `n` elements.
fn merges(n: usize) -> Vec<(&'static str, Value, Value)> {
    let old = json!({"spec": {"containers": containers(n, "old")}});
    let order: Vec<Value> = (0..n).rev().map(|i| json!({"name": format!("c{i}")})).collect();
    let deletions: Vec<Value> = (0..n).map(|i| json!({"name": format!("c{i}"), "$patch": "delete"})).collect();
    let names: Vec<Value> = (0..n).map(|i| format!("f{i}").into()).collect();
    let others: Vec<Value> = (0..n).map(|i| format!("g{i}").into()).collect();
    let finalizers = |names: &[Value]| json!({"metadata": {"finalizers": names}});
    let retained: serde_json::Map<String, Value> = (0..n).map(|i| (format!("k{i}"), "v".into())).collect();
    let keys: Vec<&String> = retained.keys().collect();
    let mut retaining = retained.clone();
    retaining.insert("$retainKeys".into(), json!(keys));
    vec![
        ("merge by key", old.clone(), json!({"spec": {"containers": containers(n, "new")}})),
        ("order", old.clone(), json!({"spec": {"$setElementOrder/containers": order}})),
        ("delete by key", old.clone(), json!({"spec": {"containers": deletions}})),
        ("replace all", old, json!({"spec": {"containers": [{"$patch": "replace"}]}})),
        ("merge values", finalizers(&names), finalizers(&others)),
        ("delete values", finalizers(&names), json!({"metadata": {"$deleteFromPrimitiveList/finalizers": names}})),
        ("retain keys", json!({"metadata": {"labels": retained}}), json!({"metadata": {"labels": retaining}})),
    ]
}

#[test]
fn strategic_merges_are_linear() {
    for ((name, old, patch), (_, old_twice, patch_twice)) in merges(2_000).into_iter().zip(merges(4_000)) {
        let (once, twice) = (steps(old, patch), steps(old_twice, patch_twice));
        assert!(once <= 2_000 * 12, "{name}: {once} steps for 2,000 elements");
        assert!(twice <= 2 * once + 100, "{name}: {once} steps, and {twice} for twice the input");
    }
}

#[test]
fn a_patch_of_three_megabytes_is_within_the_budget_of_a_document() {
    let n = 60_000;
    let patch = json!({"spec": {"containers": containers(n, "new")}});
    assert!(patch.to_string().len() > 1_500_000);
    let mut budget = Budget::new(Limits::DOCUMENT);
    let merged = strategic_merge_patch_within(
        json!({"spec": {"containers": containers(n, "old")}}),
        patch.clone(),
        &pod(),
        &mut budget,
    );
    assert_eq!(merged, Ok(patch));
}

#[test]
fn an_apply_of_long_lists_keeps_its_order() {
    let manager = FieldManager::builtin("", "v1", "Pod", "", FieldSet::default());
    let config = |tag: &str, from: usize| {
        let mut list = containers(5_000, tag);
        list.rotate_left(from);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": list}})
    };
    let first = manager.apply(None, &config("a", 0), "me", false, NOW).expect("applies");
    let second = manager.apply(Some(&first), &config("b", 1), "me", false, NOW).expect("applies");
    assert_eq!(second["spec"]["containers"][0], json!({"name": "c1", "image": "b"}));
}

#[track_caller]
fn refused(mut document: Value, patch: Value) -> PatchError {
    json_patch(&mut document, &patch).expect_err("must be refused")
}

#[test]
fn json_patches_nest_no_deeper_than_documents() {
    let too_deep = PatchError::BadRequest("exceeded max depth".into());
    // Each operation nests the whole document one level deeper.
    let wrap = [
        json!({"op": "add", "path": "/b", "value": {}}),
        json!({"op": "move", "from": "/a", "path": "/b/a"}),
        json!({"op": "move", "from": "/b", "path": "/a"}),
    ];
    let wraps: Vec<Value> = wrap.iter().cycle().take(900).cloned().collect();
    assert_eq!(refused(json!({"a": 1}), Value::from(wraps)), too_deep);
    // The value at the end of the path is nested deeper each time.
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let path = |levels: usize| "/0".repeat(levels);
    let mut deep = nested(100);
    json_patch(&mut deep, &json!([{"op": "replace", "path": path(100), "value": nested(20)}])).expect("120 is allowed");
    assert_eq!(refused(deep.clone(), json!([{"op": "replace", "path": path(100), "value": nested(21)}])), too_deep);
    assert_eq!(refused(json!({}), json!([{"op": "add", "path": "", "value": nested(121)}])), too_deep);
    let copies = json!([{"op": "copy", "from": "/0", "path": "/0/-"}, {"op": "copy", "from": "/0", "path": "/0/-"}]);
    assert_eq!(refused(nested(NESTING_DEPTH_MAX), copies), too_deep);
}

#[test]
fn a_document_that_became_shallow_may_be_moved_about() {
    let nested = (0..110).fold(json!(1), |inner, _| json!([inner]));
    let mut document = json!({"deep": nested, "small": {"x": 1}, "a": {"b": {"c": {}}}});
    let path = "/a/b/c/d".to_owned();
    let patch = json!([{"op": "remove", "path": "/deep"}, {"op": "move", "from": "/small", "path": path},
        {"op": "copy", "from": "/a/b/c/d", "path": "/a/b/c/e"}, {"op": "move", "from": "/a", "path": "/z"}]);
    json_patch(&mut document, &patch).expect("applies");
    assert_eq!(document, json!({"z": {"b": {"c": {"d": {"x": 1}, "e": {"x": 1}}}}}));
}

#[test]
fn moving_long_lists_about_is_charged() {
    let mut document = json!({"list": vec![1; 300_000]});
    let patch = Value::from(vec![json!({"op": "add", "path": "/list/0", "value": 0}); 10_000]);
    let mut budget = Budget::new(Limits { steps: 1_000_000, ..Limits::DOCUMENT });
    let error = json_patch_within(&mut document, &patch, &mut budget).expect_err("3 billion elements moved");
    assert_eq!(error, PatchError::TooLarge("processing the document takes more than 1000000 steps".into()));
}

#[test]
fn copies_are_charged_for_memory_and_not_for_text_alone() {
    let mut document = json!({"list": vec![json!({"a": 0}); 10_000]});
    let patch: Vec<Value> = (0..30).map(|i| json!({"op": "copy", "from": "/list", "path": format!("/l{i}")})).collect();
    let error = json_patch(&mut document, &Value::from(patch)).expect_err("200 MB");
    assert_eq!(error, PatchError::TooLarge("decoding the document takes more than 18874368 bytes of memory".into()));
}

/// The work of an apply with many keys is linear in their number, whatever their order.
#[test]
fn sets_of_fields_are_merged_and_not_moved_about() {
    // In this order each element belongs before the previous one.
    let names = |tag: &str| (0..30_000).rev().map(|i| format!("{tag}{i:06}").into()).collect::<Vec<Value>>();
    let config =
        |tag: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": names(tag)}});
    let manager = FieldManager::builtin("", "v1", "Pod", "", FieldSet::default());
    let first = manager.apply(None, &config("b"), "first", false, NOW).expect("applies");
    let second = manager.apply(Some(&first), &config("a"), "second", false, NOW).expect("applies");
    let third = manager.apply(Some(&second), &config("c"), "first", false, NOW).expect("applies");
    let found = third["metadata"]["finalizers"].as_array().expect("a list");
    assert_eq!(found.len(), 60_000, "the first manager's old names went, the second's stayed");
}

/// Returns a configuration with `count` fields whose names begin with `tag`.
fn config(tag: &str, count: usize) -> Value {
    let fields: serde_json::Map<String, Value> = (0..count).map(|i| (format!("{tag}{i}"), json!({"a": 0}))).collect();
    json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}, "spec": fields})
}

/// Many small applies cannot make an object that is too large to be written at once.
#[test]
fn what_an_apply_makes_is_no_larger_than_a_document() {
    let merged = |count: usize| {
        let live = config("a", count);
        kelson_patch::apply::merge(&Shape::Untyped, &live, &config("b", 20_000), &mut Budget::new(Limits::DOCUMENT))
    };
    merged(15_000).expect("28 MB");
    let refused = merged(25_000).expect_err("36 MB").to_string();
    assert_eq!(refused, "decoding the document takes more than 33554432 bytes of memory");
}

/// An apply that would take 64 MB is rejected, whichever of the three trees is the large one.
#[test]
fn the_trees_of_an_apply_share_one_limit() {
    let manager = FieldManager::new(Shape::Untyped, "v1", "A", "", FieldSet::default());
    let apply = |live: Option<&Value>, config: &Value, name: &str| manager.apply(live, config, name, false, NOW);
    let text =
        "the apply takes more than 50331648 bytes of memory for the configuration and the object before and after it";
    let refused = |live: &Value, tag: &str, count: usize, why: &str| {
        let outcome = apply(Some(live), &config(tag, count), "second").map(drop);
        let refused = outcome.expect_err(why);
        assert!(matches!(refused, kelson_patch::ApplyError::TooLargeTogether(_)), "{why}: {refused:?}");
        assert_eq!(refused.to_string(), text, "{why}");
    };
    let first = apply(None, &config("a", 11_000), "first").expect("16 MB in two trees");
    refused(&first, "b", 14_000, "the object after it is too large");
    refused(&first, "b", 50_000, "the configuration is too large");
    refused(&config("a", 50_000), "b", 1, "the object before it is too large");
    // An apply of the same manager replaces its previous fields.
    apply(Some(&first), &config("a", 11_000), "first").map(drop).expect("nothing grows");
    apply(Some(&first), &config("b", 1_000), "second").map(drop).expect("little is added");
}
