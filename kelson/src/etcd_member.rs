//! The etcd member that `kelson server` starts and supervises: flags, start or join, and what the API shows of it.
#![allow(clippy::disallowed_methods, reason = "blocking: at start")]

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use kelson_apiserver::Config;
use kelson_client::{Client, EventRecorder, EventType, ObjectRef};
use kelson_etcd_store::MediaType;
use kelson_etcd_store::migrate::{IntoEtcd, before_first_member, place};
use kelson_members::{Member, MemberError, MemberOptions, Phase, Start};
use kelson_meta::SystemClock;
use kelson_pki::ClusterPki;
use kelson_store::{AtRest, StoreOptions};
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::broadcast::error::RecvError;

use crate::cli::ServerArgs;
use crate::etcd_flags::EtcdArgs;
use crate::joining::{self, Admits, JoinService};
use crate::{host, server_token};

/// Returns the options of this server's member. `address` is the advertised one.
pub fn options(args: &ServerArgs, address: IpAddr, tasks: &Tasks) -> anyhow::Result<MemberOptions> {
    let is_given =
        args.advertise_address.is_some() || !args.bind_address.is_unspecified() || args.host.node_ip.is_some();
    Ok(MemberOptions {
        data_dir: std::path::absolute(&args.data_dir).context("--data-dir")?,
        binary: args.member.etcd_binary.clone(),
        name: args.host.node_name.clone().map_or_else(host::name, Ok)?,
        peer_address: address,
        peer_address_given: is_given,
        peer_port: args.member.etcd_peer_port,
        client_port: args.member.etcd_client_port,
        quota_bytes: args.quota_backend_bytes,
        tasks: tasks.clone(),
        clock: Arc::new(SystemClock),
    })
}

/// Receives the CAs and settings of the cluster that this server joins by `--server`, unless it has joined already. The caller has
/// the lock of the data directory.
///
/// # Errors
/// The flags contradict each other, or the server to join rejects this one.
pub async fn receive(args: &ServerArgs, address: IpAddr, tasks: &Tasks) -> anyhow::Result<()> {
    if args.member.server.is_none() {
        if args.member.token.is_some() {
            tracing::warn!("--token has no effect without --server");
        }
        return Ok(());
    }
    if let Some(settings) = kelson_members::settings(&args.data_dir).await? {
        match settings.phase {
            Phase::Joining => tracing::info!("continuing to join the cluster"),
            _ => tracing::info!("this server is a member of a cluster already; --server and --token have no effect"),
        }
        return Ok(());
    }
    if args.member.cluster_init {
        bail!("--cluster-init and --server exclude each other: one server starts the cluster, and the others join it");
    }
    if args.etcd.is_used() {
        bail!("--etcd-servers and --server exclude each other: a server that joins has its own etcd member");
    }
    joining::receive(&args.member, &options(args, address, tasks)?).await
}

/// Starts the member if this server has one, gets one with `--cluster-init`, or joins. Waits until it can serve the API server.
///
/// # Errors
/// The flags contradict each other or the settings on disk; the member cannot run.
pub async fn start(
    args: &ServerArgs,
    address: IpAddr,
    at_rest: Option<Arc<dyn AtRest>>,
    tasks: &Tasks,
) -> anyhow::Result<Option<Arc<Member>>> {
    let settings = kelson_members::settings(&args.data_dir).await?;
    let joins = args.member.server.is_some();
    let (has_member, is_joining) = (settings.is_some(), settings.is_some_and(|it| it.phase == Phase::Joining));
    // Data without settings is that of an embedded store that was moved before the server was killed.
    let was_moved = place::member_data(&args.data_dir).exists();
    let start = match (has_member, args.member.cluster_init || was_moved) {
        (true, _) => Start::Resume,
        (false, _) if joins => {
            let member = joining::enter(&args.member, &options(args, address, tasks)?).await?;
            return Ok(Some(Arc::new(member)));
        }
        (false, true) => Start::Init,
        (false, false) => return Ok(None),
    };
    if args.etcd.is_used() {
        bail!(
            "--etcd-servers cannot be used by a server with an etcd member ({}): use the one or the other",
            kelson_members::Layout::new(&args.data_dir).dir().display()
        );
    }
    let options = options(args, address, tasks)?;
    if !has_member {
        kelson_members::check_program(&options, None).await.context("etcd member")?;
        move_embedded(args, at_rest).await?;
    }
    let member = match Member::start(options.clone(), start).await {
        // The cluster removed the learner of an interrupted join, or has other members by now.
        Err(MemberError::Removed { .. } | MemberError::StaleCluster) if is_joining && joins => {
            joining::enter(&args.member, &options).await?
        }
        started => started.context("etcd member")?,
    };
    Ok(Some(Arc::new(member)))
}

/// Moves the objects of an embedded store into the data of the first member, before it starts.
async fn move_embedded(args: &ServerArgs, at_rest: Option<Arc<dyn AtRest>>) -> anyhow::Result<()> {
    let options = IntoEtcd {
        data_dir: args.data_dir.clone(),
        prefix: args.etcd.prefix(),
        media: MediaType::parse(&args.etcd.storage_media_type).unwrap_or_default(),
        store: StoreOptions { at_rest, ..StoreOptions::default() },
    };
    before_first_member(options).await.context("--cluster-init")?;
    Ok(())
}

