//! The pods of this node, for read access by the server, eviction and log rotation.
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::pod;

/// Pods by UID. Clones share the same map.
#[derive(Clone, Default)]
pub struct PodRegistry {
    pods: Arc<Mutex<HashMap<String, Arc<Pod>>>>,
}

impl PodRegistry {
    /// Returns all pods.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().values().cloned().collect()
    }
    /// Finds a pod by namespace and name. If an old pod of the name is ending, returns the new one, like upstream, whose index by name has
    /// the last added pod.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let made = |p: &Pod| p.metadata.creation_timestamp.as_ref().map(|t| t.0);
        self.named(namespace, name).into_iter().max_by_key(|p| (!pod::is_deleted(p), made(p)))
    }
    /// Finds a pod by namespace and name if its UID is `uid`: another pod of the same name does not match. A static pod is also found by
    /// the UID of its mirror pod, which `mirror_of` returns, because the API knows only that one (upstream: `TranslatePodUID`).
    pub fn find_exactly(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        mirror_of: impl Fn(&str) -> Option<String>,
    ) -> Option<Arc<Pod>> {
        let Some(uid) = uid else { return self.find(namespace, name) };
        let is_meant = |own: &str| uid == own || mirror_of(own).is_some_and(|mirror| mirror == uid);
        self.named(namespace, name).into_iter().find(|p| is_meant(pod::uid(p)))
    }
    fn named(&self, namespace: &str, name: &str) -> Vec<Arc<Pod>> {
        let pods = self.pods.lock();
        pods.values().filter(|p| pod::namespace(p) == namespace && pod::name(p) == name).cloned().collect()
    }
    pub(super) fn has(&self, uid: &str) -> bool {
        self.pods.lock().contains_key(uid)
    }
    pub(super) fn put(&self, pod: &Arc<Pod>) {
        self.pods.lock().insert(pod::uid(pod).to_owned(), Arc::clone(pod));
    }
    pub(super) fn remove(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_recreated_pod_is_a_different_pod() {
        let known = PodRegistry::default();
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "second"}});
        known.put(&Arc::new(serde_json::from_value(pod).expect("a pod")));
        let found = |uid| known.find_exactly("n", "p", uid, |_| None).is_some();
        assert!(found(None) && found(Some("second")) && !found(Some("first")));
    }

    #[test]
    fn a_name_refers_to_the_newest_pod() {
        let of = |uid: &str, made: &str, deleted: Option<&str>| -> Arc<Pod> {
            let metadata = json!({"name": "p", "namespace": "n", "uid": uid, "creationTimestamp": made,
                "deletionTimestamp": deleted});
            Arc::new(serde_json::from_value(json!({"metadata": metadata})).expect("a pod"))
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        for all in [[("old", early, Some(late)), ("new", late, None)], [("old", early, None), ("new", late, None)]] {
            let known = PodRegistry::default();
            all.iter().for_each(|(uid, made, deleted)| known.put(&of(uid, made, *deleted)));
            let found = |uid| known.find_exactly("n", "p", uid, |_| None).map(|p| pod::uid(&p).to_owned());
            assert_eq!(found(None).as_deref(), Some("new"));
            assert_eq!(found(Some("old")).as_deref(), Some("old"), "by its UID each is found");
        }
    }

    #[test]
    fn a_static_pod_is_found_by_its_mirrors_uid() {
        let known = PodRegistry::default();
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "hash"}});
        known.put(&Arc::new(serde_json::from_value(pod).expect("a pod")));
        let found = |uid, mirror: Option<&str>| {
            let mirror_of = |own: &str| mirror.filter(|_| own == "hash").map(str::to_owned);
            known.find_exactly("n", "p", Some(uid), mirror_of).is_some()
        };
        assert!(!found("mirror", None));
        let shown = Some("mirror");
        assert!(found("mirror", shown) && found("hash", shown) && !found("other", shown));
        assert!(found("hash", None) && !found("mirror", None));
    }
}
