//! The static pods of this node from all sources, and the changes among them.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_tasks::Tasks;

use crate::config::Config;
use crate::pod;
use crate::pods::inbox::{ManagerInbox, ManifestSource};
use crate::pods::{manifests, published};

/// Pods by namespace and name.
pub(super) type PodsByName = HashMap<(String, String), Arc<Pod>>;

/// Returns namespace and name.
pub(super) fn name(pod: &Pod) -> (String, String) {
    (pod::namespace(pod).to_owned(), pod::name(pod).to_owned())
}

/// Static pods by source.
#[derive(Debug, Default)]
pub(super) struct Statics {
    /// Sources that were not read yet.
    awaited: BTreeSet<ManifestSource>,
    by_source: BTreeMap<ManifestSource, Vec<Arc<Pod>>>,
    wanted: PodsByName,
}

impl Statics {
    /// Creates an empty set that awaits the configured sources.
    pub(super) fn new(config: &Config) -> Self {
        let sources = [
            (ManifestSource::Files, config.pod_manifest_path.is_some()),
            (ManifestSource::Url, config.published_pods.is_some()),
        ];
        let awaited = sources.into_iter().filter_map(|(source, is_there)| is_there.then_some(source)).collect();
        Self { awaited, ..Self::default() }
    }

    /// Returns whether every source was read at least once.
    pub(super) fn complete(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Replaces the pods of a source. Returns the static pods before and after. If two sources have a pod of the same name, the file takes
    /// precedence.
    pub(super) fn put(&mut self, source: ManifestSource, pods: Vec<Arc<Pod>>) -> (PodsByName, PodsByName) {
        self.awaited.remove(&source);
        self.by_source.insert(source, pods);
        let all = self.by_source.values().rev().flatten();
        let wanted: HashMap<_, _> = all.map(|p| (name(p), Arc::clone(p))).collect();
        (std::mem::replace(&mut self.wanted, wanted.clone()), wanted)
    }
}

/// Starts reading all sources of static pods for the manager.
pub fn read_manifests(tasks: &Tasks, config: &Config, to: &ManagerInbox) {
    let own = || (config.node_name.clone(), to.clone());
    if let Some(dir) = config.pod_manifest_path.clone() {
        let ((node, to), period) = (own(), config.manifests_every);
        tasks.supervise("manifests", move || manifests::run(dir.clone(), period, node.clone(), to.clone()));
    }
    if let Some(from) = config.published_pods.clone() {
        let (node, to) = own();
        tasks.supervise("published-pods", move || published::run(from.clone(), node.clone(), to.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::config::PublishedPods;

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": name, "namespace": "x", "uid": uid}, "spec": {"containers": []}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn uids(wanted: &PodsByName) -> Vec<&str> {
        let mut uids: Vec<&str> = wanted.values().map(|p| pod::uid(p)).collect();
        uids.sort_unstable();
        uids
    }

    #[test]
    fn static_pod_sources_are_awaited_and_independent() {
        let mut config = Config::new("n", Path::new("/"));
        assert!(Statics::new(&config).complete());
        config.pod_manifest_path = Some("/manifests".into());
        config.published_pods =
            Some(PublishedPods { url: String::new(), headers: Vec::new(), every: Duration::from_secs(20) });
        let mut statics = Statics::new(&config);
        let (before, now) = statics.put(ManifestSource::Url, vec![pod("a", "url-a"), pod("b", "url-b")]);
        assert!(before.is_empty() && !statics.complete());
        assert_eq!(uids(&now), ["url-a", "url-b"]);
        let (before, now) = statics.put(ManifestSource::Files, vec![pod("a", "file-a"), pod("c", "file-c")]);
        assert!(statics.complete());
        assert_eq!((uids(&before), uids(&now)), (vec!["url-a", "url-b"], vec!["file-a", "file-c", "url-b"]));
        let (_, now) = statics.put(ManifestSource::Files, Vec::new());
        assert_eq!(uids(&now), ["url-a", "url-b"]);
        let (before, now) = statics.put(ManifestSource::Url, Vec::new());
        assert_eq!((uids(&before).len(), now.len()), (2, 0));
    }
}
