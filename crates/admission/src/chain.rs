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
            match plugin.as_async() {
                Some(waiting) => waiting.admit(attributes, notes).await?,
                None => plugin.admit(attributes, notes)?,
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
            match plugin.as_async() {
                Some(waiting) => waiting.validate(attributes, notes).await?,
                None => plugin.validate(attributes, notes)?,
            }
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
