//! Renders a patched object for an error message: members that the patch touched are sorted, others in the order of responses. Upstream's
//! library parses only what a patch touches and leaves the rest as raw JSON.
use std::collections::BTreeMap;

use kelson_patch::PatchType;
use kelson_schema::TypeId;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The JSON of a patched object; `ty` is its type before the patch and `body` the patch.
pub(super) fn render(kind: PatchType, body: &Value, ty: Option<TypeId>, object: &Value) -> String {
    let touched = match kind {
        PatchType::Json => paths(body),
        _ => body.clone(),
    };
    let mut json = Vec::new();
    match ty {
        Some(ty) => kelson_codec::json::write_declared(ty, object, &mut json),
        None => json = kelson_codec::canonical_json(object),
    }
    let text = String::from_utf8(json).unwrap_or_default();
    // With HTML escapes, as Go's encoder writes it.
    sorted(&text, &touched).replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// The containers in the paths of a JSON patch's operations, as a tree.
fn paths(operations: &Value) -> Value {
    let mut tree = Value::Object(Map::new());
    let all = operations.as_array().into_iter().flatten();
    for path in all.flat_map(|operation| [operation["path"].as_str(), operation["from"].as_str()]).flatten() {
        let mut containers: Vec<&str> = path.split('/').skip(1).collect();
        containers.pop();
        let mut at = &mut tree;
        for token in containers {
            let token = token.replace("~1", "/").replace("~0", "~");
            let Some(members) = at.as_object_mut() else { break };
            at = members.entry(token).or_insert_with(|| Value::Object(Map::new()));
        }
    }
    tree
}

fn sorted(text: &str, touched: &Value) -> String {
    let Some(touched) = touched.as_object() else { return text.to_owned() };
    let below =
        |key: &str, raw: &RawValue| touched.get(key).map_or_else(|| raw.get().to_owned(), |t| sorted(raw.get(), t));
    if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        let members = members.iter().map(|(key, raw)| format!("{}:{}", Value::from(key.as_str()), below(key, raw)));
        return format!("{{{}}}", members.collect::<Vec<_>>().join(","));
    }
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
        let items = items.iter().enumerate().map(|(i, raw)| below(&i.to_string(), raw));
        return format!("[{}]", items.collect::<Vec<_>>().join(","));
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_that_the_patch_touched_are_sorted() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"x": "<"}, "annotations": {}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "priority": "x"}});
        let ty = kelson_schema::Schema::builtin().by_api_version("v1", "Pod");
        let check =
            |kind: PatchType, body: Value, want: &str| assert_eq!(render(kind, &body, ty, &pod), want, "{body}");
        check(
            PatchType::Merge,
            json!({"spec": {"priority": "x", "containers": [1]}}),
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"\u003c"},"annotations":{}},"spec":{"containers":[{"name":"c","image":"i"}],"priority":"x"}}"#,
        );
        check(
            PatchType::Json,
            json!([{"op": "add", "path": "/spec/priority", "value": "x"}, {"op": "copy", "from": "/spec/containers/0/image", "path": "/metadata/name"}]),
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{},"labels":{"x":"\u003c"},"name":"a"},"spec":{"containers":[{"image":"i","name":"c"}],"priority":"x"}}"#,
        );
        assert_eq!(render(PatchType::Json, &json!([{"op": "replace", "path": "", "value": []}]), ty, &json!([])), "[]");
    }
}
