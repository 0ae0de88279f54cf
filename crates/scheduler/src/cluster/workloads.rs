//! Selectors of services and of controllers that own pods. Default spreading uses these selectors.
use std::collections::{BTreeMap, HashMap};

use kelson_meta::{LabelSelector, LabelSelectorSpec, ObjectKey};

use crate::view::PodSpec;

/// Selectors of services, by name.
type ByName = HashMap<Box<str>, BTreeMap<String, String>>;

/// The selectors, by namespace.
#[derive(Debug, Default)]
pub struct Workloads {
    services: HashMap<Box<str>, ByName>,
    /// Selectors by kind, then by namespace and name.
    owners: HashMap<&'static str, HashMap<ObjectKey, LabelSelector>>,
    epochs: HashMap<Box<str>, u64>,
}

impl Workloads {
    /// Returns a number that changes with any selector of this namespace.
    pub fn epoch(&self, namespace: &str) -> u64 {
        self.epochs.get(namespace).copied().unwrap_or(0)
    }

    fn touch(&mut self, namespace: &str) {
        match self.epochs.get_mut(namespace) {
            Some(e) => *e += 1,
            None => {
                self.epochs.insert(namespace.into(), 1);
            }
        }
    }

    /// Stores the selector of a service. A service without a selector selects nothing.
    pub fn put_service(&mut self, key: &ObjectKey, selector: Option<&BTreeMap<String, String>>) {
        let here = self.services.entry(key.namespace.as_str().into()).or_default();
        let changed = match selector {
            Some(s) => {
                here.get(key.name.as_str()) != Some(s) && {
                    here.insert(key.name.as_str().into(), s.clone());
                    true
                }
            }
            None => here.remove(key.name.as_str()).is_some(),
        };
        if here.is_empty() {
            self.services.remove(key.namespace.as_str());
        }
        if changed {
            self.touch(&key.namespace);
        }
    }

    /// Stores the selector of a controller of this kind, or removes it when it is `None`.
    pub fn put_owner(&mut self, kind: &'static str, key: &ObjectKey, selector: Option<LabelSelector>) {
        let all = self.owners.entry(kind).or_default();
        let changed = match selector {
            Some(s) => {
                all.get(key) != Some(&s) && {
                    all.insert(key.clone(), s);
                    true
                }
            }
            None => all.remove(key).is_some(),
        };
        if changed {
            self.touch(&key.namespace);
        }
    }

    /// Returns the combined selector of the services and the owner of a pod; empty when nothing selects the pod
    /// (upstream `plugins/helper.DefaultSelector`).
    pub fn default_selector(&self, spec: &PodSpec) -> LabelSelector {
        let mut merged: BTreeMap<String, String> = BTreeMap::new();
        for s in self.services.get(&spec.namespace).into_iter().flat_map(HashMap::values) {
            if s.iter().all(|(k, v)| spec.labels.get(k) == Some(v)) {
                merged.extend(s.iter().map(|(k, v)| (k.clone(), v.clone())));
            }
        }
        let mut selector = LabelSelector::from_map(&merged);
        if let Some((kind, name)) = &spec.owner
            && let Some(all) = self.owners.get(&**kind)
            && let Some(own) = all.get(&ObjectKey::new(&*spec.namespace, &**name))
        {
            selector.requirements.extend(own.requirements.iter().cloned());
        }
        selector
    }
}

/// Returns the matching form of a controller's selector; `None` when it is absent or invalid.
pub fn owner_selector(spec: Option<&LabelSelectorSpec>) -> Option<LabelSelector> {
    spec.and_then(|s| s.selector().ok())
}
