//! The command line of `kelson snapshot`.
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kelson_bundle::Passphrase;

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

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Save a snapshot of a running server: its objects, CAs and keys, encryption configuration and address ranges.
    Save {
        /// Snapshot file to create, which must not exist, or a directory, in which the file gets a name with time and
        /// revision.
        #[arg(value_name = "FILE|DIR")]
        file: PathBuf,
        #[command(flatten)]
        seal: SealArgs,
        /// Data directory of the server.
        #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
        data_dir: PathBuf,
    },
    /// Restore a snapshot into a stopped server, or into an empty directory. What was there before is kept under
    /// other names.
    Restore {
        /// Snapshot file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        open: OpenArgs,
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
        /// Snapshot file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        open: OpenArgs,
    },
    /// List the snapshots in a directory, the newest first.
    List {
        /// Directory to which snapshots were saved.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Delete old snapshots of a directory. Files with other names than `kelson snapshot save DIR` gives are kept.
    Prune {
        /// Directory to which snapshots were saved.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Number of snapshots to keep, the newest ones.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
}
