//! A cluster with a private registry and credential provider plugins, and the search for secrets in everything that the
//! cluster left.
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kelson_blackbox::registry::{PULLER, Registry, TENANT, User, base64};
use kelson_blackbox::{Kubectl, Outcome, Process, eventually, repo_root};
use serde_json::Value;

/// The time that a pod may take to recover: the kubelet's back-off doubles from ten seconds.
pub const RECOVERY: Duration = Duration::from_secs(150);

/// A cluster with a registry that requires credentials.
pub struct World {
    pub registry: Registry,
    pub server: Process,
    pub k: Kubectl,
    pub plugins: Plugins,
    secrets: Mutex<Vec<String>>,
    ended: AtomicBool,
}

impl Drop for World {
    /// A test that failed half-way leaves no runtime and no network behind.
    fn drop(&mut self) {
        if !self.ended.load(Ordering::SeqCst) {
            let log = self.server.log();
            let tail: Vec<&str> = log.lines().filter(|l| !l.contains(" TRACE ") && !l.contains(" DEBUG ")).collect();
            println!("{}", tail[tail.len().saturating_sub(30)..].join("\n"));
            let _ = self.server.finish(false);
        }
    }
}

/// A directory of plugins and their configuration.
pub struct Plugins {
    dir: tempfile::TempDir,
}

/// Returns the answer of a valid plugin.
pub fn answer(host: &str, user: User, key_type: &str) -> String {
    format!(
        "cat > /dev/null\necho '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"{key_type}\",\"cacheDuration\":\"0s\",\"auth\":{{\"{host}\":{{\"username\":\"{}\",\"password\":\"{}\"}}}}}}'",
        user.name, user.password
    )
}

/// Returns one provider of a configuration; `more` is JSON fields that begin with a comma.
pub fn provider(name: &str, image: &str, more: &str) -> String {
    format!(
        "{{\"name\":\"{name}\",\"matchImages\":[\"{image}\"],\"defaultCacheDuration\":\"1m\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\"{more}}}"
    )
}

impl Plugins {
    pub fn new() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("kelson-plugins-").tempdir()?;
        fs::create_dir(dir.path().join("bin"))?;
        fs::create_dir(dir.path().join("seen"))?;
        Ok(Self { dir })
    }

    /// Installs a shell script as a plugin, atomically as a package manager does; `$SEEN` is a directory for its
    /// output.
    pub fn put(&self, name: &str, script: &str) -> Outcome {
        let new = self.dir.path().join(format!("{name}.new"));
        fs::write(&new, format!("#!/bin/sh\nSEEN='{}'\n{script}\n", self.seen("").display()))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(new, self.bin().join(name))?)
    }

    pub fn remove(&self, name: &str) -> Outcome {
        Ok(fs::remove_file(self.bin().join(name))?)
    }

    pub fn configure(&self, providers: &[String]) -> Outcome {
        let text = format!(
            "{{\"apiVersion\":\"kubelet.config.k8s.io/v1\",\"kind\":\"CredentialProviderConfig\",\"providers\":[{}]}}",
            providers.join(",")
        );
        self.configure_raw(&text)
    }

    pub fn configure_raw(&self, text: &str) -> Outcome {
        let new = self.dir.path().join("config.new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.config())?)
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("config.yaml")
    }

    pub fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    pub fn seen(&self, name: &str) -> PathBuf {
        self.dir.path().join("seen").join(name)
    }

    /// Returns the two flags.
    pub fn flags(&self) -> [String; 4] {
        [
            "--image-credential-provider-config".into(),
            self.config().display().to_string(),
            "--image-credential-provider-bin-dir".into(),
            self.bin().display().to_string(),
        ]
    }
}

impl World {
    /// Starts a cluster and waits until its node is Ready; its log at all levels is kept.
    pub fn start(registry: Registry, plugins: Plugins, more: &[&str]) -> anyhow::Result<Self> {
        let flags = plugins.flags();
        let mut args = vec!["--log-level", "trace"];
        if plugins.config().exists() {
            args.extend(flags.iter().map(String::as_str));
        }
        args.extend(more);
        let server = Process::start(&args, &repo_root().join(".cache/images"))?;
        let k = server.kubectl();
        let secrets = [PULLER, TENANT]
            .into_iter()
            .flat_map(|u| [u.password.to_owned(), u.basic(), base64(u.password.as_bytes())]);
        let world = Self {
            registry,
            server,
            k,
            plugins,
            secrets: Mutex::new(secrets.collect()),
            ended: AtomicBool::new(false),
        };
        eventually("a Ready node", Duration::from_secs(60), || {
            world.k.ok(&["wait", "node", "--all", "--for=condition=Ready", "--timeout=5s"])
        })?;
        Ok(world)
    }

    /// Adds a secret to search for at the end.
    pub fn secret(&self, text: impl Into<String>) {
        self.secrets.lock().expect("no test panics while it holds this").push(text.into());
    }

    /// Returns the node's metrics.
    pub fn metrics(&self) -> anyhow::Result<String> {
        let node = self.k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
        self.k.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")])
    }

