//! Checks whether a write fits into the quotas of its namespace, and computes their new usage.
use std::collections::BTreeSet;

use jiff::Timestamp;
use kelson_meta::tree::{items, text};
use serde_json::Value;

use crate::amounts::Amounts;
use crate::evaluator::Evaluator;
use crate::quota::Quota;
use crate::scope::Requirement;

/// A write whose usage is charged to quotas.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The evaluator for the resource of the object.
    pub evaluator: &'a Evaluator,
    /// The group and the plural name of the resource.
    pub resource: (&'a str, &'a str),
    /// The subresource; empty if there is none.
    pub subresource: &'a str,
    /// The object after the write.
    pub new: &'a Value,
    /// The stored object; null if there is none.
    pub old: &'a Value,
    /// The time of the check.
    pub now: Timestamp,
}

/// A resource that requires a covering quota (`limitedResources` of the plug-in's configuration).
#[derive(Clone, Debug)]
pub struct Limited {
    /// The group and the plural name of the resource.
    pub resource: (String, String),
    /// Substrings of the limited resource names.
    pub contains: Vec<String>,
    /// The limited scopes.
    pub scopes: Vec<Requirement>,
}

impl Limited {
    /// Reads an entry of `limitedResources`.
    pub fn read(entry: &Value) -> Self {
        Self {
            resource: (text(&entry["apiGroup"]).to_owned(), text(&entry["resource"]).to_owned()),
            contains: items(&entry["matchContains"]).iter().map(|v| text(v).to_owned()).collect(),
            scopes: Requirement::read_all(&entry["matchScopes"]),
        }
    }
}

/// The new usage of one quota.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// The index of the quota.
    pub quota: usize,
    /// The complete usage after the write.
    pub used: Amounts,
}

/// Why a write is denied. The message is for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The write is forbidden (403).
    Forbidden(String),
    /// Upstream answers this with an internal error (500).
    Internal(String),
}

fn forbidden<T>(text: String) -> Result<T, Refusal> {
    Err(Refusal::Forbidden(text))
}

/// Returns what the write adds to a quota: the usage of a new object or of one that newly matches the quota, otherwise
/// the difference.
fn added(change: &Change<'_>, usage: &Amounts, quota: Option<&Quota>) -> Amounts {
    let is_new = change.old.is_null() || text(&change.old["metadata"]["resourceVersion"]).is_empty();
    if is_new || quota.is_some_and(|q| !q.counts(change.evaluator, change.old)) {
        return usage.not_zero();
    }
    usage.over(&change.evaluator.usage(change.old, change.now)).not_zero()
}

/// Returns the resources that the configuration limits and no quota covers.
fn uncovered(
    change: &Change<'_>,
    usage: &Amounts,
    quotas: &[Quota],
    covered: &BTreeSet<&str>,
    limited: &[Limited],
) -> Result<(), Refusal> {
    let mut names = BTreeSet::new();
    let here = |l: &&Limited| (l.resource.0.as_str(), l.resource.1.as_str()) == change.resource;
    for l in limited.iter().filter(here) {
        let positive = usage.0.iter().filter(|(_, amount)| amount.signum() > 0).map(|(n, _)| n.as_str());
        names.extend(positive.filter(|n| l.contains.iter().any(|c| n.contains(c.as_str())) && !covered.contains(n)));
    }
    if !names.is_empty() {
        let names: Vec<&str> = names.into_iter().collect();
        return forbidden(format!("insufficient quota to consume: {}", names.join(",")));
    }
    let matched = |s: &&Requirement| s.matches(change.evaluator, change.new);
    let open: Vec<String> = limited
        .iter()
        .flat_map(|l| l.scopes.iter().filter(matched))
        .filter(|s| !quotas.iter().flat_map(|q| q.scopes.iter().filter(matched)).any(|c| c.scope == s.scope))
        .map(Requirement::words)
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    Err(Refusal::Internal(format!("insufficient quota to match these scopes: [{}]", open.join(" "))))
}

