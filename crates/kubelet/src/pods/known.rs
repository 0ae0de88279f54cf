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
    /// UIDs of mirror pods, by those of the static pods they show.
    mirrors: Arc<Mutex<HashMap<String, String>>>,
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
    /// named by the UID of its mirror, the only one that the API knows (upstream: `TranslatePodUID`).
    pub fn find_exactly(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>> {
        let found = self.find(namespace, name)?;
        let own = pod::uid(&found);
        let is_meant = |uid| uid == own || self.mirrors.lock().get(own).is_some_and(|mirror| mirror == uid);
        uid.is_none_or(is_meant).then_some(found)
    }
    /// Which mirror pod shows a static pod; none does for the moment.
    pub(super) fn mirrored(&self, uid: &str, mirror: Option<&str>) {
        match mirror {
            Some(mirror) => self.mirrors.lock().insert(uid.to_owned(), mirror.to_owned()),
            None => self.mirrors.lock().remove(uid),
        };
    }
    pub(super) fn put(&self, pod: &Arc<Pod>) {
        self.pods.lock().insert(pod::uid(pod).to_owned(), Arc::clone(pod));
    }
    pub(super) fn remove(&self, uid: &str) {
        self.pods.lock().remove(uid);
        self.mirrors.lock().remove(uid);
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
        let found = |uid| known.find_exactly("n", "p", uid).is_some();
        assert!(found(None) && found(Some("second")) && !found(Some("first")));
    }

    #[test]
    fn a_static_pod_is_named_by_its_mirror_too() {
        let known = Known::default();
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "hash"}});
        known.put(&Arc::new(serde_json::from_value(pod).expect("a pod")));
        let found = |uid| known.find_exactly("n", "p", Some(uid)).is_some();
        assert!(!found("mirror"));
        known.mirrored("hash", Some("mirror"));
        assert!(found("mirror") && found("hash") && !found("other"));
        known.mirrored("hash", None);
        assert!(found("hash") && !found("mirror"));
    }
}
