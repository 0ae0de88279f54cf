//! The pods this node works on, for those who only look: the server, evictions, log rotation.
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::pod;

/// Pods by UID; cheap to clone.
#[derive(Clone, Default)]
pub struct Known {
    pods: Arc<Mutex<HashMap<String, Arc<Pod>>>>,
}

impl Known {
    /// All of them.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().values().cloned().collect()
    }
    /// By namespace and name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.lock().values().find(|p| pod::namespace(p) == namespace && pod::name(p) == name).cloned()
    }
    /// The same, if it is the very one that `uid` names: a pod made anew under the name is another one. A static pod is also
    /// named by the UID of its mirror, which `mirror_of` gives: it is the only one that the API knows (upstream:
    /// `TranslatePodUID`).
    pub fn find_exactly(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        mirror_of: impl Fn(&str) -> Option<String>,
    ) -> Option<Arc<Pod>> {
        let found = self.find(namespace, name)?;
        let own = pod::uid(&found);
        uid.is_none_or(|uid| uid == own || mirror_of(own).is_some_and(|mirror| mirror == uid)).then_some(found)
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
    fn a_pod_made_anew_is_another_one() {
        let known = Known::default();
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "second"}});
        known.put(&Arc::new(serde_json::from_value(pod).expect("a pod")));
        let found = |uid| known.find_exactly("n", "p", uid, |_| None).is_some();
        assert!(found(None) && found(Some("second")) && !found(Some("first")));
    }

    #[test]
    fn a_static_pod_is_named_by_its_mirror_too() {
        let known = Known::default();
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
