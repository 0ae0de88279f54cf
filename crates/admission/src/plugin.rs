//! The plugin interface: synchronous for plugins that decide from memory (nearly all), with an asynchronous variant for
//! the others.
use async_trait::async_trait;
use futures::future::BoxFuture;
use kelson_meta::Status;

use crate::metrics::Pass;
use crate::{Attributes, Notes, Operation};

/// The passes that a plugin runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// The mutating pass only.
    Admit,
    /// The validating pass only.
    Validate,
    /// The plugin runs in both passes.
    Both,
}

impl Passes {
    /// Reports whether the plugin runs in this pass.
    pub fn has(self, pass: Pass) -> bool {
        self == Self::Both || (self == Self::Admit) == (pass == Pass::Admit)
    }
}

/// An admission plug-in: a rule that may change or reject requests. The chain calls [`Plugin::admit`] in the mutating
/// pass and [`Plugin::validate`] in the validating pass, for the operations that [`Plugin::handles`] accepts. The
/// methods are synchronous, so that the chain allocates no futures on the hot path. A plug-in that must wait (quota,
/// webhooks) returns itself from [`Plugin::as_async`] only for requests that need it.
/// `docs/internals/admission-plugin.md` has a complete example.
pub trait Plugin: Send + Sync {
    /// Returns upstream's name, e.g. `NamespaceLifecycle`.
    fn name(&self) -> &'static str;
    /// Reports whether it handles the operation; otherwise it is skipped.
    fn handles(&self, operation: Operation) -> bool;
    /// Reports whether its dependencies are ready; the chain waits up to [`crate::chain::READY_WAIT`] for it.
    fn ready(&self) -> bool {
        true
    }
    /// Runs the mutating pass, which may change `attributes.object`.
    fn admit(&self, _attributes: &mut Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
    /// Validates the object as it would be stored.
    fn validate(&self, _attributes: &Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
    /// Reads its configuration files again, if they may change; `None` when there are none.
    fn reload(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
    /// Returns the asynchronous methods if this request needs them; they are then called instead of the synchronous
    /// ones.
    fn as_async(&self, _attributes: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        None
    }
}

/// Asynchronous variants of the plugin's methods.
#[async_trait]
pub trait AsyncPlugin: Send + Sync {
    /// Runs the mutating pass, which may change the object.
    async fn admit(&self, _attributes: &mut Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
    /// Validates the object as it would be stored.
    async fn validate(&self, _attributes: &Attributes<'_>, _notes: &mut Notes) -> Result<(), Status> {
        Ok(())
    }
}
