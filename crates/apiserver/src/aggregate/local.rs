//! The APIServices of what this server answers itself: one for each group version that is compiled in, with the priorities
//! that order groups in discovery, and one for each that definitions make. Upstream:
//! `pkg/controlplane/apiserver/aggregator.go`, `cmd/kube-apiserver/app/aggregator.go`.
use serde_json::{Value, json};

/// Where APIServices are.
pub const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Marks what is kept here; its value says by which of the two ways.
pub const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Priorities of a group version that a definition made.
pub const OF_DEFINITIONS: (i64, i64) = (1000, 100);

/// Priority of a group, by name.
const GROUPS: &[(&str, i64)] = &[
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("apiextensions.k8s.io", 16700),
    ("admissionregistration.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("resource.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("internal.apiserver.k8s.io", 16000),
    ("storagemigration.k8s.io", 15800),
];
/// Priority of versions that differ from [`version_priority`]'s rule.
const VERSIONS: &[(&str, &str, i64)] = &[
    ("", "v1", 1),
    ("autoscaling", "v2", 30),
    ("flowcontrol.apiserver.k8s.io", "v1", 21),
    ("resource.k8s.io", "v1", 21),
    ("resource.k8s.io", "v1beta2", 15),
    ("coordination.k8s.io", "v1beta1", 13),
    ("coordination.k8s.io", "v1alpha2", 12),
    ("admissionregistration.k8s.io", "v1beta1", 12),
    ("internal.apiserver.k8s.io", "v1alpha1", 9),
];

/// Most groups give their stable version 15, a beta one 9, an alpha one 1.
fn version_priority(group: &str, version: &str) -> i64 {
    let own = VERSIONS.iter().find(|(g, v, _)| (*g, *v) == (group, version));
    own.map_or_else(
        || {
            if version.contains("alpha") {
                1
            } else if version.contains("beta") {
                9
            } else {
                15
            }
        },
        |(.., p)| *p,
    )
}

/// The priority of a group that is compiled in.
pub fn group_priority(group: &str) -> Option<i64> {
    GROUPS.iter().find(|(g, _)| *g == group).map(|(_, priority)| *priority)
}

/// The APIService of a group version that this server answers.
pub fn service(group: &str, version: &str, priorities: (i64, i64), managed: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": format!("{version}.{group}"), "labels": {MANAGED: managed}},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": priorities.0,
            "versionPriority": priorities.1,
        },
    })
}

/// The value of [`MANAGED`] of those below, which are kept at each start.
pub const ON_START: &str = "onstart";

/// Those of what is compiled in and served. The group of APIServices itself has none.
pub fn of_builtin(is_served: impl Fn(&str, &str) -> bool) -> impl Iterator<Item = Value> {
    let all = kelson_schema::resource::group_versions().iter();
    all.filter(move |gv| is_served(gv.group, gv.version)).filter_map(|gv| {
        let group = group_priority(gv.group)?;
        Some(service(gv.group, gv.version, (group, version_priority(gv.group, gv.version)), ON_START))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_that_is_compiled_in_has_a_place() {
        let without: Vec<&str> = kelson_schema::resource::group_versions()
            .iter()
            .map(|gv| gv.group)
            .filter(|group| group_priority(group).is_none())
            .collect();
        assert_eq!(without, ["apiregistration.k8s.io"]);
        let core = of_builtin(|_, _| true).find(|s| s["spec"]["group"] == "").expect("the core group");
        assert_eq!(core["metadata"]["name"], "v1.");
        assert_eq!(
            (&core["spec"]["groupPriorityMinimum"], &core["spec"]["versionPriority"]),
            (&json!(18000), &json!(1))
        );
    }
}
