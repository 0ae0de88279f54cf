//! What the node says of drivers' volumes it has mounted or may mount at any moment (`status.volumesInUse`). It says so
//! before it mounts, so that nobody detaches a volume under a pod.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;

/// How long a mount waits until the API has been told.
const REPORT_MAX: Duration = Duration::from_secs(60);

/// Volumes in use by the pods that use them, and what of it was reported; cheap to clone.
#[derive(Clone, Default)]
pub struct InUse {
    /// By the volume's name on nodes: UIDs of pods.
    users: watch::Sender<BTreeMap<String, BTreeSet<String>>>,
    reported: watch::Sender<BTreeSet<String>>,
}

/// The name that nodes know a driver's volume by.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

impl InUse {
    /// A pod is to have a volume: returns when the API knows.
    ///
    /// # Errors
    /// When the API could not be told in time.
    pub async fn begin(&self, volume: &str, pod: &str) -> Result<(), String> {
        self.note(volume, pod);
        let mut reported = self.reported.subscribe();
        let told = reported.wait_for(|all| all.contains(volume));
        match tokio::time::timeout(REPORT_MAX, told).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err("the node's use of the volume could not be reported".to_owned()),
        }
    }

    /// A pod has a volume, as its directory shows.
    pub fn note(&self, volume: &str, pod: &str) {
        self.users.send_if_modified(|all| {
            let first = !all.contains_key(volume);
            all.entry(volume.to_owned()).or_default().insert(pod.to_owned());
            first
        });
    }

    /// A pod has let go of a volume. Whether it was the last; the next pod then waits for a new report, because one that
    /// leaves the volume out may be under way.
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

    /// A pod is gone: it has no volume any more, also none that it only waited for.
    pub fn leave(&self, pod: &str) {
        let its = |(volume, users): (&String, &BTreeSet<String>)| users.contains(pod).then(|| volume.clone());
        let its: Vec<String> = self.users.borrow().iter().filter_map(its).collect();
        for volume in its {
            self.end(&volume, pod);
        }
    }

    /// Whether a pod other than this one has the volume.
    pub fn has_others(&self, volume: &str, pod: &str) -> bool {
        self.users.borrow().get(volume).is_some_and(|users| users.iter().any(|u| u != pod))
    }

    /// All volumes in use.
    pub fn all(&self) -> Vec<String> {
        self.users.borrow().keys().cloned().collect()
    }

    /// Rings when other volumes are in use than before.
    pub fn changes(&self) -> watch::Receiver<BTreeMap<String, BTreeSet<String>>> {
        self.users.subscribe()
    }

    /// The API was told of these.
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
    async fn a_mount_waits_until_it_was_told() {
        let all = InUse::default();
        let other = all.clone();
        let begun = async move { other.begin("v", "p").await };
        let told = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(all.all(), ["v"]);
            all.reported(all.all());
        };
        assert_eq!(tokio::join!(begun, told).0, Ok(()));
        all.note("v", "q");
        assert!(all.has_others("v", "p") && !all.end("v", "p"));
        assert!(!all.has_others("v", "q") && all.end("v", "q") && all.all().is_empty());
        assert!(all.begin("v", "p").await.is_err(), "what was told before the last pod went does not count");
        assert!(all.begin("w", "p").await.is_err(), "nobody told the API");
        all.note("w", "q");
        all.leave("p");
        assert_eq!(all.all(), ["w"], "what another pod waits for stays");
    }
}