/// Checks a write against the quotas of its namespace and returns their new usage.
///
/// # Errors
/// Returns why the write is denied.
pub fn check(change: &Change<'_>, quotas: &[Quota], limited: &[Limited]) -> Result<Vec<Charge>, Refusal> {
    let evaluator = change.evaluator;
    let mut counting = Vec::new();
    let mut covered = BTreeSet::new();
    for (i, quota) in quotas.iter().enumerate().filter(|(_, q)| q.counts(evaluator, change.new)) {
        let names: Vec<&str> = quota.hard.names().filter(|n| evaluator.counts(n)).collect();
        if let Err(why) = evaluator.constraints(names.iter().copied(), change.new) {
            return forbidden(format!("failed quota: {}: {why}", quota.name));
        }
        if names.iter().any(|n| !quota.used.0.contains_key(*n)) {
            return forbidden(format!("status unknown for quota: {}, resources: {}", quota.name, names.join(",")));
        }
        covered.extend(names);
        counting.push(i);
    }
    let usage = evaluator.usage(change.new, change.now);
    let negative: Vec<&str> =
        usage.0.iter().filter(|(_, amount)| amount.signum() < 0).map(|(name, _)| name.as_str()).collect();
    if !negative.is_empty() {
        return forbidden(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    let deltas: Vec<(usize, Amounts)> = counting
        .iter()
        .map(|&i| (i, added(change, &usage, Some(&quotas[i]))))
        .filter(|(_, d)| !d.0.is_empty())
        .collect();
    let nothing = if counting.is_empty() { added(change, &usage, None).0.is_empty() } else { deltas.is_empty() };
    if nothing {
        return Ok(Vec::new());
    }
    uncovered(change, &usage, quotas, &covered, limited)?;
    let mut charges = Vec::new();
    for (i, delta) in deltas {
        let quota = &quotas[i];
        let asked = delta.only(|name| quota.hard.0.contains_key(name));
        let mut used = quota.used.clone();
        used.add(&asked);
        // A status reports what has already happened.
        if change.subresource != "status" {
            let exceeds = |name: &str| asked.0.contains_key(name) && used.0.get(name) > quota.hard.0.get(name);
            let over = used.only(exceeds);
            if !over.0.is_empty() {
                let of = |a: &Amounts| a.only(|name| over.0.contains_key(name)).words();
                return forbidden(format!(
                    "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                    quota.name,
                    of(&asked),
                    of(&quota.used),
                    of(&quota.hard)
                ));
            }
        }
        if used != quota.used {
            charges.push(Charge { quota: i, used });
        }
    }
    Ok(charges)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::PodLevel;

    fn quota(hard: Value, used: Value, spec: Value) -> Quota {
        Quota::read(&json!({"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used}}))
    }

    /// Returns `used` of the only quota after the write, or the message of the denial.
    fn reported(evaluator: &Evaluator, new: &Value, old: &Value, quota: &Quota) -> String {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let change = Change { evaluator, resource: ("", "pods"), subresource: "", new, old, now };
        match check(&change, std::slice::from_ref(quota), &[]) {
            Ok(charges) => charges.first().map_or("nothing".into(), |c| c.used.words()),
            Err(Refusal::Forbidden(text) | Refusal::Internal(text)) => text,
        }
    }

    #[test]
    fn what_fits() {
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]}});
        let bare = json!({"spec": {"containers": [{"name": "c"}]}});
        let rows = [
            (&pod, json!({"pods": "2"}), json!({"pods": "1"}), json!({}), "pods=2"),
            (
                &pod,
                json!({"pods": "2", "requests.cpu": "1"}),
                json!({"pods": "2", "requests.cpu": "600m"}),
                json!({}),
                "exceeded quota: q, requested: pods=1,requests.cpu=500m, used: pods=2,requests.cpu=600m, limited: pods=2,requests.cpu=1",
            ),
            (&bare, json!({"cpu": "1"}), json!({"cpu": "0"}), json!({}), "failed quota: q: must specify cpu for: c"),
            (&pod, json!({"pods": "2"}), json!({}), json!({}), "status unknown for quota: q, resources: pods"),
            (&pod, json!({}), json!({}), json!({"hard": {"pods": "0"}}), "nothing"),
            (&pod, json!({"services": "0"}), json!({"services": "0"}), json!({}), "nothing"),
            (&pod, json!({"pods": "0"}), json!({"pods": "0"}), json!({"scopes": ["BestEffort"]}), "nothing"),
            (
                &bare,
                json!({"pods": "0"}),
                json!({"pods": "0"}),
                json!({"scopes": ["BestEffort"]}),
                "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0",
            ),
        ];
        for (pod, hard, used, spec, want) in rows {
            assert_eq!(
                reported(&Evaluator::Pods(PodLevel::Counted), pod, &Value::Null, &quota(hard, used, spec)),
                want
            );
        }
    }

    #[test]
    fn changes_are_charged_by_difference() {
        let claim = |size: &str| json!({"metadata": {"resourceVersion": "1"}, "spec": {"resources": {"requests": {"storage": size}}}});
        let q = quota(json!({"requests.storage": "3Gi"}), json!({"requests.storage": "2Gi"}), json!({}));
        let reported = |new: &str| reported(&Evaluator::Claims, &claim(new), &claim("1Gi"), &q);
        assert_eq!(reported("2Gi"), "requests.storage=3Gi");
        assert_eq!(reported("1Gi"), "nothing");
        assert_eq!(reported("512Mi"), "nothing", "what becomes less is counted by the controller");
        assert_eq!(
            reported("3Gi"),
            "exceeded quota: q, requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi"
        );
    }

    #[test]
    fn limited_resources_need_a_quota() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let pod = json!({"spec": {"priorityClassName": "high", "containers": []}});
        let change = Change {
            evaluator: &Evaluator::Pods(PodLevel::Counted),
            resource: ("", "pods"),
            subresource: "",
            new: &pod,
            old: &Value::Null,
            now,
        };
        let by_name = Limited::read(&json!({"resource": "pods", "matchContains": ["pods"]}));
        let scope = json!([{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]);
        let by_scope = Limited::read(&json!({"resource": "pods", "matchScopes": scope}));
        assert_eq!(
            check(&change, &[], std::slice::from_ref(&by_name)),
            Err(Refusal::Forbidden("insufficient quota to consume: count/pods,pods".into()))
        );
        assert_eq!(
            check(&change, &[], std::slice::from_ref(&by_scope)),
            Err(Refusal::Internal("insufficient quota to match these scopes: [{PriorityClass In [high]}]".into()))
        );
        let covering = quota(
            json!({"pods": "5", "count/pods": "5"}),
            json!({"pods": "0", "count/pods": "0"}),
            json!({"scopeSelector": {"matchExpressions": scope}}),
        );
        assert_eq!(check(&change, &[covering], &[by_name, by_scope]).unwrap().len(), 1);
    }
}
