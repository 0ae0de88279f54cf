//! Reloads the configuration files of authentication and authorization: a changed file is applied if it is valid,
//! otherwise the last valid state stays. Counted under upstream's names
//! (`apiserver_authentication_config_controller_…`, and likewise).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, or at start")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_apiserver::{IssuersError, Running};
use kelson_metrics::{GaugeVec, IntCounterVec, Registry};
use kelson_tasks::{FILES, Tasks};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::host;
use crate::identity::{self, IdentityArgs};

/// The interval at which files are checked.
const LOOK: Duration = Duration::from_secs(5);
/// The pause before retrying after an error that is not the file's (an issuer that does not answer).
const RETRY: Duration = Duration::from_secs(60);

/// One of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Authentication,
    Authorization,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Authorization => "authorization",
        }
    }
}

/// Why a file was not applied.
enum FileFault {
    /// It is invalid, and is not retried.
    Unsound(anyhow::Error),
    /// It is retried.
    Later(anyhow::Error),
}

/// A file that is reloaded.
struct Followed {
    what: What,
    file: PathBuf,
    /// The content with which the server was started.
    first: Vec<u8>,
    reloads: IntCounterVec,
    at: GaugeVec,
    server: String,
    /// The digest of the applied content.
    hash: Arc<Mutex<String>>,
}

/// The files that the command line names.
pub struct IdentityFiles {
    followed: Vec<Followed>,
    registry: Registry,
}

fn digest(data: &[u8]) -> String {
    let hex: String = Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

impl IdentityFiles {
    /// Reads the files before the server does: later changes are then detected.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(args: &IdentityArgs) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let server = digest(host::name().unwrap_or_default().as_bytes());
        let files = [
            (What::Authentication, "--authentication-config", &args.authentication_config),
            (What::Authorization, "--authorization-config", &args.authorization_config),
        ];
        let mut followed = Vec::new();
        for (what, flag, file) in files {
            let Some(file) = file else { continue };
            let first = identity::read(flag, file)?;
            followed.push(Followed::new(what, file.clone(), first, server.clone(), &registry));
        }
        Ok(Self { followed, registry })
    }

    /// Returns the metrics.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Follows the files until `tasks` ends.
    pub fn follow(self, args: &IdentityArgs, api: &Running, tasks: &Tasks) {
        let served = Arc::new(Served { args: args.clone(), api: api.clone() });
        for one in self.followed {
            let (one, served) = (Arc::new(one), Arc::clone(&served));
            tasks.supervise("identity-files", move || {
                let (one, served) = (Arc::clone(&one), Arc::clone(&served));
                async move { one.run(&*served).await }
            });
        }
    }
}

/// Applies the content of a file.
trait TakesUp: Send + Sync {
    /// Applies this content.
    fn take_up(&self, what: What, data: Vec<u8>) -> impl Future<Output = Result<(), FileFault>> + Send;
}

/// A running server, and its flags.
struct Served {
    args: IdentityArgs,
    api: Running,
}

impl TakesUp for Served {
    async fn take_up(&self, what: What, data: Vec<u8>) -> Result<(), FileFault> {
        match what {
            What::Authentication => {
                let parsed = self.args.authentication(&data).map_err(FileFault::Unsound)?;
                if parsed.anonymous != self.api.server().config.anonymous {
                    let why = "anonymous: Forbidden: changed from initial configuration file";
                    return Err(FileFault::Unsound(anyhow::anyhow!(why)));
                }
                self.api.replace_issuers(parsed.issuers).await.map_err(|error| match error {
                    IssuersError::Keys(_) => FileFault::Later(error.into()),
                    IssuersError::OwnIssuer(_) | IssuersError::NotConfigured => FileFault::Unsound(error.into()),
                })
            }
            What::Authorization => {
                let (modes, webhooks) = self.args.authorization(&data).map_err(FileFault::Unsound)?;
                self.api.replace_authorizers(&modes, &webhooks).map_err(|why| FileFault::Unsound(anyhow::anyhow!(why)))
            }
        }
    }
}

impl Followed {
    fn new(what: What, file: PathBuf, first: Vec<u8>, server: String, registry: &Registry) -> Self {
        let of = what.word();
        let name = |name: &str| format!("apiserver_{of}_config_controller_{name}");
        let labels = ["status", "apiserver_id_hash"];
        let help = |head: &str| format!("{head} of the {of} configuration, by outcome and server.");
        let reloads = registry.counters(&name("automatic_reloads_total"), &help("Reloads"), &labels);
        let at = registry.float_gauges(
            &name("automatic_reload_last_timestamp_seconds"),
            &help("Unix time in seconds of the last reload"),
            &labels,
        );
        let hash = Arc::new(Mutex::new(digest(&first)));
        let (shown, id, info) = (Arc::clone(&hash), server.clone(), name("last_config_info"));
        let reported = format!("Hash of the current {of} configuration.");
        registry.on_scrape(move |families| {
            let hash = shown.lock().clone();
            families.gauge(&info, &reported).sample(&[("apiserver_id_hash", &id), ("hash", &hash)], 1.0);
        });
        Self { what, file, first, reloads, at, server, hash }
    }

