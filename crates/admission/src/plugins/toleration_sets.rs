//! Whether a toleration includes another one, and lists of tolerations without redundant ones (upstream
//! `pkg/util/tolerations`).
use kelson_meta::tree::path::{at, text};
use serde_json::Value;

/// The default operator of a toleration.
fn operator(toleration: &Value) -> &str {
    match text(toleration, &["operator"]) {
        "" => "Equal",
        given => given,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    ["key", "value", "effect"].iter().all(|f| text(a, &[f]) == text(b, &[f]))
        && operator(a) == operator(b)
        && at(a, &["tolerationSeconds"]).as_i64() == at(b, &["tolerationSeconds"]).as_i64()
}

/// Reports whether `wide` tolerates everything that `narrow` does.
pub fn contains(wide: &Value, narrow: &Value) -> bool {
    if same(wide, narrow) {
        return true;
    }
    // No key with the operator `Exists` means every key.
    let every_key = text(wide, &["key"]).is_empty() && operator(wide) == "Exists";
    if text(wide, &["key"]) != text(narrow, &["key"]) && !every_key {
        return false;
    }
    let effect = text(wide, &["effect"]);
    if !effect.is_empty() && effect != text(narrow, &["effect"]) {
        return false;
    }
    if effect == "NoExecute"
        && let Some(most) = at(wide, &["tolerationSeconds"]).as_i64()
        && at(narrow, &["tolerationSeconds"]).as_i64().is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    match operator(wide) {
        "Exists" => true,
        "Equal" => operator(narrow) == "Equal" && text(wide, &["value"]) == text(narrow, &["value"]),
        // A numeric comparison only includes itself.
        _ => false,
    }
}

/// Joins both lists, without tolerations that another one includes.
pub fn merged(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut kept: Vec<Value> = Vec::new();
    for (i, toleration) in all.iter().enumerate() {
        // The first of equal tolerations is kept.
        let later = all.iter().skip(i + 1).any(|t| !same(t, toleration) && contains(t, toleration));
        if !later && !kept.iter().any(|k| contains(k, toleration)) {
            kept.push((*toleration).clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containing() {
        let all = json!({"operator": "Exists"});
        let key = json!({"key": "k", "operator": "Exists"});
        let value = json!({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"});
        let short = json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10});
        let long = json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60});
        let ever = json!({"key": "k", "operator": "Exists", "effect": "NoExecute"});
        let implied = json!({"key": "k", "value": "v", "effect": "NoSchedule"});
        let more = json!({"key": "k", "operator": "Gt", "value": "5"});
        for (wide, narrow, want) in [
            (&all, &key, true),
            (&key, &all, false),
            (&key, &value, true),
            (&value, &key, false),
            (&value, &implied, true),
            (&implied, &value, true),
            (&long, &short, true),
            (&short, &long, false),
            (&ever, &long, true),
            (&long, &ever, false),
            (&value, &short, false),
            (&key, &more, true),
            (&more, &more, true),
            (&more, &value, false),
        ] {
            assert_eq!(contains(wide, narrow), want, "{wide} {narrow}");
        }
        let one = |toleration: &Value| vec![toleration.clone()];
        assert_eq!(merged(&one(&short), &one(&long)), one(&long));
        assert_eq!(merged(&[value.clone(), long], &[value.clone(), all.clone()]), one(&all));
        assert_eq!(merged(&one(&value), &one(&implied)), one(&value));
    }
}
