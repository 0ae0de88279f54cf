//! Webhooks and policies from files (`staticManifestsDir` of a plugin's configuration, KEP-5793). They apply before the
//! API is reachable, cannot be changed through it, and also apply to the API objects that configure admission. A
//! directory is read at startup, where an error stops the server, and then periodically, where an error keeps the
//! previous state.
#![allow(clippy::disallowed_methods, reason = "blocking: at the start, and in the lane for files")]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt as _;
use kelson_meta::Gvr;
use kelson_meta::tree::path::{at, list, text};
use kelson_tasks::FILES;
use parking_lot::RwLock;
use serde_json::Value;

use crate::{Dependencies, Versions};

const GROUP: &str = "admissionregistration.k8s.io";
const GATE: &str = "ManifestBasedAdmissionControlConfig";
/// The suffix of names of objects from files.
const SUFFIX: &str = ".static.k8s.io";
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
/// The maximum number of files in one directory, and of bytes in one file.
const FILES_MAX: usize = 1000;
const FILE_BYTES_MAX: u64 = 3 << 20;

/// A kind that a directory may contain, and its resource.
pub type Accepted = (&'static str, &'static str);

/// The configured directory with its current objects.
pub struct Manifests {
    dir: PathBuf,
    accepted: &'static [Accepted],
    versions: Arc<dyn Versions>,
    now: RwLock<Arc<Loaded>>,
}

/// The objects of a directory as they were read.
#[derive(Default)]
pub struct Loaded {
    /// Identifies this state of the directory.
    pub stamp: u64,
    objects: BTreeMap<&'static str, Vec<Value>>,
}

impl Loaded {
    /// Returns the objects of a resource, by name.
    pub fn of(&self, resource: &str) -> &[Value] {
        self.objects.get(resource).map_or(&[], Vec::as_slice)
    }
}

/// A document and the file that contains it.
struct Document {
    file: String,
    tree: Value,
}

impl Manifests {
    /// Reads the directory that a plugin's configuration names; `None` when it names none. Blocks, so only for startup.
    ///
    /// # Errors
    /// The first problem, in one line with the file's name.
    pub fn open(
        configuration: &Value,
        accepted: &'static [Accepted],
        d: &Dependencies,
    ) -> Result<Option<Arc<Self>>, String> {
        let given = text(configuration, &["staticManifestsDir"]);
        if given.is_empty() {
            return Ok(None);
        }
        if !d.gates.enabled(GATE) {
            return Err(format!(
                "staticManifestsDir: Forbidden: staticManifestsDir requires the {GATE} feature gate to be enabled"
            ));
        }
        let dir = PathBuf::from(given);
        let fault = |why: &str| format!("staticManifestsDir: Invalid value: {given:?}: {why}");
        if !dir.is_absolute() {
            return Err(fault("must be an absolute file path"));
        }
        match std::fs::metadata(&dir) {
            Err(e) => return Err(fault(&format!("unable to read: {e}"))),
            Ok(found) if !found.is_dir() => return Err(fault("must be a directory")),
            Ok(_) => {}
        }
        let manifests = Self { dir, accepted, versions: Arc::clone(&d.versions), now: RwLock::default() };
        let (stamp, documents) = read(&manifests.dir)?;
        // Built-in kinds are converted in memory, so this does not wait.
        let loaded = manifests.load(stamp, documents).now_or_never();
        *manifests.now.write() = Arc::new(loaded.ok_or("the admission configuration kinds are not available yet")??);
        Ok(Some(Arc::new(manifests)))
    }

