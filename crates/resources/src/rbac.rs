//! RBAC: roles, cluster roles and their bindings (rbac.authorization.k8s.io). The auth crate checks who may grant
//! permissions.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_subdomain, is_path_segment_name};
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::names::NameRule;
use crate::options::Options;
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, created, name};
use crate::tree::{default_zero, empty, items, items_mut, present, same, text};

const GROUP: &str = "rbac.authorization.k8s.io";

/// The strategy of roles and cluster roles.
pub struct Roles {
    /// Whether they are namespaced.
    pub namespaced: bool,
}

static ROLES: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::PathSegment,
    allow_create_on_update: true,
    grants_permissions: true,
    ..Options::of(GROUP, "roles")
});
static CLUSTER_ROLES: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::PathSegment,
    allow_create_on_update: true,
    grants_permissions: true,
    ..Options::of(GROUP, "clusterroles")
});

impl Strategy for Roles {
    fn options(&self) -> &Options {
        if self.namespaced { &ROLES } else { &CLUSTER_ROLES }
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        // The list is written even if there is none.
        if let Some(o) = obj.as_object_mut() {
            o.entry("rules").or_insert(Value::Null);
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let list = Path::new("rules");
        for (i, r) in items(&obj["rules"]).iter().enumerate() {
            rule(r, self.namespaced, &list.index(i), e);
        }
        let aggregation = &obj["aggregationRule"];
        if !self.namespaced && present(aggregation) {
            let p = Path::new("aggregationRule");
            let at = p.child("clusterRoleSelectors");
            let selectors = items(&aggregation["clusterRoleSelectors"]);
            if selectors.is_empty() {
                e.required(&at, "at least one clusterRoleSelector required if aggregationRule is non-nil");
            }
            for (i, s) in selectors.iter().enumerate() {
                let faults = e.len();
                rules::label_selector(s, &at.index(i), e);
                if e.len() > faults {
                    e.invalid(&at.index(i), s, "invalid label selector.");
                }
            }
        }
    }
    fn row(&self, obj: &Value, _now: Timestamp) -> Vec<Value> {
        vec![name(obj), created(obj)]
    }
}

/// Validates a policy rule; also of access reviews.
fn rule(r: &Value, namespaced: bool, p: &Path<'_>, e: &mut Errors) {
    if items(&r["verbs"]).is_empty() {
        e.required(&p.child("verbs"), "verbs must contain at least one value");
    }
    let urls = items(&r["nonResourceURLs"]);
    if !urls.is_empty() {
        let at = p.child("nonResourceURLs");
        if namespaced {
            e.invalid(&at, urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|f| !empty(&r[*f])) {
            e.invalid(&at, urls, "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if items(&r["apiGroups"]).is_empty() {
        e.required(&p.child("apiGroups"), "resource rules must supply at least one api group");
    }
    if items(&r["resources"]).is_empty() {
        e.required(&p.child("resources"), "resource rules must supply at least one resource");
    }
}

/// The strategy of role bindings and cluster role bindings.
pub struct Bindings {
    /// Whether they are namespaced.
    pub namespaced: bool,
}

const BINDING_COLUMNS: &[Column] = &[
    NAME,
    Column::text("Role", "Role that is granted."),
    AGE,
    Column::text("Users", "Users it is granted to.").wide(),
    Column::text("Groups", "Groups it is granted to.").wide(),
    Column::text("ServiceAccounts", "Service accounts it is granted to.").wide(),
];
static BINDINGS: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::PathSegment,
    allow_create_on_update: true,
    columns: BINDING_COLUMNS.into(),
    grants_permissions: true,
    ..Options::of(GROUP, "rolebindings")
});
static CLUSTER_BINDINGS: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::PathSegment,
    allow_create_on_update: true,
    columns: BINDING_COLUMNS.into(),
    grants_permissions: true,
    ..Options::of(GROUP, "clusterrolebindings")
});

impl Strategy for Bindings {
    fn options(&self) -> &Options {
        if self.namespaced { &BINDINGS } else { &CLUSTER_BINDINGS }
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(r) = crate::tree::ensure(obj, "roleRef") {
            default_zero(r, "apiGroup", GROUP);
        }
        for s in items_mut(obj, "subjects") {
            if matches!(text(&s["kind"]), "User" | "Group") {
                default_zero(s, "apiGroup", GROUP);
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (role, p) = (&obj["roleRef"], Path::new("roleRef"));
        let group = text(&role["apiGroup"]);
        if group != GROUP {
            e.not_supported(&p.child("apiGroup"), group, &[GROUP]);
        }
        let kinds: &[&str] = if self.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        if !kinds.contains(&text(&role["kind"])) {
            e.not_supported(&p.child("kind"), text(&role["kind"]), kinds);
        }
        let n = text(&role["name"]);
        if n.is_empty() {
            e.required(&p.child("name"), "");
        } else {
            e.invalid_each(&p.child("name"), n, is_path_segment_name(n));
        }
        let list = Path::new("subjects");
        for (i, s) in items(&obj["subjects"]).iter().enumerate() {
            subject(s, self.namespaced, &list.index(i), e);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        if !same(&new["roleRef"], &old["roleRef"]) {
            e.invalid(&Path::new("roleRef"), &new["roleRef"], "cannot change roleRef");
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let of = |kind: &str| {
            let all: Vec<String> = items(&obj["subjects"])
                .iter()
                .filter(|s| text(&s["kind"]) == kind)
                .map(|s| match kind {
                    "ServiceAccount" => format!("{}/{}", text(&s["namespace"]), text(&s["name"])),
                    _ => text(&s["name"]).to_owned(),
                })
                .collect();
            json!(all.join(", "))
        };
        let role = format!("{}/{}", text(&obj["roleRef"]["kind"]), text(&obj["roleRef"]["name"]));
        vec![name(obj), json!(role), age(obj, now), of("User"), of("Group"), of("ServiceAccount")]
    }
}

fn subject(s: &Value, namespaced: bool, p: &Path<'_>, e: &mut Errors) {
    let (n, group) = (text(&s["name"]), text(&s["apiGroup"]));
    if n.is_empty() {
        e.required(&p.child("name"), "");
    }
    match text(&s["kind"]) {
        "ServiceAccount" => {
            if !n.is_empty() {
                e.invalid_each(&p.child("name"), n, is_dns1123_subdomain(n));
            }
            if !group.is_empty() {
                e.not_supported(&p.child("apiGroup"), group, &[""]);
            }
            if !namespaced && text(&s["namespace"]).is_empty() {
                e.required(&p.child("namespace"), "");
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                e.not_supported(&p.child("apiGroup"), group, &[GROUP]);
            }
        }
        other => e.not_supported(&p.child("kind"), other, &["ServiceAccount", "User", "Group"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings() {
        let s = Bindings { namespaced: true };
        let mut b = json!({"metadata": {"name": "system:b", "namespace": "n", "resourceVersion": "1"},
            "roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]});
        s.set_defaults("v1", &mut b);
        assert_eq!(s.validate_create(&b).to_string(), "[]");
        let mut new = b.clone();
        new["roleRef"]["name"] = json!("x");
        assert!(s.validate_update(&new, &b).to_string().ends_with("cannot change roleRef"));
        let bad = json!({"metadata": {"name": "r", "namespace": "n"}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
        assert_eq!(
            Roles { namespaced: true }.validate_create(&bad).to_string(),
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs"
        );
    }
}
