//! Status and features of the container runtime.
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_cri::{Runtime, proto as cri};

/// Features of one runtime handler (`status.runtimeHandlers[].features`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    /// Whether read-only mounts can be recursive.
    pub recursive_read_only_mounts: bool,
    /// Whether pods can have user namespaces (`hostUsers: false`).
    pub user_namespaces: bool,
}

/// State of the runtime in its last response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeState {
    /// Whether it has responded; before that, its features are unknown.
    pub answered: bool,
    /// Why the runtime's network is not ready; `None` if it is ready.
    pub network_fault: Option<String>,
    /// Features of its handlers by name; the default handler has the empty name.
    pub handlers: BTreeMap<String, HandlerFeatures>,
    /// Whether it supports `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// Why it is not ready, for the node's condition; empty if it is ready.
    pub faults: Vec<String>,
}

impl RuntimeState {
    /// Converts its response to a status request.
    pub fn of(answer: cri::StatusResponse) -> Self {
        let conditions = answer.status.unwrap_or_default().conditions;
        let fault = |kind: &str| {
            let c = conditions.iter().find(|c| c.r#type == kind);
            match c {
                Some(c) if c.status => None,
                Some(c) => Some(format!("{kind}=false reason:{} message:{}", c.reason, c.message)),
                None => Some(format!("{kind} condition is missing from the runtime's status")),
            }
        };
        let mut faults = Vec::new();
        faults.extend(fault("RuntimeReady").map(|f| format!("container runtime not ready: {f}")));
        let network_fault = fault("NetworkReady").map(|f| format!("container runtime network not ready: {f}"));
        faults.extend(network_fault.clone());
        let features = |h: &cri::RuntimeHandler| {
            let f = h.features.unwrap_or_default();
            HandlerFeatures {
                recursive_read_only_mounts: f.recursive_read_only_mounts,
                user_namespaces: f.user_namespaces,
            }
        };
        Self {
            answered: true,
            network_fault,
            handlers: answer.runtime_handlers.iter().map(|h| (h.name.clone(), features(h))).collect(),
            supplemental_groups_policy: answer.features.is_some_and(|f| f.supplemental_groups_policy),
            faults,
        }
    }

    /// Returns the previous state with the reason why the runtime does not respond. The features are kept, because they apply to the
    /// running pods.
    #[must_use]
    pub fn down(&self, why: &str) -> Self {
        Self { faults: vec![format!("container runtime is down: {why}")], ..self.clone() }
    }

    /// Returns whether this handler supports recursive read-only mounts.
    pub fn has_recursive_read_only(&self, handler: &str) -> bool {
        self.handlers.get(handler).is_some_and(|h| h.recursive_read_only_mounts)
    }

    /// Returns whether pods of this handler can have user namespaces.
    pub fn has_user_namespaces(&self, handler: &str) -> bool {
        self.handlers.get(handler).is_some_and(|h| h.user_namespaces)
    }
}

/// Delay before the runtime is asked again at start.
const RUNTIME_RETRY: Duration = Duration::from_millis(200);

/// Asks for name and version of the runtime until it responds.
pub async fn runtime_version(runtime: &dyn Runtime) -> (String, String) {
    let mut is_logged = false;
    loop {
        match runtime.version().await {
            Ok(v) => return (v.runtime_name, v.runtime_version),
            Err(e) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(error = %e, "the container runtime does not respond; retrying");
                }
                tokio::time::sleep(RUNTIME_RETRY).await;
            }
        }
    }
}
