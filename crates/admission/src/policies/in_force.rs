//! The policies of one kind with their bindings, stored and from files, decoded once per change.
use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kelson_codec::strict::Shape;
use parking_lot::Mutex;
use serde_json::Value;

use super::policy::{Binding, Policy};
use crate::configuration::Part;
use crate::dynamic::manifests::{Accepted, Manifests};
use crate::dynamic::{ByResource, Items, Source, is_exempt_from_policies};
use crate::{Attributes, Dependencies};

/// A decoded policy of one kind.
pub trait Decoded: Send + Sync + Sized + 'static {
    /// The kind of the plugin's section in the configuration file.
    const CONFIGURATION: &'static str;
    /// Kind and resource of the policies, then of their bindings.
    const ACCEPTED: [Accepted; 2];
    /// Decodes a stored object.
    fn parse(tree: &Value) -> Self;
    /// Returns the fields that both kinds have.
    fn base(&self) -> &Policy;
}

/// The policies of one kind and their bindings.
pub struct InForce<P> {
    policies: Source<P>,
    bindings: Source<Binding>,
    manifests: Option<Arc<Manifests>>,
    /// The last combination of policies and bindings.
    ready: Mutex<Arc<Ready<P>>>,
}

/// A policy with its bindings.
pub struct Bound<P> {
    /// The compiled policy that the bindings apply.
    pub policy: Arc<P>,
    /// Its bindings by name, at least one.
    pub bindings: Vec<Arc<Binding>>,
}

/// Policies with their bindings, indexed by resource. A policy without a binding is ignored, even if it is invalid.
pub struct Ready<P> {
    /// The policies it was built from.
    policies: Items<P>,
    bindings: Items<Binding>,
    bound: Vec<Bound<P>>,
    by_resource: ByResource,
}

impl<P: Decoded> Ready<P> {
    fn new(policies: Items<P>, bindings: Items<Binding>) -> Self {
        let mut by_policy: HashMap<&str, Vec<Arc<Binding>>> = HashMap::new();
        for binding in bindings.iter() {
            by_policy.entry(&binding.policy).or_default().push(Arc::clone(binding));
        }
        let bound = policies.iter().filter_map(|policy| {
            let bindings = by_policy.get(policy.base().name.as_str())?.clone();
            Some(Bound { policy: Arc::clone(policy), bindings })
        });
        let bound: Vec<Bound<P>> = bound.collect();
        let by_resource = ByResource::new(bound.iter().map(|b| &b.policy.base().criteria));
        Self { policies, bindings, bound, by_resource }
    }

    /// Returns the policies that may match a request, in the order of their names.
    pub fn of(&self, a: &Attributes<'_>) -> impl Iterator<Item = &Bound<P>> {
        self.by_resource.of(&a.resource.resource).iter().filter_map(|place| self.bound.get(*place))
    }
}

impl<P: Decoded> InForce<P> {
    /// Creates the source of stored policies and of those in the files that the plugin's configuration names.
    ///
    /// # Errors
    /// The configuration or a file is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        Part { group: "apiserver.config.k8s.io", versions: &["v1"], kinds: &[P::CONFIGURATION] }
            .check(configuration, &[("staticManifestsDir", Shape::Text)])?;
        let manifests = Manifests::open(configuration, const { &P::ACCEPTED }, d)?;
        let [(_, policies), (_, bindings)] = P::ACCEPTED;
        Ok(Self {
            policies: Source::of_policies(&d.objects, policies, P::parse).with_manifests(manifests.clone()),
            bindings: Source::of_policies(&d.objects, bindings, Binding::parse).with_manifests(manifests.clone()),
            manifests,
            ready: Mutex::new(Arc::new(Ready::new(Items::default(), Items::default()))),
        })
    }

    /// Reads the files again; `None` when there are none.
    pub fn reload(&self) -> Option<BoxFuture<'_, ()>> {
        self.manifests.as_ref().map(|manifests| manifests.reload().boxed())
    }

    /// Reports whether any policy may match a request, without looking anything up.
    pub fn may_concern(&self, a: &Attributes<'_>) -> bool {
        self.ready(a).of(a).any(|b| b.policy.base().criteria.may_concern(a))
    }

    /// Returns the policies that may apply to a request, as they are now; combined again only after a change.
    pub fn ready(&self, a: &Attributes<'_>) -> Arc<Ready<P>> {
        let (policies, bindings) = (self.policies.of(a), self.bindings.of(a));
        let mut ready = self.ready.lock();
        if !Arc::ptr_eq(&ready.policies, &policies) || !Arc::ptr_eq(&ready.bindings, &bindings) {
            let new = Arc::new(Ready::new(policies, bindings));
            // Policies for admission configuration objects are needed seldom, and not cached.
            if is_exempt_from_policies(a) {
                return new;
            }
            *ready = new;
        }
        Arc::clone(&ready)
    }
}
