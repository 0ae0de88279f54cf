//! OwnerReferencesPermissionEnforcement: an owner reference is a delayed delete, so setting one requires the permission
//! to delete the object; `blockOwnerDeletion` requires the permission to update the owner's finalizers.
use std::sync::Arc;

use kelson_auth::{Attributes as Request, Authorizer};
use kelson_meta::Status;
use serde_json::Value;

use crate::{Attributes, Dependencies, KindMapper, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, text};

/// The plugin; see the module.
pub struct OwnerReferences {
    authorizer: Arc<dyn Authorizer>,
    kinds: Arc<dyn KindMapper>,
}

impl OwnerReferences {
    /// Creates the plugin with the authorizer of the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { authorizer: d.authorizer.clone(), kinds: d.kinds.clone() }
    }

    fn check_owner(&self, a: &Attributes<'_>, owner: &Value) -> Result<(), Status> {
        let (version, kind) = (text(owner, &["apiVersion"]), text(owner, &["kind"]));
        let resources = self.kinds.resources(version, kind);
        if resources.is_empty() {
            return Err(a.forbidden(&format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {version} Kind \
                 {kind}: no matches for kind {kind:?} in version {version:?}"
            )));
        }
        for (gvr, namespaced) in resources {
            let namespace = if namespaced { a.namespace } else { "" };
            let name = text(owner, &["name"]);
            let ask = Request::resource(a.user, "update", &gvr.group, &gvr.resource, namespace, name);
            let decision =
                self.authorizer.authorize(&Request { version: &gvr.version, subresource: "finalizers", ..ask });
            if !decision.is_allow() {
                return Err(a.forbidden(&format!(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: \
                     {}, <nil>",
                    decision.reason()
                )));
            }
        }
        Ok(())
    }
}

fn owners(object: &Value) -> &[Value] {
    list(object, &["metadata", "ownerReferences"])
}

fn blocks(owner: &Value) -> bool {
    at(owner, &["blockOwnerDeletion"]) == true
}

impl Plugin for OwnerReferences {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let (old, new) = (owners(a.stored()), owners(a.new_object()));
        // Updates of a pod's status and binding keep its owner references.
        if old == new || (a.is("", "pods") && matches!(a.subresource, "status" | "binding")) {
            return Ok(());
        }
        if a.operation != Operation::Create {
            let (group, resource) = (&a.resource.group, &a.resource.resource);
            let delete = Request::resource(a.user, "delete", group, resource, a.namespace, a.name);
            let delete = Request { version: &a.resource.version, subresource: a.subresource, ..delete };
            let decision = self.authorizer.authorize(&delete);
            if !decision.is_allow() {
                let why = decision.reason();
                return Err(
                    a.forbidden(&format!("cannot set an ownerRef on a resource you can't delete: {why}, <nil>"))
                );
            }
        }
        let was_blocking = |owner: &Value| old.iter().any(|o| o.get("uid") == owner.get("uid") && blocks(o));
        let mut blocking = new.iter().filter(|o| blocks(o) && !was_blocking(o)).peekable();
        if blocking.peek().is_none() {
            return Ok(());
        }
        let anything = Request::resource(a.user, "update", "*", "*", "", "*").with_subresource("finalizers");
        if self.authorizer.authorize(&anything).is_allow() {
            return Ok(());
        }
        blocking.try_for_each(|owner| self.check_owner(a, owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::json;

    #[tokio::test]
    async fn rights() {
        let d = dependencies(&[]);
        let owned = |kind: &str, version: &str, block: bool| {
            json!({"metadata": {"name": "x", "ownerReferences": [
                {"apiVersion": version, "kind": kind, "name": "o", "uid": "1", "blockOwnerDeletion": block}]}})
        };
        let plugin = || OwnerReferences::new(&d);
        let create = |user: &str, o: Value| object(plugin(), Ask::create("/configmaps", o).by(user, "g"));
        let update =
            |user: &str, old: Value, new: Value| object(plugin(), Ask::update("/configmaps", old, new).by(user, "g"));
        assert!(create("jane", owned("Deployment", "apps/v1", false)).await.is_ok());
        assert!(create("owner", owned("Deployment", "apps/v1", true)).await.is_ok());
        assert!(create("root", owned("Nope", "x/v1", true)).await.is_ok());
        assert!(
            create("owner", owned("Secret", "v1", true)).await.unwrap_err().contains("you can't set finalizers on")
        );
        assert!(
            create("owner", owned("Nope", "x/v1", true))
                .await
                .unwrap_err()
                .contains("cannot find RESTMapping for APIVersion x/v1 Kind Nope")
        );
        let bare = json!({"metadata": {"name": "x"}});
        assert!(
            update("jane", bare.clone(), owned("Deployment", "apps/v1", false))
                .await
                .unwrap_err()
                .contains("a resource you can't delete")
        );
        assert!(update("root", bare, owned("Deployment", "apps/v1", true)).await.is_ok());
        let same = owned("Deployment", "apps/v1", true);
        assert!(update("jane", same.clone(), same).await.is_ok());
    }
}
