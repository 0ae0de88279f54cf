//! The command line of `kelson snapshot`.
use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};
use kelson_bundle::Passphrase;
use kelson_meta::CronSchedule;

use crate::s3_flags::S3Args;

/// The seal of a bundle to write.
#[derive(Args, Debug)]
pub struct SealArgs {
    /// File whose first line is the passphrase with which the snapshot is sealed.
    #[arg(long, value_name = "FILE", required_unless_present = "unsealed", conflicts_with = "unsealed")]
    pub passphrase_file: Option<PathBuf>,
    /// Do not seal the snapshot: all keys of the cluster are readable in it.
    #[arg(long)]
    pub unsealed: bool,
}

/// The passphrase of a bundle to read.
#[derive(Args, Debug)]
pub struct OpenArgs {
    /// File whose first line is the passphrase of the snapshot.
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

/// Reads the passphrase of a flag.
///
/// # Errors
/// The file cannot be read, or has no valid passphrase.
pub fn passphrase(file: Option<&PathBuf>) -> anyhow::Result<Option<Passphrase>> {
    let read = file.map(|file| Passphrase::read(file)).transpose();
    read.map_err(|e| anyhow::Error::new(e).context("--passphrase-file"))
}

/// Snapshots that `kelson server` saves on a schedule.
#[derive(Args, Debug, Clone)]
pub struct ScheduleArgs {
    /// Schedule of snapshots in the format of cron, such as `0 */12 * * *`, in the time zone of this machine. Of several
    /// servers on one etcd, one saves them [default: no snapshots are saved]
    #[arg(long, value_name = "CRON", value_parser = CronSchedule::parse)]
    pub snapshot_schedule_cron: Option<CronSchedule>,
    /// Number of snapshots to keep in the directory and in the bucket of scheduled snapshots, the newest ones.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub snapshot_retention: u32,
    /// Directory of scheduled snapshots [default: DIR/backups]
    #[arg(long, value_name = "DIR")]
    pub snapshot_dir: Option<PathBuf>,
    /// File whose first line is the passphrase with which scheduled snapshots are sealed.
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot_unsealed")]
    pub snapshot_passphrase_file: Option<PathBuf>,
    /// Do not seal scheduled snapshots: all keys of the cluster are readable in them.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub snapshot_unsealed: bool,
    #[command(flatten)]
    pub s3: S3Args,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Save a snapshot of a running server: its objects, CAs and keys, encryption configuration and address ranges.
    Save {
        /// Snapshot file to create, which must not exist, or a directory, in which the file gets a name with time and
        /// revision. With --s3 it may be omitted.
        #[arg(value_name = "FILE|DIR", required_unless_present = "s3")]
        file: Option<PathBuf>,
        #[command(flatten)]
        seal: SealArgs,
        #[command(flatten)]
        s3: S3Args,
        /// Data directory of the server.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Restore a snapshot into a stopped server, or into an empty directory. What was there before is kept under
    /// other names.
    Restore {
        /// Snapshot file; with --s3 its name in the bucket.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        open: OpenArgs,
        #[command(flatten)]
        s3: S3Args,
        /// Restore the objects only, and keep CAs, keys, encryption configuration and address ranges of the data
        /// directory.
        #[arg(long)]
        objects_only: bool,
        /// Data directory of the server.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Verify that a snapshot is whole and can be restored, and print a summary.
    Verify {
        /// Snapshot file; with --s3 its name in the bucket.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        open: OpenArgs,
        #[command(flatten)]
        s3: S3Args,
    },
    /// List the snapshots in a directory or a bucket, the newest first.
    List {
        /// Directory to which snapshots were saved.
        #[arg(value_name = "DIR", required_unless_present = "s3", conflicts_with = "s3")]
        dir: Option<PathBuf>,
        #[command(flatten)]
        s3: S3Args,
    },
    /// Delete old snapshots of a directory or a bucket. Files with other names than `kelson snapshot save DIR` gives are
    /// kept.
    Prune {
        /// Directory to which snapshots were saved.
        #[arg(value_name = "DIR", required_unless_present = "s3", conflicts_with = "s3")]
        dir: Option<PathBuf>,
        #[command(flatten)]
        s3: S3Args,
        /// Number of snapshots to keep, the newest ones.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
}
