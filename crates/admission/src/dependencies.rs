//! What plugins look things up in: stored objects, the authorizer, and the catalog of kinds.
use std::sync::Arc;

use kelson_auth::{Authorizer, Objects};
use kelson_meta::Gvr;

/// Kinds to resources, for plugins that must judge an object reference.
pub trait KindMapper: Send + Sync {
    /// The resources served for a kind, and whether each is namespaced; empty when the kind is unknown.
    fn resources(&self, api_version: &str, kind: &str) -> Vec<(Gvr, bool)>;
}

/// Handed to every plugin when it is built.
#[derive(Clone)]
pub struct Dependencies {
    /// Reads of stored objects.
    pub objects: Arc<dyn Objects>,
    /// Decides what the asking user may do besides.
    pub authorizer: Arc<dyn Authorizer>,
    /// Kinds to resources.
    pub kinds: Arc<dyn KindMapper>,
}