    /// Returns the newest valid state.
    pub fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.now.read())
    }

    /// Reads the directory again. On an error it logs and keeps the previous state.
    pub async fn reload(&self) {
        let dir = self.dir.clone();
        let documents = FILES.run(move || read(&dir)).await.map_err(|e| e.to_string()).and_then(|read| read);
        let loaded = match documents {
            Ok((stamp, _)) if stamp == self.current().stamp => return,
            Ok((stamp, documents)) => self.load(stamp, documents).await,
            Err(why) => Err(why),
        };
        match loaded {
            Ok(loaded) => {
                tracing::info!(dir = %self.dir.display(), "applied changed admission configuration files");
                *self.now.write() = Arc::new(loaded);
            }
            Err(why) => {
                tracing::error!(dir = %self.dir.display(), %why, "changed admission configuration files are invalid; keeping the current ones");
            }
        }
    }

    async fn load(&self, stamp: u64, documents: Vec<Document>) -> Result<Loaded, String> {
        let mut loaded = Loaded { stamp, ..Loaded::default() };
        for Document { file, tree } in documents {
            let fault = |why: String| format!("error loading {file}: {why}");
            let is_list = text(&tree, &["kind"]) == "List";
            let items = if is_list { list(&tree, &["items"]).to_vec() } else { vec![tree] };
            for item in items {
                let (resource, object) = self.accept(item, &file).await.map_err(fault)?;
                let objects = loaded.objects.entry(resource).or_default();
                let name = text(&object, &["metadata", "name"]);
                if objects.iter().any(|o| text(o, &["metadata", "name"]) == name) {
                    return Err(fault(format!("duplicate name {name:?} found in file {file:?}")));
                }
                objects.push(object);
            }
        }
        for objects in loaded.objects.values_mut() {
            objects.sort_by(|a, b| text(a, &["metadata", "name"]).cmp(text(b, &["metadata", "name"])));
        }
        self.check_references(&loaded)?;
        Ok(loaded)
    }

    async fn accept(&self, item: Value, file: &str) -> Result<(&'static str, Value), String> {
        let (version, kind) = (text(&item, &["apiVersion"]).to_owned(), text(&item, &["kind"]).to_owned());
        let accepted = self.accepted.iter().find(|(name, _)| *name == kind);
        let Some((_, resource)) = accepted.filter(|_| version == format!("{GROUP}/v1")) else {
            return Err(format!("unsupported resource type {version} {kind} in file {file:?}"));
        };
        let object = self.versions.read_new(&Gvr::new(GROUP, "v1", *resource), item).await?;
        check_object(&object, &kind, file)?;
        Ok((*resource, object))
    }

    /// Checks that every binding refers to a policy of the same directory.
    fn check_references(&self, loaded: &Loaded) -> Result<(), String> {
        let policies: Vec<&str> = self
            .accepted
            .iter()
            .filter(|(kind, _)| kind.ends_with("Policy"))
            .flat_map(|(_, resource)| loaded.of(resource))
            .map(|policy| text(policy, &["metadata", "name"]))
            .collect();
        let bindings = self.accepted.iter().filter(|(kind, _)| kind.ends_with("Binding"));
        for binding in bindings.flat_map(|(_, resource)| loaded.of(resource)) {
            let (name, policy) = (text(binding, &["metadata", "name"]), text(binding, &["spec", "policyName"]));
            if !policies.contains(&policy) {
                return Err(format!(
                    "binding {name:?} references policy {policy:?} which does not exist in the manifest directory"
                ));
            }
        }
        Ok(())
    }
}

/// Checks the additional rules for objects from files: they must not need anything from the API.
fn check_object(object: &Value, kind: &str, file: &str) -> Result<(), String> {
    let name = text(object, &["metadata", "name"]);
    if !name.ends_with(SUFFIX) {
        return Err(format!("{name:?} in file {file:?} must have a name ending with {SUFFIX:?}"));
    }
    for webhook in list(object, &["webhooks"]) {
        let config = at(webhook, &["clientConfig"]);
        if !at(config, &["service"]).is_null() || text(config, &["url"]).is_empty() {
            return Err(format!(
                "webhook {:?} in {name:?} (file {file:?}): clientConfig.service is not supported for static manifests; use \
                 clientConfig.url instead",
                text(webhook, &["name"])
            ));
        }
    }
    for field in ["paramKind", "paramRef"] {
        if !at(object, &["spec", field]).is_null() {
            return Err(format!("{kind} {name:?}: spec.{field} is not supported for static manifests"));
        }
    }
    Ok(())
}

