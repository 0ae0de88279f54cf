//! DenyEscalatingExec: rejects exec and attach for pods whose containers could take over their node. Upstream removed
//! it in favour of PodSecurity, which does not check existing pods.
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::tree::path::at;
use kelson_meta::{GroupResource, Status};

use crate::containers::containers;
use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};

/// The plugin; see the module.
pub struct DenyEscalatingExec {
    objects: Arc<dyn Objects>,
}

impl DenyEscalatingExec {
    /// Creates the plugin, which reads pods through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

impl Plugin for DenyEscalatingExec {
    fn name(&self) -> &'static str {
        "DenyEscalatingExec"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CONNECT.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is("", "pods") || !matches!(a.subresource, "exec" | "attach") {
            return Ok(());
        }
        let pod = self.objects.get("", "pods", a.namespace, a.name);
        let pod = pod.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
        let pod = pod.ok_or_else(|| Status::not_found(&GroupResource::new("", "pods"), a.name))?;
        let spec = at(&pod, &["spec"]);
        for (field, what) in [("hostPID", "using host pid"), ("hostIPC", "using host ipc")] {
            if at(spec, &[field]) == true {
                return Err(a.forbidden(&format!("cannot exec into or attach to a container {what}")));
            }
        }
        if containers(spec).any(|(_, _, c)| at(c, &["securityContext", "privileged"]) == true) {
            return Err(a.forbidden("cannot exec into or attach to a privileged container"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::{Value, json};

    #[tokio::test]
    async fn pods_that_hold_the_node() {
        let privileged = || json!([{"name": "c", "securityContext": {"privileged": true}}]);
        for (spec, resource, want) in [
            (json!({"containers": [{"name": "c"}]}), "/pods/exec", ""),
            (json!({"hostPID": true}), "/pods/exec", "cannot exec into or attach to a container using host pid"),
            (json!({"hostPID": true}), "/pods/portforward", ""),
            (json!({"hostIPC": true}), "/pods/attach", "cannot exec into or attach to a container using host ipc"),
            (json!({"hostNetwork": true}), "/pods/exec", ""),
            (json!({"containers": privileged()}), "/pods/exec", "cannot exec into or attach to a privileged container"),
            (json!({"initContainers": privileged()}), "/pods/attach", "to a privileged container"),
            (json!({"ephemeralContainers": privileged()}), "/pods/exec", "to a privileged container"),
        ] {
            let d = dependencies(&[("pods/a/p", json!({"spec": spec}))]);
            let ask = Ask::new(Operation::Connect, resource, Value::Null).named("a", "p");
            let outcome = object(DenyEscalatingExec::new(&d), ask).await.map(drop);
            match want {
                "" => assert_eq!(outcome, Ok(()), "{spec}"),
                want => assert!(outcome.unwrap_err().ends_with(want), "{spec}"),
            }
        }
        let ask = Ask::new(Operation::Connect, "/pods/exec", Value::Null).named("a", "gone");
        assert_eq!(
            object(DenyEscalatingExec::new(&dependencies(&[])), ask).await.unwrap_err(),
            "pods \"gone\" not found"
        );
    }
}
