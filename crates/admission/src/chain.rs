//! The chain: asks the enabled plugins in order, first refusal wins.
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::Status;

use crate::{Attributes, Notes, Operation, Plugin};

/// Longest wait for a plugin to become ready, before the request fails.
pub const READY_WAIT: Duration = Duration::from_secs(10);
const READY_POLL: Duration = Duration::from_millis(100);

/// The enabled plugins in their order. Cheap to clone.
#[derive(Clone, Default)]
pub struct Chain {
    plugins: Arc<[Arc<dyn Plugin>]>,
}

impl Chain {
    /// From built plugins, in the order they are to be asked.
    pub fn new(plugins: Vec<Arc<dyn Plugin>>) -> Self {
        Self { plugins: plugins.into() }
    }
    /// The plugins' names in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.plugins.iter().map(|p| p.name()).collect()
    }
    /// Whether any plugin handles `operation`; lets the caller skip decoding for admission's sake.
    pub fn handles(&self, operation: Operation) -> bool {
        self.plugins.iter().any(|p| p.handles(operation))
    }
    /// The mutating pass. Run the defaulting after it, then validation, then [`Chain::validate`].
    pub async fn admit(&self, attributes: &mut Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let operation = attributes.operation;
        for plugin in self.plugins.iter().filter(|p| p.handles(operation)) {
            if !plugin.ready() {
                wait_ready(plugin.as_ref(), attributes).await?;
            }
            // Comparing costs a copy, so only a dry run, which is there to explain, pays for it.
            let before = attributes.dry_run.then(|| attributes.object.clone());
            let admitted = match plugin.as_async(attributes) {
                Some(waiting) => waiting.admit(attributes, notes).await,
                None => plugin.admit(attributes, notes),
            };
            admitted.inspect_err(|_| notes.refused_by = Some(plugin.name()))?;
            if before.is_some_and(|b| b != attributes.object) {
                notes.changed_by.push(plugin.name());
            }
        }
        Ok(())
    }
    /// The validating pass.
    pub async fn validate(&self, attributes: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        for plugin in self.plugins.iter().filter(|p| p.handles(attributes.operation)) {
            if !plugin.ready() {
                wait_ready(plugin.as_ref(), attributes).await?;
            }
            let admitted = match plugin.as_async(attributes) {
                Some(waiting) => waiting.validate(attributes, notes).await,
                None => plugin.validate(attributes, notes),
            };
            admitted.inspect_err(|_| notes.refused_by = Some(plugin.name()))?;
        }
        Ok(())
    }
}

async fn wait_ready(plugin: &dyn Plugin, attributes: &Attributes<'_>) -> Result<(), Status> {
    let ready = async {
        while !plugin.ready() {
            tokio::time::sleep(READY_POLL).await;
        }
    };
    match tokio::time::timeout(READY_WAIT, ready).await {
        Ok(()) => Ok(()),
        Err(_) if plugin.ready() => Ok(()),
        Err(_) => Err(attributes.forbidden("not yet ready to handle request")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::always::{AlwaysAdmit, AlwaysDeny};
    use crate::plugins::tolerations::TaintNodesByCondition;
    use kelson_auth::UserInfo;
    use kelson_meta::{Gvk, Gvr};
    use serde_json::json;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Late(AtomicBool);
    impl Plugin for Late {
        fn name(&self) -> &'static str {
            "Late"
        }
        fn handles(&self, op: Operation) -> bool {
            op == Operation::Create
        }
        fn ready(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    async fn admit(plugins: Vec<Arc<dyn Plugin>>, operation: Operation) -> (Result<(), Status>, Notes) {
        let (kind, resource, user) = (Gvk::new("", "v1", "Node"), Gvr::new("", "v1", "nodes"), UserInfo::default());
        let mut attributes = Attributes {
            operation,
            kind: &kind,
            resource: &resource,
            subresource: "",
            namespace: "",
            name: "n",
            object: Some(json!({})),
            old_object: None,
            user: &user,
            dry_run: true,
            options: Default::default(),
        };
        let mut notes = Notes::default();
        (Chain::new(plugins).admit(&mut attributes, &mut notes).await, notes)
    }

    #[tokio::test(start_paused = true)]
    async fn waits_ten_seconds_for_readiness() {
        let begin = tokio::time::Instant::now();
        let late = Arc::new(Late(AtomicBool::new(false)));
        let (refused, _) = admit(vec![late.clone()], Operation::Create).await;
        assert_eq!(refused.unwrap_err().message, "nodes \"n\" is forbidden: not yet ready to handle request");
        assert_eq!(begin.elapsed(), READY_WAIT);
        assert!(admit(vec![late.clone()], Operation::Update).await.0.is_ok(), "not handled, not waited for");
        late.0.store(true, Ordering::Relaxed);
        assert!(admit(vec![late], Operation::Create).await.0.is_ok());
    }

    #[tokio::test]
    async fn a_dry_run_explains() {
        let plugins: Vec<Arc<dyn Plugin>> =
            vec![Arc::new(AlwaysAdmit), Arc::new(TaintNodesByCondition), Arc::new(AlwaysDeny), Arc::new(AlwaysAdmit)];
        let (refused, notes) = admit(plugins, Operation::Create).await;
        assert!(refused.is_err());
        assert_eq!((notes.changed_by, notes.refused_by), (vec!["TaintNodesByCondition"], Some("AlwaysDeny")));
    }
}
