//! Pod failure policy (KEP-3329), success policy (KEP-3998) and replacement policy (KEP-3939) of jobs.
use kelson_meta::is_qualified_name;
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{int, int0, items, present, text};

const FAILURE_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const CONDITION_PATTERNS_MAX: usize = 20;
const SUCCESS_RULES_MAX: usize = 20;
const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];

/// Validates the three policies of a job's spec at `p`.
pub fn check(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    if present(&spec["podFailurePolicy"]) {
        failure(spec, &p.child("podFailurePolicy"), e);
    }
    let success = &spec["successPolicy"];
    if present(success) {
        if text(&spec["completionMode"]) == "Indexed" {
            self::success(spec, &p.child("successPolicy"), e);
        } else {
            e.invalid(&p.child("successPolicy"), success, "requires indexed completion mode");
        }
    }
    let allowed: &[&str] =
        if present(&spec["podFailurePolicy"]) { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    rules::optional_one_of(&spec["podReplacementPolicy"], &p.child("podReplacementPolicy"), allowed, e);
}

fn failure(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let list = items(&spec["podFailurePolicy"]["rules"]);
    let at = p.child("rules");
    if list.len() > FAILURE_RULES_MAX {
        e.too_many(&at, list.len(), FAILURE_RULES_MAX);
    }
    for (i, r) in list.iter().enumerate() {
        let at = at.index(i);
        let action = text(&r["action"]);
        if action.is_empty() {
            e.required(&at.child("action"), &format!("valid values: {ACTIONS:?}").replace(',', ""));
        } else if !ACTIONS.contains(&action) {
            e.not_supported(&at.child("action"), action, ACTIONS);
        } else if action == "FailIndex" && !present(&spec["backoffLimitPerIndex"]) {
            e.invalid(&at.child("action"), action, "requires the backoffLimitPerIndex to be set");
        }
        let (codes, conditions) = (&r["onExitCodes"], items(&r["onPodConditions"]));
        if present(codes) {
            exit_codes(codes, spec, &at.child("onExitCodes"), e);
            if !conditions.is_empty() {
                e.invalid_unseen(&at, "specifying both OnExitCodes and OnPodConditions is not supported");
            }
        } else if conditions.is_empty() {
            e.invalid_unseen(&at, "specifying one of OnExitCodes and OnPodConditions is required");
        }
        let list = at.child("onPodConditions");
        if conditions.len() > CONDITION_PATTERNS_MAX {
            e.too_many(&list, conditions.len(), CONDITION_PATTERNS_MAX);
        }
        for (j, c) in conditions.iter().enumerate() {
            let at = list.index(j);
            let kind = text(&c["type"]);
            e.invalid_each(&at.child("type"), kind, is_qualified_name(kind));
            rules::one_of(&c["status"], &at.child("status"), &["False", "True", "Unknown"], e);
        }
    }
}

fn exit_codes(codes: &Value, spec: &Value, p: &Path<'_>, e: &mut Errors) {
    rules::one_of(&codes["operator"], &p.child("operator"), &["In", "NotIn"], e);
    if let Some(name) = codes["containerName"].as_str() {
        let pod = &spec["template"]["spec"];
        let mut all = items(&pod["containers"]).iter().chain(items(&pod["initContainers"]));
        if !all.any(|c| text(&c["name"]) == name) {
            e.invalid(
                &p.child("containerName"),
                name,
                "must be one of the container or initContainer names in the pod template",
            );
        }
    }
    let values = items(&codes["values"]);
    let at = p.child("values");
    if values.is_empty() {
        e.invalid(&at, values, "at least one value is required");
    } else if values.len() > EXIT_CODES_MAX {
        e.too_many(&at, values.len(), EXIT_CODES_MAX);
    }
    for (i, v) in values.iter().enumerate() {
        if int0(v) == 0 && text(&codes["operator"]) == "In" {
            e.invalid(&at.index(i), v, "must not be 0 for the In operator");
        }
        if values[..i].contains(v) {
            e.duplicate(&at.index(i), v);
        }
    }
    if values.windows(2).any(|w| int0(&w[0]) > int0(&w[1])) {
        e.invalid(&at, values, "must be ordered");
    }
}

fn success(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let list = items(&spec["successPolicy"]["rules"]);
    let at = p.child("rules");
    if list.is_empty() {
        e.required(&at, "at least one rules must be specified when the successPolicy is specified");
    }
    if list.len() > SUCCESS_RULES_MAX {
        e.too_many(&at, list.len(), SUCCESS_RULES_MAX);
    }
    let completions = int0(&spec["completions"]);
    for (i, r) in list.iter().enumerate() {
        let at = at.index(i);
        let (count, indexes) = (int(&r["succeededCount"]), r["succeededIndexes"].as_str());
        if count.is_none() && indexes.is_none() {
            e.required(&at, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut total = None;
        if let Some(text) = indexes {
            match count_indexes(text, completions) {
                Ok(n) => total = Some(n),
                Err(why) => {
                    // An invalid value has no indexes.
                    total = Some(0);
                    e.invalid(&at.child("succeededIndexes"), text, format!("error parsing succeededIndexes: {why}"));
                }
            }
        }
        let Some(n) = count else { continue };
        let at = at.child("succeededCount");
        rules::not_negative(&r["succeededCount"], &at, e);
        if n > completions {
            let why = format!("must be less than or equal to {completions} (the number of specified completions)");
            e.invalid(&at, n, why);
        }
        if let Some(t) = total.filter(|t| n > *t) {
            e.invalid(
                &at,
                n,
                format!(
                    "must be less than or equal to {t} (the number of indexes in the specified succeededIndexes field)"
                ),
            );
        }
    }
}

/// Returns the number of indexes in `1,3-5,7`; they must be ascending and below `completions`.
pub fn count_indexes(s: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0, -1i64);
    for part in s.split(',').filter(|p| !p.is_empty()) {
        let number = |t: &str| {
            t.parse::<i64>()
                .map_err(|_| format!("cannot convert string to integer for index: {t:?}"))
                .and_then(|n| if n >= completions { Err(format!("too large index: {t:?}")) } else { Ok(n) })
        };
        let (from, to) = match part.split_once('-') {
            Some((a, b)) => (number(a)?, number(b)?),
            None => (number(part)?, number(part)?),
        };
        if from <= last || to < from {
            return Err(format!("non-increasing order, previous: {last}, current: {from}"));
        }
        total += to - from + 1;
        last = to;
    }
    Ok(total)
}

/// Returns the first index that both strings contain; both must be valid.
pub fn common_index(a: &str, b: &str) -> Option<i64> {
    let part = |p: &str| {
        let (from, to) = p.split_once('-').unwrap_or((p, p));
        Some((from.parse::<i64>().ok()?, to.parse::<i64>().ok()?))
    };
    let ranges = |t: &str| t.split(',').filter_map(part).collect::<Vec<_>>();
    let (a, b) = (ranges(a), ranges(b));
    let common = a.iter().flat_map(|x| b.iter().map(move |y| (x.0.max(y.0), x.1.min(y.1))));
    common.filter(|(from, to)| from <= to).map(|(from, _)| from).min()
}

#[cfg(test)]
mod tests {
    use super::count_indexes;

    #[test]
    fn indexes() {
        assert_eq!(count_indexes("1,3-5,7", 10), Ok(5));
        assert_eq!(count_indexes("", 10), Ok(0));
        for bad in ["3,1", "5-4", "x", "10"] {
            assert!(count_indexes(bad, 10).is_err(), "{bad}");
        }
    }
}
