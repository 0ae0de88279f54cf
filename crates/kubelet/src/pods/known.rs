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
    pub(super) fn put(&self, pod: &Arc<Pod>) {
        self.pods.lock().insert(pod::uid(pod).to_owned(), Arc::clone(pod));
    }
    pub(super) fn remove(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }
}
