//! Records of pulls on disk, under `image_manager/{pulling,pulled}` of the kubelet's directory, in the published form
//! (`ImagePullIntent` and `ImagePulledRecord`, `kubelet.config.k8s.io` v1beta1; v1alpha1 is read and rewritten). A file is
//! named by the SHA-256 of what it is about, replaced as a whole and synced: a record lost to a power cut would make a
//! private image look like one that was always there.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; at start before pods are")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const OLD_API_VERSION: &str = "kubelet.config.k8s.io/v1alpha1";
const PREFIX: &str = "sha256-";
const TEMPORARY: &str = ".tmp";
/// Largest record, bytes.
const RECORD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A pull that was begun.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullIntent {
    kind: String,
    api_version: String,
    /// The container's `image`.
    pub image: String,
}

/// An image that was pulled, and with what.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePulledRecord {
    kind: String,
    api_version: String,
    /// Last change, whole seconds.
    #[serde(with = "seconds")]
    pub last_updated_time: Timestamp,
    /// The runtime's reference.
    pub image_ref: String,
    /// The credentials by the container's `image` without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_empty")]
    pub credential_mapping: BTreeMap<String, ImagePullCredentials>,
}

/// The credentials that gave access to an image.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullCredentials {
    /// Pull secrets whose credentials gave access to the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub kubernetes_secrets: Vec<ImagePullSecret>,
    /// Service accounts whose tokens a plugin used.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub kubernetes_service_accounts: Vec<ImagePullServiceAccount>,
    /// Every pod of the node; then the lists are empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// A pull secret and the hash of what it held.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullSecret {
    /// The Secret's UID: a recreated one gives no access.
    pub uid: String,
    /// The Secret's namespace, which is the pod's.
    pub namespace: String,
    /// The Secret's name, which may have other content by now.
    pub name: String,
    /// The hash of [`crate::keyring::Candidate::hash`].
    pub credential_hash: String,
}

/// A service account whose token a plugin used.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ImagePullServiceAccount {
    /// The service account's UID: a recreated one gives no access.
    pub uid: String,
    /// The service account's namespace, which is the pod's.
    pub namespace: String,
    /// The service account's name, as the pod gives it.
    pub name: String,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

mod seconds {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(t: &Timestamp, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&kelson_meta::format_seconds(*t))
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Timestamp, D::Error> {
        // `null` is what a zero time is written as.
        let text = Option::<String>::deserialize(d)?;
        text.map_or(Ok(Timestamp::UNIX_EPOCH), |t| t.parse().map_err(serde::de::Error::custom))
    }
}

impl ImagePulledRecord {
    /// Creates a record without credentials: every pod must present some.
    pub fn new(image_ref: &str, now: Timestamp) -> Self {
        Self {
            kind: "ImagePulledRecord".to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: now,
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }
}

/// A form of record.
trait RecordForm: Serialize + for<'de> Deserialize<'de> {
    const KIND: &'static str;
    fn head(&mut self) -> (&str, &mut String);
    fn about(&self) -> &str;
}

impl RecordForm for ImagePullIntent {
    const KIND: &'static str = "ImagePullIntent";
    fn head(&mut self) -> (&str, &mut String) {
        (&self.kind, &mut self.api_version)
    }
    fn about(&self) -> &str {
        &self.image
    }
}

impl RecordForm for ImagePulledRecord {
    const KIND: &'static str = "ImagePulledRecord";
    fn head(&mut self) -> (&str, &mut String) {
        (&self.kind, &mut self.api_version)
    }
    fn about(&self) -> &str {
        &self.image_ref
    }
}

/// The records of one kubelet directory. All calls are blocking and short.
#[derive(Debug)]
pub struct Files {
    pulling: PathBuf,
    pulled: PathBuf,
}

impl Files {
    /// Opens, makes the directories (0700) and rewrites records of the older version.
    pub fn open(kubelet_dir: &Path) -> io::Result<Self> {
        let base = kubelet_dir.join("image_manager");
        let files = Self { pulling: base.join("pulling"), pulled: base.join("pulled") };
        for dir in [&files.pulling, &files.pulled] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        files.migrate::<ImagePullIntent>(&files.pulling);
        files.migrate::<ImagePulledRecord>(&files.pulled);
        Ok(files)
    }

