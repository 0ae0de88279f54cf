//! Patches: an object, a zero byte, and a patch of it.
use kelson_patch::{FieldManager, FieldSet, json_patch, merge_patch, strategic_merge_patch};
use kelson_schema::Shape;
use serde_json::Value;

use crate::input::halves;

fn two(data: &[u8]) -> Option<(Value, Value)> {
    let (object, patch) = halves(data);
    let read = |bytes: &[u8]| kelson_codec::decode(kelson_codec::Encoding::Json, None, bytes, false).ok();
    Some((read(object)?.value, read(patch)?.value))
}

pub(crate) fn json(data: &[u8]) {
    // A patch is a list, which is no object: it is read as one would be within an object.
    let (object, patch) = halves(data);
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let (Some(mut object), Some(patch)) = (read(object), read(patch)) else { return };
    let _done = json_patch(&mut object, &patch);
    // What came of it can be written and dropped: it is not too deep.
    let _bytes = kelson_codec::canonical_json(&object);
}

pub(crate) fn merge(data: &[u8]) {
    let Some((mut object, patch)) = two(data) else { return };
    merge_patch(&mut object, patch.clone());
    let once = object.clone();
    merge_patch(&mut object, patch);
    assert_eq!(once, object, "a merge patch twice is the patch once");
}

pub(crate) fn strategic(data: &[u8]) {
    let Some((object, patch)) = two(data) else { return };
    for shape in [Shape::of_kind("", "v1", "Pod"), Shape::of_kind("apps", "v1", "Deployment"), Shape::Untyped] {
        let _done = strategic_merge_patch(object.clone(), patch.clone(), &shape);
    }
}

pub(crate) fn apply(data: &[u8]) {
    let Some((live, config)) = two(data) else { return };
    if !live.is_object() || !config.is_object() {
        return;
    }
    let manager = FieldManager::builtin("", "v1", "Pod", "", FieldSet::default());
    for live in [None, Some(&live)] {
        if let Ok(done) = manager.apply(live, &config, "fuzz", true, "2026-01-01T00:00:00Z") {
            let mut again = done.clone();
            manager.update(Some(&done), &mut again, "other", "2026-01-01T00:00:01Z");
        }
    }
}
