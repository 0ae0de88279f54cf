//! Converts an answer to the corpus's form, and compares two answers.
use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::edit;
use crate::server::Answer;

/// The corpus truncates longer lists of causes.
const CAUSES_MAX: usize = 24;
/// The number of causes in a truncated list.
const CAUSES_KEPT: usize = 12;
/// Placeholders for values that the server chose.
const CHOSEN: [&str; 6] = ["<uuid>", "<now>", "<ip>", "<port>", "<x>", "<token>"];

/// The difference of Kelson's answer from the reference's.
pub struct Difference {
    /// One line that is the same for all cases with the same difference.
    pub cluster: String,
    /// `422>201` and similar: the reference's code, then Kelson's; `causes` and `object` if the codes are equal.
    pub verdict: String,
    /// The differing fields of causes or of the object, without list indices.
    pub places: BTreeSet<String>,
    /// The details of a difference.
    pub detail: String,
}

/// The difference between the case's expectation and an answer; `None` if there is none.
pub fn difference(case: &Value, base: &Value, answer: &Answer) -> Option<Difference> {
    let theirs = case["c"].as_u64().expect("a code");
    let kind = base["kind"].as_str().expect("a kind");
    let head = format!("{kind} {} {}", mode(case), field(case));
    let (their_causes, our_causes) = (their_causes(case), our_causes(&answer.body));
    let our_reason = if answer.code < 300 { "" } else { answer.body["reason"].as_str().unwrap_or_default() };
    let their_reason = case["r"].as_str().unwrap_or_default();
    if (theirs, their_reason, &their_causes) != (answer.code, our_reason, &our_causes) {
        let verdict = if theirs == answer.code { "causes".to_owned() } else { format!("{theirs}>{}", answer.code) };
        let missing: BTreeSet<String> = their_causes.difference(&our_causes).map(|c| general(c)).collect();
        let extra: BTreeSet<String> = our_causes.difference(&their_causes).map(|c| general(c)).collect();
        let cluster = format!("{head} {verdict} {their_reason}/{our_reason} missing {missing:?} extra {extra:?}");
        let message = answer.body["message"].as_str().unwrap_or_default();
        let detail = format!(
            "theirs {theirs} {their_reason} {their_causes:?}; ours {} {our_reason} {our_causes:?} {message}",
            answer.code
        );
        let places = missing.iter().chain(&extra);
        let places = places.map(|cause| cause.rsplit_once(' ').map_or("", |(field, _)| field).to_owned()).collect();
        return Some(Difference { cluster, verdict, places, detail });
    }
    let edits = case.get("o")?;
    let mut wanted = base.get("result")?.clone();
    edits.as_array().expect("edits").iter().for_each(|edit| edit::apply(&mut wanted, edit));
    without_source(&mut wanted);
    let mut got = answer.body.clone();
    without_system_fields(&mut got);
    if kind == "SelfSubjectRulesReview" {
        // The order of rules is not significant.
        [&mut wanted, &mut got].into_iter().for_each(sorted_rules);
    }
    let mut found = Vec::new();
    compare(&wanted, &got, "", &mut found);
    if found.is_empty() {
        return None;
    }
    let places: BTreeSet<String> = found.iter().map(|(at, ..)| general(at)).collect();
    let detail = found.iter().fold(String::new(), |mut text, (at, wanted, got)| {
        let _ = write!(text, "{at}: theirs {wanted}, ours {got}; ");
        text
    });
    Some(Difference { cluster: format!("{head} object {places:?}"), verdict: "object".into(), places, detail })
}

fn mode(case: &Value) -> String {
    let mode = case["m"].as_str().expect("a mode");
    match case["s"].as_str() {
        Some(subresource) => format!("{mode}/{subresource}"),
        None => mode.to_owned(),
    }
}

/// The fields that a case edits, without list indices.
pub fn field(case: &Value) -> String {
    let path = |edit: &Value| {
        let steps = edit[1].as_array().expect("a path").iter();
        let text = |step: &Value| step.as_str().map_or_else(|| "[]".to_owned(), ToOwned::to_owned);
        steps.map(text).collect::<Vec<_>>().join(".").replace(".[]", "[]")
    };
    case["e"].as_array().expect("edits").iter().map(path).collect::<Vec<_>>().join("+")
}

