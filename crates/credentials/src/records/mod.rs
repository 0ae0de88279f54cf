//! Which pod may use an image that is on the node already (KEP-2535): what was pulled with which credentials, kept on
//! disk over restarts, and the decision whether a pod must show its own. What cannot be read never opens an image.
mod files;
mod policy;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use kelson_meta::Clock;
use parking_lot::Mutex;

pub use files::{
    Files, ImagePullCredentials, ImagePullIntent, ImagePullSecret, ImagePullServiceAccount, ImagePulledRecord,
};
pub use policy::{Allowlist, Policy, PolicyError};

use crate::keyring::{Candidate, Source};
use crate::metrics::Metrics;
use crate::reference;

/// Secrets of one image beyond which a mere look adds no more: a bound on writes where namespaces come and go.
const SECRETS_WRITTEN_BY_LOOK_MAX: usize = 100;

/// The node's records and its policy. Calls are blocking and short; the lock is held over the disk access, so that a
/// decision and a record never cross.
pub struct PulledImages {
    files: Files,
    policy: Policy,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// Pulls under way, by the container's `image`.
    intents: Mutex<HashMap<String, usize>>,
}

/// An image as the runtime lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedImage {
    /// The runtime's reference.
    pub id: String,
    /// Names it has, with tags.
    pub repo_tags: Vec<String>,
    /// Names it has, with digests.
    pub repo_digests: Vec<String>,
}

/// The credentials that a pod can present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presented {
    /// Its pull secrets that match the image.
    pub secrets: Vec<ImagePullSecret>,
    /// Its service account, where a plugin answered in its name.
    pub service_account: Option<ImagePullServiceAccount>,
}

impl Presented {
    /// Out of the candidates for the image; what all pods of the node have proves nothing.
    pub fn of(candidates: &[Candidate]) -> Self {
        let mut presented = Self::default();
        for c in candidates {
            match &c.source {
                Source::Secret(_) => presented.secrets.extend(ImagePullCredentials::of(Some(c)).kubernetes_secrets),
                Source::ServiceAccount(..) if presented.service_account.is_none() => {
                    presented.service_account = ImagePullCredentials::of(Some(c)).kubernetes_service_accounts.pop();
                }
                _ => {}
            }
        }
        presented
    }
}

impl ImagePullCredentials {
    /// Returns the record of a successful pull; `None` means that it needed no credentials.
    pub fn of(used: Option<&Candidate>) -> Self {
        let mut credentials = Self::default();
        match used.map(|c| (c, &c.source)) {
            None | Some((_, Source::Node | Source::Plugin(_))) => credentials.node_pods_accessible = true,
            Some((c, Source::Secret(at))) => credentials.kubernetes_secrets.push(ImagePullSecret {
                uid: at.uid.clone(),
                namespace: at.namespace.clone(),
                name: at.name.clone(),
                credential_hash: c.hash(),
            }),
            Some((_, Source::ServiceAccount(_, at))) => {
                credentials.kubernetes_service_accounts.push(ImagePullServiceAccount {
                    uid: at.uid.clone(),
                    namespace: at.namespace.clone(),
                    name: at.name.clone(),
                });
            }
        }
        credentials
    }
}

/// First half of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The pod may use the image as it is.
    Use,
    /// The image must be pulled with the pod's credentials.
    Pull,
    /// It depends on what the pod can show: see [`PulledImages::shown`].
    Show(ImagePullCredentials),
}

