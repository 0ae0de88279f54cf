//! The APIServices of what this server answers itself: one for each group version that is compiled in, with the priorities
//! that order groups in discovery, and one for each that definitions make. Upstream:
//! `pkg/controlplane/apiserver/aggregator.go`, `cmd/kube-apiserver/app/aggregator.go`.
use serde_json::{Value, json};

/// Where APIServices are.
pub const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Marks what is kept here; its value says by which of the two ways.
pub const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Priorities of a group version that a definition made.
pub const OF_DEFINITIONS: (u32, u32) = (1000, 100);

/// The APIService of a group version that this server answers.
pub fn service(group: &str, version: &str, priorities: (u32, u32), managed: &str) -> Value {
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
    let all = all.filter(|gv| gv.group_priority > 0).filter(move |gv| is_served(gv.group, gv.version));
    all.map(|gv| service(gv.group, gv.version, (gv.group_priority, gv.version_priority), ON_START))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_that_is_compiled_in_has_a_place() {
        let all = kelson_schema::resource::group_versions().iter();
        let without: Vec<&str> = all.filter(|gv| gv.group_priority == 0).map(|gv| gv.group).collect();
        assert_eq!(without, ["apiregistration.k8s.io"]);
        let core = of_builtin(|_, _| true).find(|s| s["spec"]["group"] == "").expect("the core group");
        assert_eq!(core["metadata"]["name"], "v1.");
        assert_eq!(
            (&core["spec"]["groupPriorityMinimum"], &core["spec"]["versionPriority"]),
            (&json!(18000), &json!(1))
        );
    }
}
