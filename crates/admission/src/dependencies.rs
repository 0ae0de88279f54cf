//! Interfaces through which plugins read stored objects, ask the authorizer, map kinds to resources, and reach
//! services.
use std::sync::Arc;

use async_trait::async_trait;
use kelson_auth::{Authorizer, Objects};
use kelson_meta::gates::FeatureGates;
use kelson_meta::{Gvk, Gvr, Status};
use kelson_webhook::{OwnServer, ServiceResolver};
use serde_json::Value;

use crate::Metrics;

/// Maps kinds to resources, for plugins that check an object reference.
pub trait KindMapper: Send + Sync {
    /// Returns the resources of a kind, and whether each is namespaced; empty when the kind is unknown.
    fn resources(&self, api_version: &str, kind: &str) -> Vec<(Gvr, bool)>;
}

/// Converts between versions. Admission sees objects in the server's working form, which for many kinds is the stored
/// version; webhooks and policies see them in the version of the request, or in the one they match.
#[async_trait]
pub trait Versions: Send + Sync {
    /// Returns the other resources for the same objects (other versions, and `events` of both groups), each with the
    /// kind of `subresource` there; ordered by group and version.
    fn equivalents(&self, resource: &Gvr, subresource: &str) -> Vec<(Gvr, Gvk)>;
    /// Converts an object of a request for `of` to the version of `resource`; `None` when it is in that form already,
    /// which includes all objects of subresources that have another kind.
    ///
    /// # Errors
    /// The object cannot be converted.
    async fn show(&self, of: &Gvr, resource: &Gvr, kind: &Gvk, object: &Value) -> Result<Option<Value>, Status>;
    /// Converts a stored object to the version of `resource`.
    ///
    /// # Errors
    /// The object cannot be converted.
    async fn serve(&self, resource: &Gvr, stored: Value) -> Result<Value, Status>;
    /// Merges a partial object into an object of `resource` as an apply does; neither is converted.
    ///
    /// # Errors
    /// Fields that replace a whole list or map, and fields that do not fit the kind.
    fn merge(&self, resource: &Gvr, kind: &Gvk, object: &Value, fields: &Value) -> Result<Value, String>;
    /// Reads a new object of `resource` from a client's document into the form that admission sees: strictly decoded,
    /// with defaults, and validated.
    ///
    /// # Errors
    /// The message of decoding or validation.
    async fn read_new(&self, resource: &Gvr, object: Value) -> Result<Value, String>;
    /// Converts a changed object back: fields that `kind` does not have are dropped, defaults are filled in.
    ///
    /// # Errors
    /// The object cannot be decoded as its kind.
    async fn take(&self, of: &Gvr, resource: &Gvr, kind: &Gvk, object: Value) -> Result<Value, Status>;
}

/// Updates the status of ResourceQuotas.
#[async_trait]
pub trait QuotaCharges: Send + Sync {
    /// Sets `status.used` of a ResourceQuota if it still has the resourceVersion `seen`; returns `false` when it was
    /// changed or deleted.
    ///
    /// # Errors
    /// The store rejects writes.
    async fn charge(&self, namespace: &str, name: &str, seen: &str, used: &Value) -> Result<bool, Status>;
}

/// Creates missing namespaces with the server's own identity.
#[async_trait]
pub trait NamespaceMaker: Send + Sync {
    /// Creates a namespace by a request that passes all filters.
    ///
    /// # Errors
    /// The status of the failed request; 409 when the namespace exists.
    async fn make(&self, name: &str) -> Result<(), Status>;
}

/// The interfaces that every plugin gets when it is built.
#[derive(Clone)]
pub struct Dependencies {
    /// Reads stored objects.
    pub objects: Arc<dyn Objects>,
    /// Decides whether the request's user has further permissions.
    pub authorizer: Arc<dyn Authorizer>,
    /// Maps kinds to resources.
    pub kinds: Arc<dyn KindMapper>,
    /// Converts objects between versions.
    pub versions: Arc<dyn Versions>,
    /// Resolves services to addresses, for webhooks.
    pub services: Arc<dyn ServiceResolver>,
    /// The API server itself, for webhooks that it serves.
    pub own: Arc<dyn OwnServer>,
    /// Writes usage into quotas.
    pub quotas: Arc<dyn QuotaCharges>,
    /// Creates namespaces, for NamespaceAutoProvision.
    pub namespaces: Arc<dyn NamespaceMaker>,
    /// The features set by `--feature-gates`.
    pub gates: Arc<FeatureGates>,
    /// The metrics of admission.
    pub metrics: Arc<Metrics>,
}
