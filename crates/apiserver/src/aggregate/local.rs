//! The APIServices of group versions that this server serves: one for each built-in group version, with the priorities that order
//! groups in discovery, and one for each group version of definitions. Upstream: `pkg/controlplane/apiserver/aggregator.go`,
//! `cmd/kube-apiserver/app/aggregator.go`.
use serde_json::{Value, json};

/// The API path of APIServices.
pub const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Label of APIServices that this server manages: [`ON_START`], or `true` for those of definitions.
pub const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Group and version priority of a group version from a definition.
pub const DEFINITION_PRIORITIES: (u32, u32) = (1000, 100);

/// The APIService of a group version that this server serves.
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

/// The value of [`MANAGED`] for built-in group versions, which are updated at each start.
pub const ON_START: &str = "onstart";

/// The APIServices of built-in group versions that are served. The group of APIServices itself has none.
pub fn builtin_services(is_served: impl Fn(&str, &str) -> bool) -> impl Iterator<Item = Value> {
    let all = kelson_schema::resource::group_versions().iter();
    let all = all.filter(|gv| gv.group_priority > 0).filter(move |gv| is_served(gv.group, gv.version));
    all.map(|gv| service(gv.group, gv.version, (gv.group_priority, gv.version_priority), ON_START))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_group_has_a_priority() {
        let all = kelson_schema::resource::group_versions().iter();
        let without: Vec<&str> = all.filter(|gv| gv.group_priority == 0).map(|gv| gv.group).collect();
        assert_eq!(without, ["apiregistration.k8s.io"]);
        let core = builtin_services(|_, _| true).find(|s| s["spec"]["group"] == "").expect("the core group");
        assert_eq!(core["metadata"]["name"], "v1.");
        assert_eq!(
            (&core["spec"]["groupPriorityMinimum"], &core["spec"]["versionPriority"]),
            (&json!(18000), &json!(1))
        );
    }
}
