//! The storage of a server: its data directory, or an etcd cluster, with upstream's flags.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use kelson_etcd_store::{EtcdOptions, EtcdStore, MediaType, TlsFiles};
use kelson_meta::parse_duration;
use kelson_store::StoreOptions;
use kelson_tasks::Tasks;

/// An etcd cluster that stores the objects, and how they are stored there. Other API servers, including upstream's, may
/// use the same one.
#[derive(Args, Debug, Clone)]
pub struct EtcdArgs {
    /// URLs of the etcd cluster that stores the objects [default: objects are stored in the data directory]
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// CA bundle for etcd's serving certificates [default: the system's CAs]
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for requests to etcd.
    #[arg(long, value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,
    /// Private key of that certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Prefix of all keys in etcd.
    #[arg(long, value_name = "PATH", default_value = kelson_schema::storage::PREFIX)]
    pub etcd_prefix: String,
    /// Storage backend; only `etcd3` is supported.
    #[arg(long, value_name = "NAME", value_parser = ["", "etcd3"], default_value = "", hide_default_value = true)]
    pub storage_backend: String,
    /// Media type in which built-in kinds are stored in etcd: application/vnd.kubernetes.protobuf or application/json.
    #[arg(long, value_name = "TYPE", default_value = "application/vnd.kubernetes.protobuf")]
    pub storage_media_type: String,
    /// Interval of etcd compactions; 0 disables compaction by the API server.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub etcd_compaction_interval: Duration,
    /// Timeout of etcd reads in the health check.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub etcd_healthcheck_timeout: Duration,
    /// Timeout of etcd reads in the readiness check.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub etcd_readycheck_timeout: Duration,
    /// Interval of queries of the etcd database size; 0 disables them.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub etcd_db_metric_poll_interval: Duration,
    /// Interval of object counts; without effect, counts are always current.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub etcd_count_metric_poll_period: Duration,
    /// Time in seconds for which objects with a TTL share an etcd lease.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub lease_reuse_duration_seconds: u64,
    /// Separate etcd clusters per resource; not supported.
    #[arg(long, value_name = "GROUP/RESOURCE#URL;…", value_delimiter = ',', hide = true)]
    pub etcd_servers_overrides: Vec<String>,
}

impl EtcdArgs {
    /// Reports whether objects are stored in etcd.
    pub fn is_used(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Returns `--etcd-prefix` with a leading and without a trailing slash.
    pub fn prefix(&self) -> String {
        format!("/{}", self.etcd_prefix.trim_matches('/')).trim_end_matches('/').to_owned()
    }

    /// Opens the storage.
    pub async fn open(&self, store: StoreOptions, tasks: &Tasks) -> anyhow::Result<EtcdStore> {
        if !self.etcd_servers_overrides.is_empty() {
            bail!("--etcd-servers-overrides is not supported: all resources are kept on --etcd-servers");
        }
        let media = MediaType::parse(&self.storage_media_type).with_context(|| {
            format!(
                "--storage-media-type {:?}: nothing is stored in it; application/vnd.kubernetes.protobuf and application/json are",
                self.storage_media_type
            )
        })?;
        let options = EtcdOptions {
            servers: self.etcd_servers.clone(),
            tls: TlsFiles {
                ca: self.etcd_cafile.clone(),
                cert: self.etcd_certfile.clone(),
                key: self.etcd_keyfile.clone(),
            },
            prefix: self.etcd_prefix.clone(),
            media,
            compaction_every: self.etcd_compaction_interval,
            health_max: self.etcd_healthcheck_timeout.min(self.etcd_readycheck_timeout),
            size_every: self.etcd_db_metric_poll_interval,
            lease_reuse_s: self.lease_reuse_duration_seconds,
            store,
            tasks: tasks.child("etcd"),
        };
        EtcdStore::open(options).await.context("--etcd-servers")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        etcd: EtcdArgs,
    }

    #[test]
    fn flags_as_clusters_pass_them() {
        let line = Line::parse_from(
            "x --etcd-servers=http://a:1,http://b:1 --etcd-servers http://c:1 --etcd-prefix=registry/ \
             --etcd-compaction-interval=0 --storage-backend=etcd3 --lease-reuse-duration-seconds=5"
                .split_whitespace(),
        );
        assert_eq!(line.etcd.etcd_servers, ["http://a:1", "http://b:1", "http://c:1"]);
        assert_eq!(line.etcd.prefix(), "/registry");
        assert!(line.etcd.is_used() && line.etcd.etcd_compaction_interval.is_zero());
        assert!(!Line::parse_from(["x"]).etcd.is_used());
        assert!(Line::try_parse_from(["x", "--storage-backend=etcd2"]).is_err());
    }

    #[tokio::test]
    async fn what_is_not_supported_is_refused_in_words() {
        let tasks = Tasks::root("test");
        for (flag, word) in [
            ("--etcd-servers-overrides=/events#http://a:1", "--etcd-servers-overrides"),
            ("--storage-media-type=application/yaml", "--storage-media-type"),
            ("--etcd-certfile=/none", "--etcd-servers"),
        ] {
            let line = Line::parse_from(["x", "--etcd-servers=https://a:1", flag]);
            let refused = line.etcd.open(StoreOptions::default(), &tasks).await.err().unwrap();
            assert!(format!("{refused:#}").contains(word), "{refused:#}");
        }
    }
}