    fn migrate<T: RecordForm>(&self, dir: &Path) {
        for (path, record) in list::<T>(dir) {
            let migrated = record.and_then(|(record, current)| if current { Ok(()) } else { write(dir, &record) });
            if let Err(e) = migrated {
                tracing::warn!(path = %path.display(), error = %e, "reading the image pull record failed; the image must be verified");
            }
        }
    }

    /// Notes that a pull begins.
    pub fn write_intent(&self, image: &str) -> io::Result<()> {
        let kind = ImagePullIntent::KIND.to_owned();
        write(&self.pulling, &ImagePullIntent { kind, api_version: API_VERSION.to_owned(), image: image.to_owned() })
    }

    /// Whether a pull was begun and not seen to end.
    pub fn intent_exists(&self, image: &str) -> io::Result<bool> {
        Ok(read::<ImagePullIntent>(&self.pulling.join(file_name(image)))?.is_some_and(|(i, _)| i.image == image))
    }

    /// Forgets an intent.
    pub fn delete_intent(&self, image: &str) -> io::Result<()> {
        remove(&self.pulling.join(file_name(image)))
    }

    /// All readable intents.
    pub fn intents(&self) -> Vec<String> {
        list::<ImagePullIntent>(&self.pulling).into_iter().filter_map(|(_, r)| r.ok()).map(|(i, _)| i.image).collect()
    }

    /// The record of an image, if there is one. An unreadable one is an error.
    pub fn record(&self, image_ref: &str) -> io::Result<Option<ImagePulledRecord>> {
        let found = read::<ImagePulledRecord>(&self.pulled.join(file_name(image_ref)))?;
        Ok(found.map(|(r, _)| r).filter(|r| r.image_ref == image_ref))
    }

    /// Writes a record.
    pub fn write_record(&self, record: &ImagePulledRecord) -> io::Result<()> {
        write(&self.pulled, record)
    }

    /// Forgets a record.
    pub fn delete_record(&self, image_ref: &str) -> io::Result<()> {
        remove(&self.pulled.join(file_name(image_ref)))
    }

    /// All readable records.
    pub fn records(&self) -> Vec<ImagePulledRecord> {
        list::<ImagePulledRecord>(&self.pulled).into_iter().filter_map(|(_, r)| r.ok()).map(|(r, _)| r).collect()
    }

    /// Returns the number of intents and records.
    pub fn counts(&self) -> (usize, usize) {
        (names(&self.pulling).count(), names(&self.pulled).count())
    }
}

fn file_name(about: &str) -> String {
    format!("{PREFIX}{:x}", Sha256::digest(about.as_bytes()))
}

fn names(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|e| {
            let name = e.file_name();
            let name = name.to_string_lossy();
            name.starts_with(PREFIX) && !name.ends_with(TEMPORARY) && e.file_type().is_ok_and(|t| t.is_file())
        })
        .map(|e| e.path())
}

fn list<T: RecordForm>(dir: &Path) -> Vec<(PathBuf, io::Result<(T, bool)>)> {
    names(dir)
        .filter_map(|path| match read(&path) {
            Ok(None) => None,
            Ok(Some(found)) => Some((path, Ok(found))),
            Err(e) => Some((path, Err(e))),
        })
        .collect()
}