fn their_causes(case: &Value) -> BTreeSet<String> {
    let pair = |cause: &Value| format!("{} {}", cause[0].as_str().unwrap_or_default(), count_or_text(&cause[1]));
    case["k"].as_array().into_iter().flatten().map(pair).collect()
}

fn count_or_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

fn our_causes(body: &Value) -> BTreeSet<String> {
    let causes = body["details"]["causes"].as_array().into_iter().flatten();
    let pair = |cause: &Value| {
        let text = |key: &str| cause[key].as_str().unwrap_or_default().to_owned();
        (text("field"), text("reason"))
    };
    let all: BTreeSet<(String, String)> = causes.map(pair).collect();
    let shown = if all.len() > CAUSES_MAX { CAUSES_KEPT } else { all.len() };
    let mut out: BTreeSet<String> = all.iter().take(shown).map(|(field, reason)| format!("{field} {reason}")).collect();
    if shown < all.len() {
        out.insert(format!(" {}", all.len() - shown));
    }
    out
}

/// A path or a cause without list indices.
fn general(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        let (inside, after) = after.split_once(']').unwrap_or((after, ""));
        out.push('[');
        if inside.parse::<u64>().is_err() {
            out.push_str(inside);
        }
        out.push(']');
        rest = after;
    }
    out + rest
}

/// Removes what the corpus omits from the metadata of an object and of its templates.
fn without_system_fields(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(without_system_fields),
        Value::Object(map) => {
            if let Some(meta) = map.get_mut("metadata").and_then(Value::as_object_mut) {
                let left_out = ["uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink"];
                left_out.iter().for_each(|key| drop(meta.remove(*key)));
            }
            map.values_mut().for_each(without_system_fields);
        }
        _ => {}
    }
}

fn sorted_rules(review: &mut Value) {
    for list in ["resourceRules", "nonResourceRules"] {
        if let Some(rules) = review["status"][list].as_array_mut() {
            rules.sort_by_key(ToString::to_string);
        }
    }
}

/// The reference was built from a tree that adds a source to the volumes of service accounts.
fn without_source(value: &mut Value) {
    match value {
        Value::Array(list) => {
            list.retain(|entry| entry["configMap"]["name"] != "openshift-service-ca.crt");
            list.iter_mut().for_each(without_source);
        }
        Value::Object(map) => map.values_mut().for_each(without_source),
        _ => {}
    }
}

fn compare(wanted: &Value, got: &Value, at: &str, found: &mut Vec<(String, String, String)>) {
    match (wanted, got) {
        (Value::Object(w), Value::Object(g)) => {
            let keys: BTreeSet<&String> = w.keys().chain(g.keys()).collect();
            for key in keys {
                let below = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                match (w.get(key), g.get(key)) {
                    (Some(w), Some(g)) => compare(w, g, &below, found),
                    (w, g) => found.push((below, shown(w), shown(g))),
                }
            }
        }
        (Value::Array(w), Value::Array(g)) if w.len() == g.len() => {
            for (i, (w, g)) in w.iter().zip(g).enumerate() {
                compare(w, g, &format!("{at}[{i}]"), found);
            }
        }
        (Value::String(w), got) if CHOSEN.iter().any(|chosen| w.contains(chosen)) => {
            let got = got.as_str().map_or_else(|| got.to_string(), ToOwned::to_owned);
            let fixed = CHOSEN.iter().fold(w.clone(), |text, chosen| text.replace(chosen, "\u{0}"));
            let (start, end) = fixed.split_once('\u{0}').expect("a chosen part");
            if !(got.starts_with(start) && got.ends_with(end)) {
                found.push((at.to_owned(), w.clone(), got));
            }
        }
        (w, g) if w != g => found.push((at.to_owned(), shown(Some(w)), shown(Some(g)))),
        _ => {}
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "<absent>".to_owned(), |v| v.to_string().chars().take(300).collect())
}
