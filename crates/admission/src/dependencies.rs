//! What plugins look things up in: stored objects, the authorizer, the catalog of kinds, the way to services.
use std::sync::Arc;

use async_trait::async_trait;
use kelson_auth::{Authorizer, Objects};
use kelson_meta::gates::FeatureGates;
use kelson_meta::{Gvk, Gvr, Status};
use kelson_webhook::{OwnServer, ServiceResolver};
use serde_json::Value;

use crate::Metrics;

/// Kinds to resources, for plugins that must judge an object reference.
pub trait KindMapper: Send + Sync {
    /// The resources served for a kind, and whether each is namespaced; empty when the kind is unknown.
    fn resources(&self, api_version: &str, kind: &str) -> Vec<(Gvr, bool)>;
}

/// The versions in which objects are served. Admission sees objects in the form that the server works in, which for many
/// kinds is the stored one; whoever a user configured to judge them sees them in the version of the request, or in another
/// one that was asked for.
#[async_trait]
pub trait Versions: Send + Sync {
    /// The other resources that give access to the same objects (other versions, and `events` of both groups), each with
    /// the kind that `subresource` takes there; in the order of their group and version.
    fn equivalents(&self, resource: &Gvr, subresource: &str) -> Vec<(Gvr, Gvk)>;
    /// An object of a request for `of` as `resource` serves it; `None` when it is in that form already, as objects of
    /// subresources with a kind of their own always are.
    ///
    /// # Errors
    /// For what cannot be converted.
    async fn show(&self, of: &Gvr, resource: &Gvr, kind: &Gvk, object: &Value) -> Result<Option<Value>, Status>;
    /// A stored object as `resource` serves it.
    ///
    /// # Errors
    /// For what cannot be converted.
    async fn serve(&self, resource: &Gvr, stored: Value) -> Result<Value, Status>;
    /// An object of `resource` with the fields of a partial one merged in, as an apply would; neither is converted.
    ///
    /// # Errors
    /// For fields that replace a whole list or map, and for what does not fit the kind.
    fn merge(&self, resource: &Gvr, kind: &Gvk, object: &Value, fields: &Value) -> Result<Value, String>;
    /// A new object of `resource` as somebody wrote it, in the form that admission sees: read strictly, with defaults, and
    /// judged by the rules of its kind.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    async fn read_new(&self, resource: &Gvr, object: Value) -> Result<Value, String>;
    /// The way back, for an object that was changed: fields that `kind` does not have are dropped, defaults filled in.
    ///
    /// # Errors
    /// For what does not read as an object of the kind.
    async fn take(&self, of: &Gvr, resource: &Gvr, kind: &Gvk, object: Value) -> Result<Value, Status>;
}

/// What quotas are charged.
#[async_trait]
pub trait QuotaCharges: Send + Sync {
    /// Makes `used` the `status.used` of a ResourceQuota that still has the resource version `seen`; `false` when it was changed
    /// or is gone.
    ///
    /// # Errors
    /// When the store takes no writes.
    async fn charge(&self, namespace: &str, name: &str, seen: &str, used: &Value) -> Result<bool, Status>;
}

/// Makes namespaces that are missing, under the server's own identity.
#[async_trait]
pub trait NamespaceMaker: Send + Sync {
    /// Makes a namespace of this name, along the whole way of a request.
    ///
    /// # Errors
    /// What that request is refused with; 409 where there is one by now.
    async fn make(&self, name: &str) -> Result<(), Status>;
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
    /// Objects in other versions.
    pub versions: Arc<dyn Versions>,
    /// Services to addresses, for webhooks.
    pub services: Arc<dyn ServiceResolver>,
    /// The server itself, where it is a webhook's server.
    pub own: Arc<dyn OwnServer>,
    /// Charges of quotas.
    pub quotas: Arc<dyn QuotaCharges>,
    /// Creates namespaces with the server's own rights, for NamespaceAutoProvision.
    pub namespaces: Arc<dyn NamespaceMaker>,
    /// `--feature-gates`.
    pub gates: Arc<FeatureGates>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}
