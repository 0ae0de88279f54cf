//! `kelson credential-provider check IMAGE`: runs the configured plugins dry and says what they answered, without showing
//! a credential. Parsing the command line and the exit code are the binary's.
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_codec::go_duration;

use crate::config::{self, Config};
use crate::events::NoEvents;
use crate::keyring::Keyring;
use crate::metrics::Metrics;
use crate::plugin::cache::Answer;
use crate::plugin::exec::{Executor, ProcessExecutor};
use crate::plugin::{NoServiceAccounts, Options, PROCESSES_MAX, PodIdentity, Providers};
use crate::reference::Reference;
use crate::secret::masked;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// To print; ends with a newline.
    pub text: String,
    /// Whether everything is in order; if not, the exit code is not zero.
    pub fine: bool,
}

impl Report {
    /// The first fault in one line, for the end of the program; of a configuration that is not sound, that it is not.
    pub fn reason(&self) -> &str {
        let starts = ["unusable: ", "The configuration is not sound:"];
        let words = [": FAILED ", ": NOT RUN: "];
        let fault =
            |l: &&str| words.iter().any(|w| l.contains(w)) || starts.iter().any(|s| l.trim_start().starts_with(s));
        let mut lines = self.text.lines();
        let first = lines.clone().find(fault).or_else(|| lines.next_back()).unwrap_or_default().trim();
        // All the faults of a configuration are in the lines before.
        first.strip_suffix(':').unwrap_or(first)
    }
}

/// Checks an image against the configuration at `config_path` with the plugins in `bin_dir`.
pub async fn check(image: &str, config_path: &Path, bin_dir: &Path) -> Report {
    match config::load(config_path, bin_dir) {
        Ok(config) => check_with(image, config, Arc::new(ProcessExecutor::new(bin_dir))).await,
        Err(e) => {
            let mut text = String::from("The configuration is not sound:\n");
            for fault in &e.0 {
                let _ = writeln!(text, "  {fault}");
            }
            Report { text, fine: false }
        }
    }
}

/// Checks an image with a configuration and anything that can ask plugins.
pub async fn check_with(image: &str, config: Config, executor: Arc<dyn Executor>) -> Report {
    let repository = match Reference::parse(image) {
        Ok(r) => r.repository(),
        Err(e) => return Report { text: format!("couldn't parse image name {image:?}: {e}\n"), fine: false },
    };
    let metrics = Arc::new(Metrics::default());
    let options = Options {
        executor,
        accounts: Arc::new(NoServiceAccounts),
        clock: Arc::new(kelson_meta::SystemClock),
        events: Arc::new(NoEvents),
        metrics: metrics.clone(),
        processes_max: PROCESSES_MAX,
    };
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
        text.push_str("No provider matches.\n");
        return Report { text, fine: false };
    }
    // Nobody's identity: a provider that needs a service account says so below.
    let lookup = providers.lookup(&repository, &PodIdentity::default()).await;
    let mut fine = lookup.errors.is_empty();
    let mut ring = Keyring::new();
    for name in &matching {
        let default = defaults.iter().find(|(n, ..)| n == name);
        if let Some(e) = lookup.errors.iter().find(|e| &e.plugin == name) {
            let _ =
                writeln!(text, "{name}: FAILED after {}: {}: {}", go_duration(e.took), e.fault.reason, e.fault.message);
            if !e.fault.stderr.is_empty() {
                let _ = writeln!(text, "  stderr: {}", e.fault.stderr);
            }
            continue;
        }
        let Some(provided) = lookup.answers.iter().find(|a| &a.plugin == name) else {
            let needs = default.is_some_and(|(_, _, required)| *required);
            let why = if needs { "needs a pod's service account" } else { "is not for this image" };
            let _ = writeln!(text, "{name}: NOT RUN: {why}");
            // Whether it works is not known, which must not look like a success.
            fine = false;
            continue;
        };
        let took = Duration::from_secs_f64(metrics.plugin(name).seconds.clamp(0.0, 3600.0));
        show(&mut text, name, took, &provided.answer, default.map(|(_, d, _)| *d).unwrap_or_default());
        ring.add_provided(provided);
    }
    let candidates = ring.lookup(&repository);
    let _ = writeln!(text, "Credentials that would be tried: {}", candidates.len());
    for (i, c) in candidates.iter().enumerate() {
        let _ = writeln!(text, "  {}. {} from {}", i + 1, c.server, c.source);
    }
    for fault in &ring.faults {
        fine = false;
        let _ = writeln!(text, "  unusable: {fault}");
    }
    Report { text, fine }
}

/// What a plugin answered, without a credential.
fn show(text: &mut String, name: &str, took: Duration, answer: &Answer, default: Duration) {
    let _ = writeln!(text, "{name}: answered in {}", go_duration(took));
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
