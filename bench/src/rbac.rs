//! The cost of an RBAC decision with 10,000 bindings.
//!
//! Half of the bindings are namespaced, half are cluster-wide; each is for a different user and one of a hundred roles.
//! Prints medians in nanoseconds: for a user with one binding, with a hundred, and with none, whose request is denied.
use std::hint::black_box;
use std::time::Instant;

use kelson_auth::authorize::Rbac;
use kelson_auth::authorize::rbac::RbacResource;
use kelson_auth::{Attributes, Authorizer as _, Change, UserInfo};
use serde_json::{Value, json};

const BINDINGS: usize = 10_000;
const ROLES: usize = 100;
/// The number of decisions timed together, since reading the clock costs as much as one of them.
const BATCH: usize = 100;
const BATCHES: usize = 200;

fn put(rbac: &Rbac, resource: RbacResource, namespace: &str, name: &str, object: &Value) {
    rbac.apply(resource, namespace, name, Change::Put(object.to_string().as_bytes()));
}

fn binding(role: usize, user: &str) -> Value {
    json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
        "name": format!("role-{role}")}, "subjects": [{"kind": "User", "name": user}]})
}

/// Prints the median time of a decision.
pub fn run(_: &[String]) -> anyhow::Result<()> {
    let rbac = Rbac::new();
    for n in 0..ROLES {
        let rule = json!({"apiGroups": ["", "apps"], "resources": ["pods", format!("kind-{n}")], "verbs": ["get", "list", "watch"]});
        let role = json!({"metadata": {"name": "r"}, "rules": [rule]});
        put(&rbac, RbacResource::ClusterRoles, "", &format!("role-{n}"), &role);
    }
    for n in 0..BINDINGS {
        // The user with a hundred bindings has no others.
        let user = if n % 100 == 0 { "busy".to_owned() } else { format!("user-{n}") };
        let object = binding(n % ROLES, &user);
        match n % 2 {
            0 => put(&rbac, RbacResource::ClusterRoleBindings, "", &format!("b-{n}"), &object),
            _ => put(&rbac, RbacResource::RoleBindings, &format!("ns-{}", n % 500), &format!("b-{n}"), &object),
        }
    }
    for (what, name, resource, namespace) in [
        ("one binding, allowed", "user-102", "pods", "ns-1"),
        ("a hundred bindings, refused", "busy", "secrets", "ns-1"),
        ("no binding, refused", "stranger", "pods", "ns-1"),
    ] {
        let user = UserInfo::new(name, ["system:authenticated"]);
        let attributes = Attributes::resource(&user, "get", "", resource, namespace, "x");
        let mut times: Vec<u128> = (0..BATCHES)
            .map(|_| {
                let begun = Instant::now();
                for _ in 0..BATCH {
                    black_box(rbac.authorize(black_box(&attributes)));
                }
                begun.elapsed().as_nanos() / BATCH as u128
            })
            .collect();
        times.sort_unstable();
        println!("{what}: {} ns ({})", times[BATCHES / 2], rbac.authorize(&attributes).is_allow());
    }
    Ok(())
}
