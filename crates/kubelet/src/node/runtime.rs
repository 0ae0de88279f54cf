//! What the container runtime says of itself: whether it is ready, and what it can do.
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_cri::{Runtime, proto as cri};

/// What one runtime handler can do (`status.runtimeHandlers[].features`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    /// Read-only mounts whose submounts are read-only too.
    pub recursive_read_only_mounts: bool,
    /// Pods with users of their own (`hostUsers: false`).
    pub user_namespaces: bool,
}

/// The runtime as it last answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeState {
    /// Whether it has answered: before, nothing is known of what it can do.
    pub answered: bool,
    /// Why its network is not ready; `None`: it is.
    pub network_fault: Option<String>,
    /// Its handlers by name; the default one has the empty name.
    pub handlers: BTreeMap<String, HandlerFeatures>,
    /// Whether it knows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// Why it is not ready, as the node's condition says it; empty: it is.
    pub faults: Vec<String>,
}

impl RuntimeState {
    /// From its answer to a status request.
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

    /// What it was before, with the reason why it does not answer now. Its features stay: they are those of the pods
    /// that run.
    #[must_use]
    pub fn down(&self, why: &str) -> Self {
        Self { faults: vec![format!("container runtime is down: {why}")], ..self.clone() }
    }

    /// Whether this handler can make what is mounted below a read-only volume read-only too.
    pub fn has_recursive_read_only(&self, handler: &str) -> bool {
        self.handlers.get(handler).is_some_and(|h| h.recursive_read_only_mounts)
    }

    /// Whether pods of this handler can have users of their own.
    pub fn has_user_namespaces(&self, handler: &str) -> bool {
        self.handlers.get(handler).is_some_and(|h| h.user_namespaces)
    }
}

/// Before the runtime is asked again at start.
const RUNTIME_RETRY: Duration = Duration::from_millis(200);

/// Name and version of the runtime; waits until it answers.
pub async fn runtime_version(runtime: &dyn Runtime) -> (String, String) {
    let mut told = false;
    loop {
        match runtime.version().await {
            Ok(v) => return (v.runtime_name, v.runtime_version),
            Err(e) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(error = %e, "the container runtime does not answer yet");
                }
                tokio::time::sleep(RUNTIME_RETRY).await;
            }
        }
    }
}
