//! `kelson cluster`: changes of the data of a stopped server with an etcd member.
#![allow(clippy::disallowed_methods, reason = "blocking: a command that does nothing else")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_etcd_store::migrate::{Members, Moved, OfflineMember, into_embedded, place, reset};
use kelson_etcd_store::{EtcdOptions, MediaType};
use kelson_store::limits::EVENT_TTL_S;
use kelson_store::{AtRest, StoreOptions};
use kelson_tasks::Tasks;

use crate::host;
use crate::lock::DataDirLock;

/// The name of the program of a member.
const ETCD: &str = "etcd";
/// The directory below a data directory with programs for its server.
const BIN_DIR: &str = "bin";

#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make a stopped server the only member of its etcd cluster, after a quorum of the members was lost for good.
    Reset(MemberData),
    /// Move the objects of a stopped server, the last member of its cluster, from etcd into its embedded store.
    LeaveLast {
        #[command(flatten)]
        of: MemberData,
        /// Encryption configuration of the server.
        #[arg(long, value_name = "FILE")]
        encryption_provider_config: Option<PathBuf>,
        /// Prefix of all keys in etcd.
        #[arg(long, value_name = "PATH", default_value = kelson_schema::storage::PREFIX)]
        etcd_prefix: String,
    },
}

/// The data of a member, and the program that reads it.
#[derive(Args, Debug)]
pub struct MemberData {
    /// Data directory of the server.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// etcd program of the member [default: DIR/bin/etcd, else etcd in PATH]
    #[arg(long, value_name = "FILE")]
    pub etcd_binary: Option<PathBuf>,
}

impl MemberData {
    /// Returns the etcd program.
    fn binary(&self) -> PathBuf {
        let installed = self.data_dir.join(BIN_DIR).join(ETCD);
        match &self.etcd_binary {
            Some(given) => given.clone(),
            None if installed.exists() => installed,
            None => ETCD.into(),
        }
    }

    /// Locks the data directory, which must exist, and returns its absolute path.
    fn lock(&self) -> anyhow::Result<(DataDirLock, PathBuf)> {
        let dir = std::path::absolute(&self.data_dir).context("--data-dir")?;
        if !dir.exists() {
            bail!("data directory {} does not exist", dir.display());
        }
        Ok((DataDirLock::take(&dir)?, dir))
    }
}

/// Runs a subcommand.
pub async fn run(command: ClusterCommand) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Reset(of) => {
            let (_lock, dir) = of.lock()?;
            let moved = reset(&dir, &of.binary()).await?;
            out!("{}", after_reset(&moved));
        }
        ClusterCommand::LeaveLast { of, encryption_provider_config, etcd_prefix } => {
            let (_lock, dir) = of.lock()?;
            let moved = leave_last(&dir, &of.binary(), encryption_provider_config, etcd_prefix).await?;
            out!("{}", after_leaving(&moved));
        }
    }
    Ok(())
}

async fn leave_last(dir: &Path, binary: &Path, encryption: Option<PathBuf>, prefix: String) -> anyhow::Result<Moved> {
    let tasks = Tasks::root("leave-last");
    place::settle(dir).with_context(|| dir.display().to_string())?;
    if !place::has_member(dir) {
        bail!("{} does not exist; there is no etcd member to leave", place::member_data(dir).display());
    }
    let at_rest = match encryption {
        Some(file) => {
            let (server_id, prefix) = (host::name()?, format!("/{}", prefix.trim_matches('/')));
            let options = EncryptionOptions {
                file,
                automatic_reload: false,
                server_id,
                prefix,
                tasks: tasks.child("encryption"),
            };
            let encryption = Encryption::start(options).await.context("--encryption-provider-config")?;
            Some(encryption as Arc<dyn AtRest>)
        }
        None => None,
    };
    let member = OfflineMember::start(binary, &place::member_data(dir), Members::Kept).await?;
    member.check_alone().await?;
    let options = EtcdOptions {
        servers: vec![member.server()],
        tls: Default::default(),
        prefix,
        media: MediaType::default(),
        compaction_every: Duration::ZERO,
        health_max: Duration::from_secs(2),
        size_every: Duration::ZERO,
        lease_reuse_s: 0,
        store: StoreOptions { at_rest, ..StoreOptions::default() },
        tasks: tasks.child("etcd"),
    };
    let stopped = async {
        tasks.token().cancel();
        if let Err(error) = member.stop().await {
            tracing::warn!(%error, "ending etcd failed");
        }
    };
    Ok(into_embedded(dir, options, EVENT_TTL_S, stopped).await?)
}

fn after_reset(moved: &Moved) -> String {
    format!(
        "this server is the only member of its cluster now, at revision {} with {} keys\n\
         the data of before is in {}\n\
         1. start this server\n\
         2. on each other server: stop it, remove DIR/etcd, and start it with --server and --token, so that it joins again\n",
        moved.revision,
        moved.objects,
        moved.aside.display()
    )
}

fn after_leaving(moved: &Moved) -> String {
    format!(
        "moved {} objects at revision {} into the embedded store\n\
         the etcd member of before is in {}\n\
         start this server without --cluster-init\n",
        moved.objects,
        moved.revision,
        moved.aside.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(dir: &Path) -> MemberData {
        MemberData { data_dir: dir.to_path_buf(), etcd_binary: None }
    }

    #[tokio::test]
    async fn without_a_member_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let absent = run(ClusterCommand::Reset(data(dir.path()))).await.unwrap_err().to_string();
        assert!(absent.contains("etcd/data does not exist"), "{absent}");
        let leave = ClusterCommand::LeaveLast {
            of: data(dir.path()),
            encryption_provider_config: None,
            etcd_prefix: "/registry".to_owned(),
        };
        let absent = run(leave).await.unwrap_err().to_string();
        assert!(absent.contains("no etcd member to leave"), "{absent}");
        let missing = run(ClusterCommand::Reset(data(&dir.path().join("none")))).await.unwrap_err().to_string();
        assert!(missing.contains("none does not exist"), "{missing}");
        let _lock = DataDirLock::take(dir.path()).unwrap();
        let locked = run(ClusterCommand::Reset(data(dir.path()))).await.unwrap_err().to_string();
        assert!(locked.contains("in use"), "a server runs: {locked}");
    }

    #[test]
    fn the_program_is_that_of_the_data_directory_if_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(data(dir.path()).binary(), Path::new("etcd"));
        let installed = dir.path().join("bin").join("etcd");
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::write(&installed, "").unwrap();
        assert_eq!(data(dir.path()).binary(), installed);
        let given = MemberData { etcd_binary: Some("/x/etcd".into()), ..data(dir.path()) };
        assert_eq!(given.binary(), Path::new("/x/etcd"));
    }
}