    /// Searches everything that the cluster created for the secrets, then stops it. Secrets and tokens may only be in
    /// Secret objects and in the store.
    pub fn finish(self) -> Outcome {
        let mut places = vec![("the server's log".to_owned(), self.server.log())];
        places.push(("metrics".to_owned(), self.metrics()?));
        let kinds = self.k.ok(&["api-resources", "--verbs=list", "-o", "name"])?;
        // Resource usage is not stored, and is unavailable until the first samples.
        for kind in kinds.lines().filter(|k| *k != "secrets" && !k.ends_with(".metrics.k8s.io")) {
            places.push((kind.to_owned(), self.k.ok(&["get", kind, "--all-namespaces", "-o", "json"])?));
        }
        let cmdline = fs::read(format!("/proc/{}/cmdline", self.server.pid()?))?;
        places.push(("the command line".to_owned(), String::from_utf8_lossy(&cmdline).into_owned()));
        self.server.terminate()?;
        for file in files(&self.server.dir)? {
            let relative = file.strip_prefix(&self.server.dir)?.display().to_string();
            places.push((relative, String::from_utf8_lossy(&fs::read(&file)?).into_owned()));
        }
        let secrets = self.secrets.lock().expect("no test panics while it holds this").clone();
        ensure!(
            places.iter().any(|(p, t)| p.contains("log") && t.contains(" TRACE ")),
            "the log is not at trace level"
        );
        let found: Vec<String> = places
            .iter()
            .flat_map(|(place, text)| {
                secrets.iter().filter(move |s| text.contains(s.as_str())).map(move |s| (place, text, s))
            })
            .map(|(place, text, s)| {
                let at = text.find(s.as_str()).unwrap_or_default();
                let line = text[..at].rfind('\n').map_or(0, |i| i + 1);
                format!(
                    "{place}: {}",
                    text[line..].lines().next().unwrap_or_default().chars().take(300).collect::<String>()
                )
            })
            .collect();
        if !found.is_empty() {
            // The secret itself is not printed.
            bail!("secrets found in\n{}", found.join("\n"));
        }
        self.ended.store(true, Ordering::SeqCst);
        self.server.finish(false)
    }
}

/// Paths that are not searched: the store, which contains the Secret objects, and files of containers.
const ELSEWHERE: [&str; 5] = ["data/store", "data/images", "containerd/root", "containerd/state", "kubelet/pods"];

/// Returns all files below a directory.
fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && !ELSEWHERE.iter().any(|e| entry.path().ends_with(e)) {
            found.extend(files(&entry.path())?);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Returns a pod that sleeps, with a private image; `more` is YAML below `spec`.
pub fn pod(name: &str, image: &str, policy: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers: [{{name: main, image: '{image}', imagePullPolicy: {policy}, command: [sleep, '3600']}}]\n{more}"
    )
}

/// Returns the waiting state's reason and message, once there is one.
pub fn waiting(k: &Kubectl, pod: &str) -> anyhow::Result<(String, String)> {
    let pod = k.json(&["get", "pod", pod])?;
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let reason = text(&waiting["reason"]).context("not waiting")?;
    ensure!(reason != "ContainerCreating", "not tried yet");
    Ok((reason, text(&waiting["message"]).unwrap_or_default()))
}

/// Waits for a failed pull whose message has all these words, in both of its states.
pub fn refused(k: &Kubectl, pod: &str, words: &[&str]) -> Outcome {
    eventually(&format!("{pod} refused with {words:?}"), RECOVERY, || {
        let (reason, message) = waiting(k, pod)?;
        ensure!(["ErrImagePull", "ImagePullBackOff"].contains(&reason.as_str()), "{reason}: {message}");
        for w in words {
            ensure!(message.contains(w), "{reason}: {message}");
        }
        Ok(())
    })
}

/// Returns the events of an object: reason and message.
pub fn events(k: &Kubectl, name: &str) -> anyhow::Result<Vec<(String, String)>> {
    let selector = format!("involvedObject.name={name}");
    let list = k.json(&["get", "events", "--field-selector", &selector])?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    Ok(list["items"].as_array().into_iter().flatten().map(|e| (text(&e["reason"]), text(&e["message"]))).collect())
}

/// Waits for an event of a reason whose message has these words.
pub fn reported(k: &Kubectl, name: &str, reason: &str, words: &[&str]) -> Outcome {
    eventually(&format!("event {reason} of {name} with {words:?}"), Duration::from_secs(60), || {
        let all = events(k, name)?;
        let found = all.iter().any(|(r, m)| r == reason && words.iter().all(|w| m.contains(w)));
        ensure!(found, "{all:?}");
        Ok(())
    })
}

/// Waits until a pod is Ready after its problem was fixed.
pub fn recovers(k: &Kubectl, pod: &str) -> Outcome {
    let limit = format!("--timeout={}s", RECOVERY.as_secs());
    k.ok(&["wait", &format!("pod/{pod}"), "--for=condition=Ready", &limit])?;
    Ok(())
}