/// Returns the documents of a directory's manifests in the order of the files' names, and a hash of the state.
fn read(dir: &Path) -> Result<(u64, Vec<Document>), String> {
    let fault = |e: std::io::Error| format!("failed to read manifest directory {dir:?}: {e}");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_lowercase();
        if EXTENSIONS.contains(&extension.as_str()) && path.is_file() {
            files.push(path);
        }
    }
    if files.len() > FILES_MAX {
        return Err(format!("manifest directory {dir:?} has more than {FILES_MAX} files"));
    }
    files.sort();
    let (mut hasher, mut documents) = (DefaultHasher::new(), Vec::new());
    for path in files {
        let file = path.display().to_string();
        let fault = |e: &dyn std::fmt::Display| format!("failed to read file {file:?}: {e}");
        if std::fs::metadata(&path).map_err(|e| fault(&e))?.len() > FILE_BYTES_MAX {
            return Err(fault(&format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        let content = std::fs::read_to_string(&path).map_err(|e| fault(&e))?;
        content.hash(&mut hasher);
        for document in split(&content) {
            let (tree, duplicates) =
                kelson_codec::yaml::to_value(document.as_bytes()).map_err(|e| format!("error loading {file}: {e}"))?;
            if let Some(duplicate) = duplicates.first() {
                return Err(format!("error loading {file}: {duplicate}"));
            }
            if !tree.is_null() {
                documents.push(Document { file: file.clone(), tree });
            }
        }
    }
    // Never zero, which is the stamp of a state that was not read.
    Ok((hasher.finish() | 1, documents))
}

/// Splits a file into documents, which are separated by lines that begin with `---`.
fn split(content: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in content.lines() {
        if line.starts_with("---") {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.retain(|d| !d.trim().is_empty());
    documents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gated;
    use serde_json::json;

    const POLICIES: [Accepted; 2] = [
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    ];
    const HOOKS: [Accepted; 1] = [("ValidatingWebhookConfiguration", "validatingwebhookconfigurations")];

    fn manifest(kind: &str, name: &str, rest: &str) -> String {
        format!("apiVersion: admissionregistration.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}}}\n{rest}\n")
    }

    fn open(dir: &Path, accepted: &'static [Accepted]) -> Result<Option<Arc<Manifests>>, String> {
        Manifests::open(
            &json!({"staticManifestsDir": dir}),
            accepted,
            &gated(&[], "ManifestBasedAdmissionControlConfig=true"),
        )
    }

    #[tokio::test]
    async fn read_at_start_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let policy = manifest("ValidatingAdmissionPolicy", "p.static.k8s.io", "spec: {}");
        let binding =
            manifest("ValidatingAdmissionPolicyBinding", "b.static.k8s.io", "spec: {policyName: p.static.k8s.io}");
        write("a.yaml", &format!("{policy}---\n{binding}---\n"));
        write("notes.txt", "not a manifest");
        let manifests = open(dir.path(), &POLICIES).unwrap().unwrap();
        let names = || {
            let now = manifests.current();
            let all = POLICIES.iter().flat_map(|(_, resource)| now.of(resource).to_vec());
            all.map(|o| text(&o, &["metadata", "name"]).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["p.static.k8s.io", "b.static.k8s.io"]);
        let before = manifests.current();
        manifests.reload().await;
        assert!(Arc::ptr_eq(&before, &manifests.current()), "nothing has changed");
        let listed = json!({"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "a.static.k8s.io"}, "spec": {}}]});
        write("b.json", &listed.to_string());
        manifests.reload().await;
        assert_eq!(names(), ["a.static.k8s.io", "p.static.k8s.io", "b.static.k8s.io"]);
        write("c.yaml", "kind: [");
        manifests.reload().await;
        assert_eq!(names().len(), 3, "the last good state stays");
        assert_eq!(open(Path::new(""), &POLICIES).unwrap().map(drop), None);
    }

    #[test]
    fn the_gate_is_asked() {
        let part = json!({"staticManifestsDir": "/nowhere"});
        let fault = Manifests::open(&part, &HOOKS, &gated(&[], "")).err().unwrap();
        let want = "staticManifestsDir: Forbidden: staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate \
                    to be enabled";
        assert_eq!(fault, want);
    }

    #[test]
    fn faults_name_the_file() {
        let hook = |config: &str| {
            let rest = format!("webhooks: [{{name: h.example.com, clientConfig: {config}}}]");
            manifest("ValidatingWebhookConfiguration", "h.static.k8s.io", &rest)
        };
        let two =
            manifest("ValidatingWebhookConfiguration", "h.static.k8s.io", "") + "---\n" + &hook("{url: 'https://h'}");
        for (accepted, text, want) in [
            (
                &HOOKS[..],
                manifest("ValidatingWebhookConfiguration", "plain", ""),
                "must have a name ending with \".static.k8s.io\"",
            ),
            (&HOOKS[..], manifest("ConfigMap", "x.static.k8s.io", ""), "unsupported resource type"),
            (&HOOKS[..], hook("{service: {name: s, namespace: n}}"), "clientConfig.service is not supported"),
            (&HOOKS[..], hook("{}"), "use clientConfig.url instead"),
            (&HOOKS[..], two, "duplicate name \"h.static.k8s.io\""),
            (&HOOKS[..], "a: [".to_owned(), "error loading"),
            (
                &POLICIES[..],
                manifest("ValidatingAdmissionPolicy", "p.static.k8s.io", "spec: {paramKind: {kind: X}}"),
                "ValidatingAdmissionPolicy \"p.static.k8s.io\": spec.paramKind is not supported for static manifests",
            ),
            (
                &POLICIES[..],
                manifest("ValidatingAdmissionPolicyBinding", "b.static.k8s.io", "spec: {policyName: x}"),
                "references policy \"x\" which does not exist in the manifest directory",
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("m.yaml"), text).unwrap();
            let accepted: &'static [Accepted] = if accepted.len() == 1 { &HOOKS } else { &POLICIES };
            let why = open(dir.path(), accepted).err().unwrap();
            assert!(why.contains(want), "{why}");
        }
        for (dir, want) in [
            ("relative", "must be an absolute file path"),
            ("/nowhere/x", "unable to read"),
            ("/dev/null", "must be a directory"),
        ] {
            assert!(open(Path::new(dir), &HOOKS).err().unwrap().contains(want));
        }
    }
}