    fn count(&self, status: &str) {
        self.reloads.with_label_values(&[status, &self.server]).inc();
        self.at.with_label_values(&[status, &self.server]).set(Timestamp::now().as_second() as f64);
    }

    /// Applies the content of the file whenever it changes.
    async fn run(&self, server: &impl TakesUp) {
        let (mut known, mut unreadable) = (self.first.clone(), false);
        loop {
            tokio::time::sleep(LOOK).await;
            let file = self.file.clone();
            let data = match FILES.run(move || std::fs::read(file)).await {
                Ok(Ok(data)) => data,
                Ok(Err(error)) => {
                    // Logged once: the file may be about to be replaced, or missing for a while.
                    if !std::mem::replace(&mut unreadable, true) {
                        self.count("failure");
                        tracing::error!(file = %self.file.display(), %error, "reading the file failed; keeping the current configuration");
                    }
                    continue;
                }
                Err(_) => continue,
            };
            unreadable = false;
            if data == known {
                continue;
            }
            match server.take_up(self.what, data.clone()).await {
                Ok(()) => {
                    *self.hash.lock() = digest(&data);
                    self.count("success");
                    tracing::info!(file = %self.file.display(), "applied the changed {} configuration", self.what.word());
                    known = data;
                }
                Err(FileFault::Unsound(error)) => {
                    self.count("failure");
                    let error = format!("{error:#}");
                    tracing::error!(file = %self.file.display(), error, "changed file is invalid; keeping the current configuration");
                    known = data;
                }
                Err(FileFault::Later(error)) => {
                    self.count("failure");
                    let error = format!("{error:#}");
                    tracing::error!(file = %self.file.display(), error, "applying the changed file failed; retrying");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records what it applied; the issuer of `later` does not answer the first time.
    #[derive(Default)]
    struct Remembers(Mutex<(Vec<String>, bool)>);

    impl TakesUp for Arc<Remembers> {
        async fn take_up(&self, _: What, data: Vec<u8>) -> Result<(), FileFault> {
            let text = String::from_utf8(data).unwrap();
            let mut remembered = self.0.lock();
            match text.as_str() {
                "bad" => Err(FileFault::Unsound(anyhow::anyhow!("no YAML"))),
                "later" if !std::mem::replace(&mut remembered.1, true) => {
                    Err(FileFault::Later(anyhow::anyhow!("no answer")))
                }
                _ => {
                    remembered.0.push(text);
                    Ok(())
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sound_file_is_taken_up_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authz.yaml");
        std::fs::write(&file, "first").unwrap();
        let registry = Registry::new();
        let followed =
            Followed::new(What::Authorization, file.clone(), b"first".to_vec(), "sha256:id".into(), &registry);
        let failures = followed.reloads.with_label_values(&["failure", "sha256:id"]);
        let server = Arc::new(Remembers::default());
        let (hash, takes) = (Arc::clone(&followed.hash), Arc::clone(&server));
        let following = tokio::spawn(async move { followed.run(&takes).await });
        // The blocking pool for files runs on another thread, for which the paused clock does not wait, so the expected
        // state is waited for.
        let after = async |text: &str, wanted: usize, counted: u32| {
            // Atomically, as tools that change such files do.
            std::fs::write(file.with_extension("new"), text).unwrap();
            std::fs::rename(file.with_extension("new"), &file).unwrap();
            for round in 0..100_000 {
                tokio::time::sleep(RETRY).await;
                FILES.run(|| ()).await.unwrap();
                let done = failures.get() >= u64::from(counted) && server.0.lock().0.len() >= wanted;
                if round > 3 && done {
                    break;
                }
            }
            server.0.lock().0.clone()
        };
        assert!(after("first", 0, 0).await.is_empty());
        assert_eq!(after("second", 1, 0).await, ["second"]);
        assert_eq!(after("bad", 1, 1).await, ["second"]);
        assert_eq!(*hash.lock(), digest(b"second"), "what is in force");
        assert_eq!(after("later", 2, 2).await, ["second", "later"], "tried again when its issuer did not answer");
        let text = registry.text();
        let row = |status: &str, n: u32| {
            let name = "apiserver_authorization_config_controller_automatic_reloads_total";
            format!("{name}{{apiserver_id_hash=\"sha256:id\",status=\"{status}\"}} {n}")
        };
        assert!(text.contains(&row("success", 2)) && text.contains(&row("failure", 2)), "{text}");
        assert!(text.contains(&format!("hash=\"{}\"", digest(b"later"))), "{text}");
        following.abort();
    }
}
