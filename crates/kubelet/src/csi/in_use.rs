//! CSI volumes that the node has mounted or may mount (`status.volumesInUse`). A volume is reported before it is mounted, so that the
//! attach-detach controller does not detach it from a running pod.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;

/// Maximum wait of a mount for the report to the API.
const REPORT_MAX: Duration = Duration::from_secs(60);

/// Volumes in use, their pods, and which volumes were reported. Clones share the state.
#[derive(Clone, Default)]
pub struct InUse {
    /// UIDs of pods, by the volume's unique name.
    users: watch::Sender<BTreeMap<String, BTreeSet<String>>>,
    reported: watch::Sender<BTreeSet<String>>,
}

/// Unique name of a CSI volume in the Node's status.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

impl InUse {
    /// Adds a pod's use of a volume and waits until it was reported to the API.
    ///
    /// # Errors
    /// The report did not succeed in time.
    pub async fn begin(&self, volume: &str, pod: &str) -> Result<(), String> {
        self.note(volume, pod);
        let mut reported = self.reported.subscribe();
        let report = reported.wait_for(|all| all.contains(volume));
        match tokio::time::timeout(REPORT_MAX, report).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err("the node's use of the volume could not be reported".to_owned()),
        }
    }

    /// Adds a pod's use of a volume that was found in the pod's directory.
    pub fn note(&self, volume: &str, pod: &str) {
        self.users.send_if_modified(|all| {
            let first = !all.contains_key(volume);
            all.entry(volume.to_owned()).or_default().insert(pod.to_owned());
            first
        });
    }

    /// Removes a pod's use of a volume. Returns whether it was the last. The next pod then waits for a new report, because a report without
    /// the volume may be in progress.
    pub fn end(&self, volume: &str, pod: &str) -> bool {
        let last = self.users.send_if_modified(|all| {
            let Some(users) = all.get_mut(volume) else { return false };
            users.remove(pod);
            let last = users.is_empty();
            if last {
                all.remove(volume);
            }
            last
        });
        if last {
            self.reported.send_if_modified(|all| all.remove(volume));
        }
        last
    }

    /// Removes all uses of a pod that is gone, including those that still wait for a report.
    pub fn leave(&self, pod: &str) {
        let its = |(volume, users): (&String, &BTreeSet<String>)| users.contains(pod).then(|| volume.clone());
        let its: Vec<String> = self.users.borrow().iter().filter_map(its).collect();
        for volume in its {
            self.end(&volume, pod);
        }
    }

    /// Returns whether another pod uses the volume.
    pub fn has_others(&self, volume: &str, pod: &str) -> bool {
        self.users.borrow().get(volume).is_some_and(|users| users.iter().any(|u| u != pod))
    }

    /// Returns all volumes in use.
    pub fn all(&self) -> Vec<String> {
        self.users.borrow().keys().cloned().collect()
    }

    /// Notifies when the set of volumes changes.
    pub fn changes(&self) -> watch::Receiver<BTreeMap<String, BTreeSet<String>>> {
        self.users.subscribe()
    }

    /// Records that these volumes were reported to the API.
    pub fn reported(&self, all: impl IntoIterator<Item = String>) {
        let all: BTreeSet<String> = all.into_iter().collect();
        self.reported.send_if_modified(|now| {
            let changed = *now != all;
            *now = all;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_mount_waits_until_its_volume_is_reported() {
        let all = InUse::default();
        let other = all.clone();
        let begun = async move { other.begin("v", "p").await };
        let report = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(all.all(), ["v"]);
            all.reported(all.all());
        };
        assert_eq!(tokio::join!(begun, report).0, Ok(()));
        all.note("v", "q");
        assert!(all.has_others("v", "p") && !all.end("v", "p"));
        assert!(!all.has_others("v", "q") && all.end("v", "q") && all.all().is_empty());
        assert!(all.begin("v", "p").await.is_err(), "a report before the last pod left does not count");
        assert!(all.begin("w", "p").await.is_err(), "there was no report to the API");
        all.note("w", "q");
        all.leave("p");
        assert_eq!(all.all(), ["w"], "what another pod waits for stays");
    }
}
