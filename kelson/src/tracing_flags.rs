//! The tracing flag, as in upstream's API server.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use kelson_apiserver::Config;
use kelson_meta::Clock;
use kelson_tasks::{FILES, Tasks};
use kelson_traces::{Exporter, ExporterOptions, KeyValue, Pace, TracingConfiguration};
use sha2::{Digest as _, Sha256};

use crate::host;

/// The flag for tracing requests.
#[derive(Args, Debug, Clone)]
pub struct TracingArgs {
    /// TracingConfiguration file (apiserver.config.k8s.io): the collector for request spans and the sampling rate
    /// [default: no tracing]
    #[arg(long, value_name = "FILE")]
    pub tracing_config_file: Option<PathBuf>,
}

impl TracingArgs {
    /// Enables tracing as configured in the file, if there is one. The task that exports spans is one of `tasks`, which
    /// must not be a group that the server ends: it exports the last spans after the server has ended.
    pub async fn apply(&self, clock: Arc<dyn Clock>, tasks: &Tasks, config: &mut Config) -> anyhow::Result<()> {
        let Some(file) = self.tracing_config_file.clone() else { return Ok(()) };
        let configuration = FILES.run(move || read(&file)).await??;
        let resource = vec![
            KeyValue::text("service.name", "apiserver"),
            KeyValue::text("service.instance.id", server_id(&host::name().unwrap_or_default())),
        ];
        let options = ExporterOptions { configuration, resource, clock, pace: Pace::default(), tasks: tasks.clone() };
        let (tracer, counted) =
            Exporter::start(options).map_err(anyhow::Error::msg).context("--tracing-config-file")?;
        config.tracer = Some(tracer);
        config.registries.push(counted);
        Ok(())
    }
}

/// Reads and validates the file; errors are upstream's.
fn read(file: &Path) -> anyhow::Result<TracingConfiguration> {
    if !file.exists() {
        bail!("tracing-config-file {} does not exist", file.display());
    }
    let unreadable = || {
        format!(
            "failed to read tracing config: unable to read tracing configuration from {:?}",
            file.display().to_string()
        )
    };
    let text = std::fs::read(file).with_context(unreadable)?;
    let configuration = TracingConfiguration::decode(&text).map_err(anyhow::Error::msg);
    let configuration =
        configuration.context("failed to read tracing config: unable to decode tracing configuration data")?;
    let faults = configuration.check(None);
    match faults.is_empty() {
        true => Ok(configuration),
        false => bail!("failed to validate tracing configuration: {faults}"),
    }
}

/// Returns the name of the API server of a host, which is that of its Lease, as upstream.
fn server_id(host: &str) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut id = "apiserver-".to_owned();
    let (mut bits, mut held) = (0u32, 0u32);
    for byte in Sha256::digest(host.as_bytes()).iter().take(16) {
        (bits, held) = (bits << 8 | u32::from(*byte), held + 8);
        while held >= 5 {
            held -= 5;
            id.push(char::from(DIGITS[(bits >> held & 31) as usize]));
        }
        bits &= (1 << held) - 1;
    }
    // Three bits of 128 are left.
    id.push(char::from(DIGITS[(bits << (5 - held) & 31) as usize]));
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_servers_are_upstreams() {
        assert_eq!(server_id("localhost"), "apiserver-jgla3zmib2ggq5buc4hwi5talm");
        assert_eq!(server_id("").len(), "apiserver-".len() + 26);
    }

    #[test]
    fn files_are_checked() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("tracing.yaml");
        let reported = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(&file, text).expect("written");
            }
            read(&file).map_err(|e| format!("{e:#}"))
        };
        let shown = file.display();
        assert_eq!(reported(None), Err(format!("tracing-config-file {shown} does not exist")));
        const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n";
        assert_eq!(reported(Some(HEAD)), Ok(TracingConfiguration::default()));
        let data = "failed to read tracing config: unable to decode tracing configuration data";
        let unknown = reported(Some(&format!("{HEAD}x: 1")));
        assert_eq!(unknown, Err(format!("{data}: strict decoding error: unknown field \"x\"")));
        let rate = reported(Some(&format!("{HEAD}samplingRatePerMillion: -1")));
        let why = "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive";
        assert_eq!(rate, Err(format!("failed to validate tracing configuration: {why}")));
    }
}