impl PulledImages {
    /// Opens the records below the kubelet's directory.
    pub fn open(kubelet_dir: &Path, policy: Policy, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> io::Result<Self> {
        Ok(Self { files: Files::open(kubelet_dir)?, policy, clock, metrics, intents: Mutex::default() })
    }

    /// Returns the number of intents and records on disk.
    pub fn counts(&self) -> (usize, usize) {
        self.files.counts()
    }

    /// Loads the state of an earlier run: a pull that was started and whose image exists counts as pulled with unknown
    /// credentials. Must be called once, before the first pull, with the runtime's images.
    pub fn initialize(&self, images: &[ListedImage]) {
        let _lock = self.intents.lock();
        let begun = self.files.intents();
        for image in images {
            for name in image.repo_tags.iter().chain(&image.repo_digests).filter(|n| begun.contains(n)) {
                let settled = self.record(name, &image.id, None).and_then(|()| self.files.delete_intent(name));
                if let Err(e) = settled {
                    tracing::warn!(image = %name, error = %e, "writing the image pull record failed");
                }
            }
        }
    }

    /// Notes that a pull begins; each call is followed by one of [`Self::pulled`] or [`Self::failed`].
    pub fn begin(&self, image: &str) -> io::Result<()> {
        let mut intents = self.intents.lock();
        self.files.write_intent(image)?;
        *intents.entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Records that a pull succeeded, and with which credentials. If it cannot be written, the intent remains instead.
    pub fn pulled(&self, image: &str, image_ref: &str, credentials: &ImagePullCredentials) {
        let mut intents = self.intents.lock();
        match self.record(image, image_ref, Some(credentials)) {
            Ok(()) => self.end(&mut intents, image),
            Err(e) => tracing::error!(image, image_ref, error = %e, "writing the image pull record failed"),
        }
    }

    /// Notes that a pull failed or was given up.
    pub fn failed(&self, image: &str) {
        self.end(&mut self.intents.lock(), image);
    }

    fn end(&self, intents: &mut HashMap<String, usize>, image: &str) {
        match intents.get_mut(image) {
            Some(n) if *n > 1 => *n -= 1,
            _ => match self.files.delete_intent(image) {
                Ok(()) => drop(intents.remove(image)),
                Err(e) => tracing::error!(image, error = %e, "removing the image pull intent failed"),
            },
        }
    }

    /// Whether `image`, which is there as `image_ref`, must be pulled for a pod.
    pub fn decide(&self, image: &str, image_ref: &str) -> Decision {
        if image_ref.is_empty() {
            return Decision::Pull;
        }
        let intents = self.intents.lock();
        let looked = self.files.record(image_ref).and_then(|record| {
            let begun = record.is_some() || intents.contains_key(image) || self.files.intent_exists(image)?;
            Ok((record, begun))
        });
        drop(intents);
        let (result, decision) = match looked {
            Err(e) => {
                tracing::error!(image, image_ref, error = %e, "reading the image pull records failed; verifying credentials");
                // Not readable is not the same as not there: it is not to open anything.
                if self.policy.verifies(image, true) {
                    ("error", Decision::Pull)
                } else {
                    ("credentialPolicyAllowed", Decision::Use)
                }
            }
            Ok((_, begun)) if !self.policy.verifies(image, begun) => ("credentialPolicyAllowed", Decision::Use),
            Ok((record, _)) => {
                let known = reference::without_tag(image).ok().and_then(|bare| record?.credential_mapping.remove(bare));
                match known {
                    Some(c) if c.node_pods_accessible => ("credentialRecordFound", Decision::Use),
                    Some(c) if !c.kubernetes_secrets.is_empty() || !c.kubernetes_service_accounts.is_empty() => {
                        return Decision::Show(c);
                    }
                    _ => ("mustAuthenticate", Decision::Pull),
                }
            }
        };
        self.metrics.must_pull(result);
        decision
    }

    /// Second half of a decision: whether what the pod shows is among what is known to open the image.
    pub fn shown(&self, image: &str, image_ref: &str, known: &ImagePullCredentials, shown: &Presented) -> bool {
        let found = self.secret_known(image, image_ref, known, shown)
            || shown.service_account.as_ref().is_some_and(|a| known.kubernetes_service_accounts.contains(a));
        self.metrics.must_pull(if found { "credentialRecordFound" } else { "mustAuthenticate" });
        found
    }

    fn secret_known(&self, image: &str, image_ref: &str, known: &ImagePullCredentials, shown: &Presented) -> bool {
        let room = known.kubernetes_secrets.len() < SECRETS_WRITTEN_BY_LOOK_MAX;
        for mine in &shown.secrets {
            for theirs in &known.kubernetes_secrets {
                let same_hash = !theirs.credential_hash.is_empty() && mine.credential_hash == theirs.credential_hash;
                let same_secret =
                    mine.uid == theirs.uid && mine.namespace == theirs.namespace && mine.name == theirs.name;
                let known = same_hash || (same_secret && room);
                if !known {
                    continue;
                }
                if same_hash != same_secret && room {
                    // The same credentials in another secret, or a secret with new ones: known from now on.
                    let more = ImagePullCredentials { kubernetes_secrets: vec![mine.clone()], ..Default::default() };
                    let _lock = self.intents.lock();
                    if let Err(e) = self.record(image, image_ref, Some(&more)) {
                        tracing::warn!(image, image_ref, error = %e, "writing the image pull record failed");
                    }
                }
                return true;
            }
        }
        false
    }

    /// Forgets images that the runtime no longer has; records newer than `until` stay. `until` was taken before the list.
    pub fn prune(&self, images: &[String], until: Timestamp) {
        let _lock = self.intents.lock();
        for record in self.files.records() {
            // Records hold whole seconds.
            if record.last_updated_time >= until || images.contains(&record.image_ref) {
                continue;
            }
            if let Err(e) = self.files.delete_record(&record.image_ref) {
                tracing::warn!(image_ref = %record.image_ref, error = %e, "removing the image pull record failed");
            }
        }
    }

    fn record(&self, image: &str, image_ref: &str, more: Option<&ImagePullCredentials>) -> io::Result<()> {
        let bare = reference::without_tag(image)
            .map_err(|e| io::Error::other(format!("invalid image name {image:?}: {e}")))?;
        let now = self.clock.now();
        let (mut record, mut changed) = match self.files.record(image_ref) {
            Ok(Some(record)) => (record, false),
            // An unreadable record is replaced.
            Ok(None) | Err(_) => (ImagePulledRecord::new(image_ref, now), true),
        };
        if let Some(more) = more.filter(|m| **m != ImagePullCredentials::default()) {
            changed |= merge(record.credential_mapping.entry(bare.to_owned()).or_default(), more);
        }
        if !changed {
            return Ok(());
        }
        record.last_updated_time = now;
        self.files.write_record(&record)
    }
}

/// Adds to what opens an image; says whether that was news.
fn merge(known: &mut ImagePullCredentials, more: &ImagePullCredentials) -> bool {
    if known.node_pods_accessible {
        return false;
    }
    if more.node_pods_accessible {
        *known = ImagePullCredentials { node_pods_accessible: true, ..Default::default() };
        return true;
    }
    let before = known.clone();
    for s in &more.kubernetes_secrets {
        known.kubernetes_secrets.retain(|k| (&k.uid, &k.namespace, &k.name) != (&s.uid, &s.namespace, &s.name));
        known.kubernetes_secrets.push(s.clone());
    }
    for a in &more.kubernetes_service_accounts {
        if !known.kubernetes_service_accounts.contains(a) {
            known.kubernetes_service_accounts.push(a.clone());
        }
    }
    known.kubernetes_secrets.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    known
        .kubernetes_service_accounts
        .sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    *known != before
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_meta::SystemClock;

    const IMAGE: &str = "r.io/team/app:1";

    fn open(dir: &Path, policy: Policy) -> PulledImages {
        PulledImages::open(dir, policy, Arc::new(SystemClock), Arc::default()).unwrap()
    }

    fn secret(name: &str, hash: &str) -> ImagePullSecret {
        ImagePullSecret {
            uid: format!("uid-{name}"),
            namespace: "ns".into(),
            name: name.into(),
            credential_hash: hash.into(),
        }
    }

    fn with_secret(name: &str, hash: &str) -> ImagePullCredentials {
        ImagePullCredentials { kubernetes_secrets: vec![secret(name, hash)], ..Default::default() }
    }

    fn may_use(p: &PulledImages, image: &str, shown: &Presented) -> bool {
        match p.decide(image, "sha256:id") {
            Decision::Use => true,
            Decision::Pull => false,
            Decision::Show(known) => p.shown(image, "sha256:id", &known, shown),
        }
    }

    #[test]
    fn another_tenants_private_image_must_not_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let p = open(dir.path(), Policy::default());
        let nothing = Presented::default();
        assert!(may_use(&p, IMAGE, &nothing), "preloaded");
        p.begin(IMAGE).unwrap();
        assert!(!may_use(&p, IMAGE, &nothing), "being pulled");
        p.pulled(IMAGE, "sha256:id", &with_secret("a", "h1"));
        assert_eq!(p.counts(), (0, 1));
        // The records survive a restart.
        let p = open(dir.path(), Policy::default());
        assert!(!may_use(&p, IMAGE, &nothing));
        let show = |s: ImagePullSecret| Presented { secrets: vec![s], ..Default::default() };
        assert!(!may_use(&p, IMAGE, &show(secret("b", "h2"))));
        assert!(may_use(&p, IMAGE, &show(secret("a", "h1"))));
        assert!(may_use(
            &p,
            "r.io/team/app@sha256:f24acc752be18b93b0504c86312bbaf482c9efb0c45e925bbccb0a591cebd7af",
            &show(secret("a", "h1"))
        ));
        assert!(!may_use(&p, "mirror.io/team/app:1", &show(secret("a", "h1"))), "the same image under another name");
        // The same credentials in another secret give access, and so does a secret whose credentials changed.
        assert!(may_use(&p, IMAGE, &show(secret("b", "h1"))));
        assert!(may_use(&p, IMAGE, &show(secret("a", "h3"))));
        assert!(may_use(&p, IMAGE, &show(secret("c", "h3"))));
        // A pull without credentials opens it for all.
        p.begin(IMAGE).unwrap();
        p.pulled(IMAGE, "sha256:id", &ImagePullCredentials::of(None));
        assert!(may_use(&p, IMAGE, &nothing));
    }

    #[test]
    fn a_pull_cut_short_by_a_crash_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), Policy::default()).begin(IMAGE).unwrap();
        let p = open(dir.path(), Policy::default());
        assert!(!may_use(&p, IMAGE, &Presented::default()));
        p.initialize(&[ListedImage { id: "sha256:id".into(), repo_tags: vec![IMAGE.into()], ..Default::default() }]);
        assert_eq!(p.counts(), (0, 1));
        assert!(!may_use(&p, IMAGE, &Presented::default()));
    }

    #[test]
    fn overlapping_pulls_keep_the_intent() {
        let dir = tempfile::tempdir().unwrap();
        let p = open(dir.path(), Policy::default());
        p.begin(IMAGE).unwrap();
        p.begin(IMAGE).unwrap();
        p.failed(IMAGE);
        assert_eq!(p.counts(), (1, 0));
        p.failed(IMAGE);
        assert_eq!(p.counts(), (0, 0));
    }

    #[test]
    fn service_accounts_and_policies() {
        let dir = tempfile::tempdir().unwrap();
        let p = open(dir.path(), Policy::AlwaysVerify);
        assert!(!may_use(&p, IMAGE, &Presented::default()));
        let account = ImagePullServiceAccount { uid: "u".into(), namespace: "ns".into(), name: "sa".into() };
        p.begin(IMAGE).unwrap();
        let used = ImagePullCredentials { kubernetes_service_accounts: vec![account.clone()], ..Default::default() };
        p.pulled(IMAGE, "sha256:id", &used);
        assert!(may_use(&p, IMAGE, &Presented { service_account: Some(account.clone()), ..Default::default() }));
        let again = ImagePullServiceAccount { uid: "other".into(), ..account };
        assert!(!may_use(&p, IMAGE, &Presented { service_account: Some(again), ..Default::default() }));
        let p = open(dir.path(), Policy::NeverVerify);
        assert!(may_use(&p, IMAGE, &Presented::default()));
    }

    #[test]
    fn an_unreadable_record_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let p = open(dir.path(), Policy::default());
        p.begin(IMAGE).unwrap();
        p.pulled(IMAGE, "sha256:id", &with_secret("a", "h1"));
        let pulled = dir.path().join("image_manager/pulled");
        let file = std::fs::read_dir(&pulled).unwrap().next().unwrap().unwrap().path();
        std::fs::write(file, "").unwrap();
        assert!(!may_use(&p, IMAGE, &Presented::default()));
    }

    #[test]
    fn pruned_with_their_images() {
        let dir = tempfile::tempdir().unwrap();
        let p = open(dir.path(), Policy::default());
        for id in ["one", "two"] {
            p.begin(IMAGE).unwrap();
            p.pulled(IMAGE, id, &ImagePullCredentials::of(None));
        }
        p.prune(&[], Timestamp::from_second(0).unwrap());
        assert_eq!(p.counts(), (0, 2));
        p.prune(&["one".to_owned()], Timestamp::MAX);
        assert_eq!(p.counts(), (0, 1));
    }
}
