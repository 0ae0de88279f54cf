//! `kelson credential-provider check IMAGE`: runs the configured plugins dry and says what they answered, without showing
//! a credential. Parsing the command line and the exit code are the binary's.
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_codec::go_duration;

use crate::config::{self, Config, ConfigError};
use crate::events::NoEvents;
use crate::keyring::Keyring;
use crate::metrics::Metrics;
use crate::plugin::cache::Answer;
use crate::plugin::exec::{Executor, ProcessExecutor};
use crate::plugin::{NoServiceAccounts, Options, PROCESSES_MAX, PodIdentity, Providers};
use crate::reference::{Reference, ReferenceError};
use crate::secret::masked;

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// Printed to standard output; each line ends with a newline, and no line shows a credential.
    pub text: String,
    /// The first fault; `None` if every provider that matches the image returned credentials that can be used.
    pub fault: Option<CheckError>,
}

/// Why `kelson credential-provider check` exits with an error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckError {
    /// The providers' configuration cannot be used. The message lists every fault by its field path.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The image's name cannot be parsed.
    #[error("couldn't parse image name {image:?}: {reason}")]
    Image {
        /// The name, as given.
        image: String,
        /// The error in the reference.
        reason: ReferenceError,
    },
    /// The configuration names no provider for the image.
    #[error("no provider matches image {0}")]
    NoProvider(String),
    /// A provider's process failed.
    #[error("{plugin}: FAILED after {took}: {reason}: {message}")]
    Failed {
        /// The provider's name.
        plugin: String,
        /// The time for which the process ran, in Go's duration format.
        took: String,
        /// The reason, as in the provider's error metric.
        reason: String,
        /// The error, in one sentence without credentials.
        message: String,
    },
    /// A provider that matches was not run, so whether it works is unknown.
    #[error("{plugin}: NOT RUN: {why}")]
    NotRun {
        /// The provider's name.
        plugin: String,
        /// Why the check could not run it.
        why: &'static str,
    },
    /// A provider returned an entry that the keyring cannot use.
    #[error("unusable: {0}")]
    Unusable(String),
}

/// Checks an image against the configuration at `config_path` with the plugins in `bin_dir`.
pub async fn check(image: &str, config_path: &Path, bin_dir: &Path) -> Report {
    match config::load(config_path, bin_dir) {
        Ok(config) => check_with(image, config, Arc::new(ProcessExecutor::new(bin_dir))).await,
        Err(e) => Report { text: String::new(), fault: Some(e.into()) },
    }
}

/// Checks an image with a parsed configuration and any executor of plugins.
pub async fn check_with(image: &str, config: Config, executor: Arc<dyn Executor>) -> Report {
    let repository = match Reference::parse(image) {
        Ok(r) => r.repository(),
        Err(reason) => {
            let fault = CheckError::Image { image: image.to_owned(), reason };
            return Report { text: String::new(), fault: Some(fault) };
        }
    };
    let metrics = Arc::new(Metrics::default());
    let options = options(executor, metrics.clone());
    let mut text =
        format!("Image {repository}\nConfiguration {} with {} providers\n", config.hash, config.providers.len());
    let defaults: Vec<(String, Duration, bool)> = config
        .providers
        .iter()
        .map(|p| {
            (
                p.name.clone(),
                p.default_cache_duration,
                p.token_attributes.as_ref().is_some_and(|t| t.require_service_account),
            )
        })
        .collect();
    let providers = Providers::new(config, options);
    let matching = providers.matching(&repository);
    if matching.is_empty() {
        return Report { text, fault: Some(CheckError::NoProvider(repository)) };
    }
    // The check has no pod: a provider that needs a service account is reported as not run.
    let lookup = providers.lookup(&repository, &PodIdentity::default()).await;
    let mut faults = Vec::new();
    let mut ring = Keyring::new();
    for name in &matching {
        let default = defaults.iter().find(|(n, ..)| n == name);
        if let Some(e) = lookup.errors.iter().find(|e| &e.plugin == name) {
            let fault = CheckError::Failed {
                plugin: name.clone(),
                took: go_duration(e.took),
                reason: e.fault.reason.to_string(),
                message: e.fault.message.clone(),
            };
            let _ = writeln!(text, "{fault}");
            if !e.fault.stderr.is_empty() {
                let _ = writeln!(text, "  stderr: {}", e.fault.stderr);
            }
            faults.push(fault);
            continue;
        }
        let Some(provided) = lookup.answers.iter().find(|a| &a.plugin == name) else {
            let needs = default.is_some_and(|(_, _, required)| *required);
            let why = if needs { "needs a pod's service account" } else { "does not apply to this image" };
            let fault = CheckError::NotRun { plugin: name.clone(), why };
            let _ = writeln!(text, "{fault}");
            faults.push(fault);
            continue;
        };
        let took = Duration::from_secs_f64(metrics.plugin(name).seconds.clamp(0.0, 3600.0));
        show(&mut text, name, took, &provided.answer, default.map(|(_, d, _)| *d).unwrap_or_default());
        ring.add_provided(provided);
    }
    list_candidates(&mut text, &ring, &repository);
    for fault in &ring.faults {
        let fault = CheckError::Unusable(fault.clone());
        let _ = writeln!(text, "  {fault}");
        faults.push(fault);
    }
    Report { text, fault: faults.into_iter().next() }
}

/// Options of providers that run without a node: no service accounts, no events.
fn options(executor: Arc<dyn Executor>, metrics: Arc<Metrics>) -> Options {
    Options {
        executor,
        accounts: Arc::new(NoServiceAccounts),
        clock: Arc::new(kelson_meta::SystemClock),
        events: Arc::new(NoEvents),
        metrics,
        processes_max: PROCESSES_MAX,
    }
}

/// Lists the credentials that a pull would try, in their order.
fn list_candidates(text: &mut String, ring: &Keyring, repository: &str) {
    let candidates = ring.lookup(repository);
    let _ = writeln!(text, "Credentials that would be tried: {}", candidates.len());
    for (i, c) in candidates.iter().enumerate() {
        let _ = writeln!(text, "  {}. {} from {}", i + 1, c.server, c.source);
    }
}

/// Formats a plugin's answer, without credentials.
fn show(text: &mut String, name: &str, took: Duration, answer: &Answer, default: Duration) {
    let _ = writeln!(text, "{name}: responded in {}", go_duration(took));
    let _ = writeln!(text, "  cache key type: {}", answer.key_type);
    let _ = match answer.cache_duration {
        Some(d) => writeln!(text, "  cache duration: {}", go_duration(d)),
        None => writeln!(text, "  cache duration: {} (default of the configuration)", go_duration(default)),
    };
    if answer.logins.is_empty() {
        text.push_str("  no credentials\n");
    }
    for (what, login) in &answer.logins {
        let _ = writeln!(text, "  {what}: user {}, password {}", masked(&login.username), set_or_not(&login.password));
    }
}

fn set_or_not(secret: &crate::secret::Secret) -> &'static str {
    if secret.is_empty() { "empty" } else { "set" }
}
