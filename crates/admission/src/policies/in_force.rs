//! What is in force of one kind of policy: the policies and their bindings, stored and from files, decoded once per change.
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::Value;

use super::GROUP;
use super::policy::{Binding, Policy};
use crate::configuration::Part;
use crate::dynamic::Source;
use crate::dynamic::manifests::{Accepted, Manifests};
use crate::{Attributes, Dependencies};

/// A policy of one kind, decoded.
pub trait Decoded: Send + Sync + Sized + 'static {
    /// Kind of the plugin's part of the configuration file.
    const CONFIGURATION: &'static str;
    /// The policies' kind and resource, then their bindings'.
    const ACCEPTED: [Accepted; 2];
    /// From a stored object.
    fn parse(tree: &Value) -> Self;
    /// What it shares with policies of the other kind.
    fn base(&self) -> &Policy;
}

/// The policies of one kind and their bindings.
pub struct InForce<P> {
    policies: Source<P>,
    bindings: Source<Binding>,
    manifests: Option<Arc<Manifests>>,
}

impl<P: Decoded> InForce<P> {
    /// Over what is stored, and what lies in the files that the plugin's configuration names.
    ///
    /// # Errors
    /// What is wrong with the configuration or the files.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        Part { group: "apiserver.config.k8s.io", versions: &["v1"], kinds: &[P::CONFIGURATION] }
            .check(configuration, &["staticManifestsDir"])?;
        let manifests = Manifests::open(configuration, const { &P::ACCEPTED }, d)?;
        let [(_, policies), (_, bindings)] = P::ACCEPTED;
        Ok(Self {
            policies: Source::new(&d.objects, GROUP, policies, P::parse).with_manifests(manifests.clone()),
            bindings: Source::new(&d.objects, GROUP, bindings, Binding::parse).with_manifests(manifests.clone()),
            manifests,
        })
    }

    /// Reads the files again; none when there are none to read.
    pub fn reload(&self) -> Option<BoxFuture<'_, ()>> {
        self.manifests.as_ref().map(|manifests| manifests.reload().boxed())
    }

    /// Whether any policy may be for a request, as far as can be told at once.
    pub fn may_concern(&self, a: &Attributes<'_>) -> bool {
        self.policies.of(a).iter().any(|p| p.base().criteria.may_concern(a))
    }

    /// The policies that may be for a request, and all bindings that may judge it.
    pub fn of(&self, a: &Attributes<'_>) -> (Vec<Arc<P>>, Arc<Vec<Arc<Binding>>>) {
        let concerned = self.policies.of(a).iter().filter(|p| p.base().criteria.may_concern(a)).cloned().collect();
        (concerned, self.bindings.of(a))
    }
}
