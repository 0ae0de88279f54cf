//! The plugin contract: synchronous for those that decide from memory (nearly all), with an asynchronous door for the rest.
use async_trait::async_trait;
use futures::future::BoxFuture;
use kelson_meta::Status;

use crate::metrics::Pass;
use crate::{Attributes, Notes, Operation};

/// The passes that a plugin has a part in; it is not asked in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// It only changes objects.
    Admit,
    /// It only judges.
    Validate,
    /// It does both.
    Both,
}

impl Passes {
    /// Whether this pass is one of them.
    pub fn has(self, pass: Pass) -> bool {
        self == Self::Both || (self == Self::Admit) == (pass == Pass::Admit)
    }
}

/// An admission plugin. The hooks are synchronous, so the chain boxes nothing on the hot path; a plugin that must wait
/// (quota, webhooks) returns itself from [`Plugin::as_async`] for just the requests that make it wait.
pub trait Plugin: Send + Sync {
    /// Upstream's name, e.g. `NamespaceLifecycle`.
    fn name(&self) -> &'static str;
    /// Whether it handles the operation; otherwise it is skipped.
    fn handles(&self, operation: Operation) -> bool;
    /// Whether what it depends on is there; the chain waits up to [`crate::chain::READY_WAIT`] for it.
    fn ready(&self) -> bool {
        true
    }
    /// Mutating pass: may change `attributes.object`.
    fn admit(&self, _attributes: &mut Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
    /// Judges the object as it would be stored.
    fn validate(&self, _attributes: &Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
    /// Reads again the files that it was configured by, where those may change; `None` where there are none.
    fn reload(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
    /// The asynchronous hooks, when this request needs them; they then run in place of the synchronous ones.
    fn as_async(&self, _attributes: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        None
    }
}

/// Hooks that wait.
#[async_trait]
pub trait AsyncPlugin: Send + Sync {
    /// May change the object before it is validated.
    async fn admit(&self, _attributes: &mut Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
    /// Judges the object as it would be stored.
    async fn validate(&self, _attributes: &Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
}