/// Returns the flags of a store on the member.
pub fn storage(member: &Member, etcd: &EtcdArgs) -> EtcdArgs {
    let tls = member.tls();
    EtcdArgs {
        etcd_servers: member.servers(),
        etcd_cafile: tls.ca,
        etcd_certfile: tls.cert,
        etcd_keyfile: tls.key,
        ..etcd.clone()
    }
}

/// Adds joins of other servers, metrics and the health check of the member to the API server.
pub fn show(member: Option<&Arc<Member>>, data_dir: &Path, config: &mut Config) {
    let admits = member.map(|member| Arc::clone(member) as Arc<dyn Admits>);
    config.join = Some(Arc::new(JoinService::new(data_dir.to_owned(), admits)));
    let Some(member) = member else { return };
    config.registries.push(member.metrics());
    let member = Arc::clone(member);
    config.checks.push(("etcd-member", Arc::new(move || member.fault().map_or(Ok(()), Err))));
}

/// Writes what happens to members as events of the nodes of their servers, and keeps the token with which servers join.
///
/// # Errors
/// The CA is invalid.
pub fn report(
    member: Option<&Arc<Member>>,
    args: &ServerArgs,
    pki: &ClusterPki,
    client: &Client,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let Some(member) = member else { return Ok(()) };
    let pin = joining::pins_of(&pki.ca_bundle())?.into_iter().next().unwrap_or_default();
    server_token::keep(client, &args.data_dir, pin, tasks);
    let recorder = EventRecorder::start_in(tasks, client.clone(), Arc::new(SystemClock), "etcd-member", member.name());
    let mut events = member.events();
    tasks.spawn("etcd-member-events", OnPanic::Contain, async move {
        loop {
            match events.recv().await {
                Ok(event) => {
                    let kind = if event.is_warning() { EventType::Warning } else { EventType::Normal };
                    let name = event.name().to_owned();
                    let node =
                        ObjectRef { api_version: "v1".into(), kind: "Node".into(), name, ..ObjectRef::default() };
                    recorder.event(&node, kind, event.reason(), event.message());
                }
                Err(RecvError::Lagged(lost)) => tracing::warn!(lost, "events of etcd members were lost"),
                Err(RecvError::Closed) => return,
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn server(dir: &Path, more: &[&str]) -> ServerArgs {
        let dir = dir.display().to_string();
        let words = [&["kelson", "server", "--data-dir", &dir, "--node-name", "a"], more].concat();
        match Cli::parse_from(words).command {
            Command::Server(args) => *args,
            _ => panic!("the command is server"),
        }
    }

    #[tokio::test]
    async fn a_server_has_a_member_only_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let (tasks, address) = (Tasks::root("test"), IpAddr::from([127, 0, 0, 1]));
        assert!(start(&server(dir.path(), &[]), address, None, &tasks).await.unwrap().is_none());
        let rejected = async |more: &[&str]| {
            format!("{:#}", start(&server(dir.path(), more), address, None, &tasks).await.err().unwrap())
        };
        let both = rejected(&["--cluster-init", "--etcd-servers=http://a:1"]).await;
        assert!(both.contains("--etcd-servers cannot be used"), "{both}");
        let missing = rejected(&["--cluster-init", "--etcd-binary=/none/etcd"]).await;
        assert!(missing.contains("/none/etcd"), "{missing}");
    }

    #[tokio::test]
    async fn flags_of_a_join_are_checked_before_anything_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        let (tasks, address) = (Tasks::root("test"), IpAddr::from([127, 0, 0, 1]));
        let received = async |more: &[&str]| {
            let server = server(dir.path(), &[&["--server=https://127.0.0.1:1"], more].concat());
            format!("{:#}", receive(&server, address, &tasks).await.err().unwrap())
        };
        for (more, part) in [
            (&["--cluster-init"][..], "--cluster-init and --server exclude each other"),
            (&["--etcd-servers=http://a:1"], "--etcd-servers and --server exclude each other"),
            (&[], "--server needs --token"),
            (&["--token=abcdef.0123456789abcdef"], "with the token of a node"),
        ] {
            let error = received(more).await;
            assert!(error.contains(part) && !error.contains("0123456789abcdef"), "{error}");
        }
        let token = format!("--token=K10{}::server:abcdef.0123456789abcdef", "0a".repeat(32));
        let error = received(&[&token, "--etcd-binary=/none/etcd"]).await;
        assert!(error.contains("/none/etcd"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written");
        assert!(receive(&server(dir.path(), &[&token]), address, &tasks).await.is_ok(), "without --server");
    }

    #[test]
    fn an_address_counts_if_the_user_gave_it() {
        let (dir, tasks) = (Path::new("/d"), Tasks::root("test"));
        let given = |more: &[&str]| options(&server(dir, more), IpAddr::from([10, 0, 0, 1]), &tasks).unwrap();
        assert!(!given(&[]).peer_address_given);
        for flag in ["--advertise-address=10.0.0.1", "--bind-address=10.0.0.1", "--node-ip=10.0.0.1"] {
            assert!(given(&[flag]).peer_address_given, "{flag}");
        }
        assert_eq!(given(&["--etcd-peer-port=1"]).peer_port, Some(1));
    }
}
