//! The pod failure policy (KEP-3329) and the success policy (KEP-3998) of jobs.
use super::indexes::Indexes;
use crate::views::{ContainerStatusView, OnExitCodes, PodFailurePolicy, PodView, SuccessPolicy, TerminatedView};

/// The effect of the policy on one failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The failure counts, because of a rule (`true`) or because no rule matched (`false`).
    Count(bool),
    /// The failure does not count.
    Ignore,
    /// The pod's index failed permanently.
    FailIndex,
    /// The job failed with this message.
    FailJob(String),
}

impl Failure {
    /// Whether the failure counts towards the back-off limits.
    pub fn counts(&self) -> bool {
        !matches!(self, Self::Ignore)
    }

    /// Returns the API name of the action, if a rule matched.
    pub fn action(&self) -> Option<&'static str> {
        match self {
            Self::Count(false) => None,
            Self::Count(true) => Some("Count"),
            Self::Ignore => Some("Ignore"),
            Self::FailIndex => Some("FailIndex"),
            Self::FailJob(_) => Some("FailJob"),
        }
    }
}

/// Returns the effect of the first rule that matches a failed pod.
pub fn judge(policy: Option<&PodFailurePolicy>, pod: &PodView) -> Failure {
    for (i, rule) in policy.into_iter().flat_map(|p| p.rules.iter().enumerate()) {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let matched = match &rule.on_exit_codes {
            Some(codes) => exited(pod, codes).map(|t| {
                let (container, code) = (&t.name, t.exit_code);
                format!("Container {container} for pod {namespace}/{name} failed with exit code {code}")
            }),
            None => {
                let matches = |c: &&crate::views::PodConditionView| {
                    rule.on_pod_conditions.iter().any(|p| *c.r#type == p.r#type && *c.status == p.status)
                };
                let found = pod.status.conditions.iter().find(matches);
                found.map(|c| format!("Pod {namespace}/{name} has condition {}", c.r#type))
            }
        };
        let Some(what) = matched else { continue };
        match rule.action.as_str() {
            "Ignore" => return Failure::Ignore,
            "FailIndex" => return Failure::FailIndex,
            "Count" => return Failure::Count(true),
            "FailJob" => return Failure::FailJob(format!("{what} matching FailJob rule at index {i}")),
            // An action of a later API version is ignored.
            _ => {}
        }
    }
    Failure::Count(false)
}

/// Returns the first container whose exit code matches the requirement. Init containers are checked last.
fn exited<'a>(pod: &'a PodView, wanted: &OnExitCodes) -> Option<&'a TerminatedView> {
    let matches = |c: &'a ContainerStatusView| {
        let t = c.terminated.as_deref()?;
        let named = wanted.container_name.as_ref().is_none_or(|n| *n == t.name);
        let listed = wanted.values.contains(&t.exit_code);
        let fits = match wanted.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        (named && t.exit_code != 0 && fits).then_some(t)
    };
    pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses).find_map(matches)
}

/// Returns the message of the first success policy rule that is met.
pub fn succeeded(policy: Option<&SuccessPolicy>, completions: u32, done: &Indexes) -> Option<String> {
    if done.is_empty() {
        return None;
    }
    let fulfilled = |(i, rule): (usize, &crate::views::SuccessRule)| {
        let count = rule.succeeded_count.map(|n| usize::try_from(n).unwrap_or(0));
        let met = match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = Indexes::parse(text, completions);
                let got = wanted.common(done);
                !wanted.is_empty() && (got == wanted.len() || count.is_some_and(|n| got >= n))
            }
            None => count.is_some_and(|n| done.len() >= n),
        };
        met.then(|| format!("Matched rules at index {i}"))
    };
    policy?.rules.iter().enumerate().find_map(fulfilled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> PodView {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "status": status})).unwrap()
    }

    fn ended(name: &str, code: i32) -> Value {
        json!({"name": name, "state": {"terminated": {"exitCode": code}}})
    }

    #[test]
    fn failures() {
        let codes = |op: &str, values: &[i32], action: &str| json!({"rules": [{"action": action, "onExitCodes": {"operator": op, "values": values}}]});
        let of = |name: &str| {
            json!({"rules": [{"action": "Ignore", "onExitCodes":
                {"containerName": name, "operator": "In", "values": [3]}}]})
        };
        let on = |kind: &str, status: &str, action: &str| json!({"rules": [{"action": action, "onPodConditions": [{"type": kind, "status": status}]}]});
        let main = json!({"containerStatuses": [ended("a", 0), ended("b", 3)]});
        let init = json!({"initContainerStatuses": [ended("i", 3)]});
        let running = json!({"containerStatuses": [{"name": "a", "state": {"running": {}}}]});
        let gone = json!({"conditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let both = json!({"rules": [
            {"action": "Later", "onExitCodes": {"operator": "In", "values": [3]}},
            {"action": "Count", "onExitCodes": {"operator": "In", "values": [3]}},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]});
        let job = |text: &str| Failure::FailJob(text.to_owned());
        let rows = [
            (codes("In", &[3], "Ignore"), &main, Failure::Ignore),
            (codes("In", &[0, 4], "Ignore"), &main, Failure::Count(false)),
            (codes("NotIn", &[4], "FailIndex"), &main, Failure::FailIndex),
            (codes("NotIn", &[3], "Ignore"), &main, Failure::Count(false)),
            (
                codes("In", &[3], "FailJob"),
                &main,
                job("Container b for pod n/p failed with exit code 3 matching FailJob rule at index 0"),
            ),
            (codes("In", &[3], "Count"), &init, Failure::Count(true)),
            (codes("In", &[3], "Ignore"), &running, Failure::Count(false)),
            (of("a"), &main, Failure::Count(false)),
            (of("b"), &main, Failure::Ignore),
            (on("DisruptionTarget", "True", "Ignore"), &gone, Failure::Ignore),
            (on("DisruptionTarget", "False", "Ignore"), &gone, Failure::Count(false)),
            (
                on("DisruptionTarget", "True", "FailJob"),
                &gone,
                job("Pod n/p has condition DisruptionTarget matching FailJob rule at index 0"),
            ),
            (both, &main, Failure::Count(true)),
        ];
        for (policy, status, want) in rows {
            let parsed: PodFailurePolicy = serde_json::from_value(policy.clone()).unwrap();
            assert_eq!(judge(Some(&parsed), &pod(status.clone())), want, "{policy} {status}");
        }
        assert_eq!(judge(None, &pod(main)), Failure::Count(false));
    }

    #[test]
    fn successes() {
        let rows = [
            (json!([{"succeededIndexes": "0-2"}]), "0-2", Some(0)),
            (json!([{"succeededIndexes": "0-2"}]), "0,1", None),
            (json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), "0,1", Some(0)),
            (json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), "0,5", None),
            (json!([{"succeededCount": 2}]), "0,5", Some(0)),
            (json!([{"succeededCount": 3}, {"succeededIndexes": "5"}]), "0,5", Some(1)),
            (json!([{"succeededIndexes": "x"}]), "0,5", None),
            (json!([{"succeededCount": 0}]), "", None),
        ];
        for (rules, done, want) in rows {
            let policy: SuccessPolicy = serde_json::from_value(json!({"rules": rules})).unwrap();
            let got = succeeded(Some(&policy), 10, &Indexes::parse(done, 10));
            assert_eq!(got, want.map(|i: usize| format!("Matched rules at index {i}")), "{rules} {done}");
        }
        assert_eq!(succeeded(None, 10, &Indexes::parse("1", 10)), None);
    }
}
