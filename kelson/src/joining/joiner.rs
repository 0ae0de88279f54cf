//! The side of a new server: keys of the cluster, then its own etcd member.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::Path;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kelson_bundle::join::{JoinOutcome, ServerToken, install, install_for_vote};
use kelson_members::{Joiner, Member, MemberError, MemberOptions};
use kelson_tasks::FILES;

use super::contact::Contact;
use crate::authorities::PKI_DIR;
use crate::member_flags::MemberArgs;

/// The certificate of the CA, in [`PKI_DIR`].
const CA_FILE: &str = "ca.crt";

/// Returns the server to join and the token.
fn asked(args: &MemberArgs) -> anyhow::Result<(&str, ServerToken)> {
    let server = args.server.as_deref().context("--server is missing")?;
    let Some(token) = &args.token else {
        bail!("--server needs --token: `kelson token create --server` on a server of the cluster prints one");
    };
    let Some(token) = ServerToken::parse(token) else {
        bail!(
            "--token must be the token of a server, K10…::server:ID.SECRET, as `kelson token create --server` prints it; a server cannot join with the token of a node"
        );
    };
    Ok((server, token))
}

/// Writes the keys and settings of the cluster of `--server` into the data directory, whose lock the caller has. Repeating it
/// changes nothing.
///
/// # Errors
/// The flags are wrong, there is no etcd program for the cluster, the server rejects the token, or the directory belongs to another cluster.
pub async fn receive(args: &MemberArgs, options: &MemberOptions) -> anyhow::Result<()> {
    let (server, token) = asked(args)?;
    kelson_members::check_program(options, None).await.context("etcd member")?;
    let contact = Contact::find(server, &token, args.server_ca.as_deref()).await?;
    let (sealed, etcd_minor) = contact.keys().await?;
    kelson_members::check_program(options, etcd_minor).await.context("etcd member")?;
    let dir = options.data_dir.clone();
    match FILES.run(move || install(&sealed, &token, &dir, Timestamp::now())).await?? {
        JoinOutcome::Written => tracing::info!(server, "received the CAs and settings of the cluster"),
        JoinOutcome::AlreadyThere => tracing::info!(server, "continuing to join the cluster"),
    }
    Ok(())
}

/// Adds the member of this server to the cluster of `--server` and starts it. Returns when it is a voter, however long that takes.
/// [`receive`] has run before.
///
/// # Errors
/// The server rejects the member, or it cannot run.
pub async fn enter(args: &MemberArgs, options: &MemberOptions) -> anyhow::Result<Member> {
    let (server, token) = asked(args)?;
    let contact = Contact::new(server, &token, &read_ca(&options.data_dir).await?)?;
    become_member(server, &contact, options).await
}

/// Receives the CA of the etcd cluster of `--server`, and nothing else of its keys, then adds a member that is no server and
/// starts it. Returns when it is a voter. The caller has the lock of the data directory.
///
/// # Errors
/// As of [`receive`] and [`enter`].
pub async fn enter_as_vote(args: &MemberArgs, options: &MemberOptions) -> anyhow::Result<Member> {
    let (server, token) = asked(args)?;
    kelson_members::check_program(options, None).await.context("etcd member")?;
    let contact = Contact::find(server, &token, args.server_ca.as_deref()).await?;
    let (sealed, etcd_minor) = contact.vote_keys().await?;
    kelson_members::check_program(options, etcd_minor).await.context("etcd member")?;
    let dir = options.data_dir.clone();
    FILES.run(move || install_for_vote(&sealed, &token, &dir)).await??;
    become_member(server, &contact, options).await
}

async fn become_member(server: &str, contact: &Contact, options: &MemberOptions) -> anyhow::Result<Member> {
    loop {
        let joiner = Joiner::prepare(options.clone()).await.context("etcd member")?;
        let initial = contact.admission(joiner.name(), joiner.peer_urls()).await?;
        tracing::info!(server, members = initial.members.len(), "joining the cluster as an etcd learner");
        match joiner.start(initial).await {
            Err(error @ MemberError::StaleCluster) => tracing::info!(%error, "starting the etcd member again"),
            started => return started.context("etcd member"),
        }
    }
}

async fn read_ca(data_dir: &Path) -> anyhow::Result<String> {
    let file = data_dir.join(PKI_DIR).join(CA_FILE);
    let path = file.clone();
    FILES.run(move || std::fs::read_to_string(path)).await?.with_context(|| file.display().to_string())
}
