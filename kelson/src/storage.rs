//! Opens what a server keeps: the store, in its directory, in its etcd member or in an etcd of the user, and the PKI.
#![allow(clippy::disallowed_methods, reason = "blocking: at start")]

use std::sync::Arc;

use anyhow::Context as _;
use jiff::Timestamp;
use kelson_encryption::Encryption;
use kelson_members::Member;
use kelson_metrics::Registry;
use kelson_pki::ClusterPki;
use kelson_store::{AtRest, Store, StoreOptions};
use kelson_tasks::{FILES, Tasks};

use crate::authorities::{self, PKI_DIR};
use crate::cli::ServerArgs;
use crate::{etcd_member, store_limits};

/// The last file that a first start writes for its CAs.
const LAST_KEY: &str = "sa.key";

/// Opens the store and the PKI, which block on the disk, and returns the metrics of an etcd if one is used.
pub async fn open(
    args: &ServerArgs,
    member: Option<&Member>,
    now: Timestamp,
    encryption: Option<Arc<Encryption>>,
    tasks: &Tasks,
) -> anyhow::Result<(Store, ClusterPki, Option<Registry>)> {
    let dir = &args.data_dir;
    let at_rest = encryption.map(|encryption| encryption as Arc<dyn AtRest>);
    // A first start creates the store before the CAs: if these exist, there was a store.
    let was_cluster = dir.join(PKI_DIR).join(LAST_KEY).exists();
    let bytes_max = store_limits::bytes_max(args.quota_backend_bytes);
    let store_options = StoreOptions {
        at_rest,
        must_exist: was_cluster,
        bytes_max,
        namespace_bytes_max: store_limits::namespace_bytes_max(args.quota_namespace_bytes, bytes_max),
        ..StoreOptions::default()
    };
    let options = authorities::options(dir);
    let store = async {
        let etcd = member.map_or_else(|| args.etcd.clone(), |member| etcd_member::storage(member, &args.etcd));
        if etcd.is_used() {
            let opened = etcd.open(store_options, tasks).await?;
            return Ok((opened.store, Some(opened.metrics)));
        }
        let store_dir = dir.join("store");
        let store = FILES.run(move || Store::open_dir(&store_dir, store_options)).await?;
        Ok::<_, anyhow::Error>((store.with_context(|| format!("data directory {}", dir.display()))?, None))
    };
    let pki = FILES.run(move || ClusterPki::open(&options, now));
    let (store, pki) = if was_cluster { tokio::join!(store, pki) } else { (Ok(store.await?), pki.await) };
    let (store, etcd) = store?;
    Ok((store, pki?.context("cluster PKI")?, etcd))
}
