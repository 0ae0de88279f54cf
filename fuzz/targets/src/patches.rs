//! Patches: an object, a zero byte, and a patch of it.
use kelson_patch::{FieldManager, FieldSet, json_patch, merge_patch, strategic_merge_patch};
use kelson_schema::Shape;
use serde_json::Value;

use crate::input::halves;

fn two(data: &[u8]) -> Option<(Value, Value)> {
    let (object, patch) = halves(data);
    let object = kelson_codec::decode(kelson_codec::Encoding::Json, None, object, false).ok()?;
    Some((object.value, kelson_codec::decode_patch(patch, false).ok()?.value))
}

pub(crate) fn json(data: &[u8]) {
    let Some((mut object, patch)) = two(data) else { return };
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
    let kinds = [("", "v1", "Pod"), ("apps", "v1", "Deployment")];
    for (group, version, kind) in kinds {
        let _done = strategic_merge_patch(object.clone(), patch.clone(), &Shape::of_kind(group, version, kind));
    }
    let _done = strategic_merge_patch(object, patch, &Shape::Untyped);
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