/// The record and whether it is of the current version.
fn read<T: RecordForm>(path: &Path) -> io::Result<Option<(T, bool)>> {
    let mut data = Vec::new();
    match fs::File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
        Ok(f) => f.take(RECORD_BYTES_MAX).read_to_end(&mut data)?,
    };
    let mut record: T = serde_json::from_slice(&data).map_err(io::Error::other)?;
    let (kind, version) = record.head();
    if kind != T::KIND || (version != API_VERSION && version != OLD_API_VERSION) {
        return Err(io::Error::other(format!("must be a {} of a known version", T::KIND)));
    }
    let current = version == API_VERSION;
    API_VERSION.clone_into(version);
    Ok(Some((record, current)))
}

fn write<T: RecordForm>(dir: &Path, record: &T) -> io::Result<()> {
    let mut data = serde_json::to_vec(record)?;
    data.push(b'\n');
    let path = dir.join(file_name(record.about()));
    let temporary = dir.join(format!("{}{TEMPORARY}", file_name(record.about())));
    let written = (|| {
        let mut f = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        f.write_all(&data)?;
        f.sync_all()?;
        fs::rename(&temporary, &path)?;
        fs::File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        // The fault that counts is the first one.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_form() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        files.write_intent("repo.repo/test/test:v1").unwrap();
        let path = dir.path().join("image_manager/pulling").join(file_name("repo.repo/test/test:v1"));
        assert!(
            path.to_string_lossy().ends_with("sha256-ee81caca15454863449fb55a1d942904d56d5ed9f9b20a7cb3453944ea2c7e11")
        );
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"repo.repo/test/test:v1\"}\n"
        );
        assert!(files.intent_exists("repo.repo/test/test:v1").unwrap() && !files.intent_exists("x").unwrap());

        let mut record = ImagePulledRecord::new("testimageref", "2024-10-21T12:26:40Z".parse().unwrap());
        let secret = ImagePullSecret {
            uid: "u".into(),
            namespace: "default".into(),
            name: "s".into(),
            credential_hash: "h".into(),
        };
        let credentials = ImagePullCredentials { kubernetes_secrets: vec![secret], ..Default::default() };
        record.credential_mapping.insert("docker.io/testing/test".into(), credentials);
        files.write_record(&record).unwrap();
        let path = dir
            .path()
            .join("image_manager/pulled/sha256-b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064");
        assert_eq!(
            fs::read_to_string(path).unwrap(),
            "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"lastUpdatedTime\":\"2024-10-21T12:26:40Z\",\"imageRef\":\"testimageref\",\"credentialMapping\":{\"docker.io/testing/test\":{\"kubernetesSecrets\":[{\"uid\":\"u\",\"namespace\":\"default\",\"name\":\"s\",\"credentialHash\":\"h\"}]}}}\n"
        );
        assert_eq!(files.record("testimageref").unwrap().as_ref(), Some(&record));
        assert_eq!(files.counts(), (1, 1));
        files.delete_intent("repo.repo/test/test:v1").unwrap();
        files.delete_record("testimageref").unwrap();
        files.delete_record("testimageref").unwrap();
        assert_eq!(files.counts(), (0, 0));
    }

    #[test]
    fn older_and_broken_records() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = dir.path().join("image_manager/pulled");
        fs::create_dir_all(&pulled).unwrap();
        let old = pulled.join(file_name("old"));
        fs::write(&old, "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1alpha1\",\"lastUpdatedTime\":\"2024-10-21T12:26:40Z\",\"imageRef\":\"old\",\"credentialMapping\":{\"a\":{\"nodePodsAccessible\":true}}}").unwrap();
        fs::write(pulled.join(file_name("broken")), "{\"kind\":\"ImagePulledRecord\"").unwrap();
        fs::write(pulled.join("other"), "x").unwrap();
        let files = Files::open(dir.path()).unwrap();
        assert!(fs::read_to_string(&old).unwrap().contains("/v1beta1"));
        assert!(files.record("broken").is_err());
        assert_eq!(files.records().len(), 1);
        assert!(files.records()[0].credential_mapping["a"].node_pods_accessible);
    }
}
