//! Joins a cluster by its address and a token only. The secret half of the token is not sent before the cluster has
//! proven its CA by a signature with that token. Upstream `kubeadm/app/discovery/token`.
//!
//! Temporary errors are retried: without limit for a server that is not up yet, for [`PATIENCE`] for a token that was
//! just created. Other errors end with a message that says what to do.
//!
//! A signature with a token does not need a clock, but a certificate does: a machine whose clock is obviously wrong
//! sets it by the server's as soon as it knows the CA of its certificate. A machine that was off while its cluster's
//! CAs were rotated joins again with a token, and recognizes its cluster by the address ranges and the overlay's
//! number.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kelson_bootstrap::CertError;
use kelson_bootstrap::clock::{self, Machine, ThisMachine};
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::Remote;
use kelson_client::{Client, ClientError};
use kelson_meta::{Clock, SystemClock};
use kelson_tasks::FILES;
use tokio::time::Instant;

use super::args::AgentArgs;
use super::pins::{check_pins, pins};
use crate::cluster::{self, CLUSTER_INFO, ClusterSettings, INFO_KEY, JoinedNode};
use crate::token::Token;

/// The timeout of one request to the server.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The first and the longest pause between attempts; it doubles each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The time to wait for objects that the cluster has not published yet.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which an unchanged error is logged.
const REPEAT: Duration = Duration::from_secs(60);
/// A part of every TLS error about the server's certificate.
const CERTIFICATE_FAULT: &str = "invalid peer certificate";

/// Whether another attempt can help.
enum Fault {
    /// It can, at any time.
    Wait(anyhow::Error),
    /// It can, soon or never.
    Soon(anyhow::Error),
    /// The node cannot join, and a retry does not help.
    Never(anyhow::Error),
}

/// Returns CA and settings of the cluster: those of an earlier start, else those that the cluster publishes. `name` is
/// the name of the node.
pub async fn find(args: &AgentArgs, token: &Token, name: &str) -> anyhow::Result<JoinedNode> {
    let pins = pins(&args.token_ca_cert_hash)?;
    let Some(known) = JoinedNode::load(&args.data_dir)? else {
        let found = joined(args, token, &pins, Some(name)).await?;
        found.save(&args.data_dir)?;
        return Ok(found);
    };
    let pinned =
        if known.former.iter().any(|former| pins.contains(former)) { Ok(()) } else { check_pins(&known.ca, &pins) };
    let same = match pinned {
        Ok(()) => still_the_same(args, &known).await,
        other => other,
    };
    let Err(why) = same else { return Ok(known) };
    let found = again(&args.data_dir, &known, joined(args, token, &pins, None).await, &why)?;
    tracing::warn!(server = args.server, "CAs were rotated while this machine was off; joining the cluster again");
    found.save(&args.data_dir)?;
    Ok(found)
}

/// Returns the CA of this machine's cluster when its server presents a certificate of an unknown CA: the CAs were
/// rotated while the machine was disconnected.
///
/// # Errors
/// The cluster does not know the token, a pin is of the previous CA, or it is another cluster.
pub async fn again_while_running(args: &AgentArgs, token: &Token, known: &JoinedNode) -> anyhow::Result<String> {
    let why = anyhow!("{} presents a certificate of an unknown CA", args.server);
    let pins = pins(&args.token_ca_cert_hash)?;
    let found = again(&args.data_dir, known, joined(args, token, &pins, None).await, &why)?;
    tracing::warn!(server = args.server, "CAs were rotated while this machine was disconnected; trusting the new ones");
    Ok(found.ca)
}

/// Returns what the cluster publishes for a machine with a token that wants the name `name`, if it has no name there
/// yet.
async fn joined(args: &AgentArgs, token: &Token, pins: &[String], name: Option<&str>) -> anyhow::Result<JoinedNode> {
    let server = args.server.as_str();
    let ca = match &args.server_ca {
        Some(file) => {
            let what = file.clone();
            let read = FILES.run(move || std::fs::read_to_string(&what)).await?;
            let ca = read.with_context(|| format!("--server-ca {}", file.display()))?;
            check_pins(&ca, pins)?;
            persist(server, || mend_clock(server, &ca, &SystemClock, &ThisMachine)).await?;
            ca
        }
        None => persist(server, || signed_ca(server, token, pins)).await?,
    };
    let client = client(server, &ca, Credentials::Token(token.reveal()))?;
    let settings = persist(server, || settings(server, &client)).await?;
    if let Some(name) = name {
        persist(server, || name_is_free(server, &client, name)).await?;
    }
    Ok(JoinedNode { ca, former: Vec::new(), settings })
}

/// Handles a known cluster with a new CA: it is the same cluster if it knows the token, and if its ranges and its
/// overlay's number (one of sixteen million) are the known ones.
fn again(
    dir: &Path,
    before: &JoinedNode,
    found: anyhow::Result<JoinedNode>,
    why: &anyhow::Error,
) -> anyhow::Result<JoinedNode> {
    let anew = format!("to join another cluster, first run kelson cleanup --delete-data --data-dir {}", dir.display());
    match found {
        Ok(found) if found.settings.ranges == before.settings.ranges => Ok(found),
        Ok(_) => bail!("{why:#}; the token belongs to another cluster than the one this machine joined; {anew}"),
        Err(e) => bail!(
            "{why:#}; if it is the same cluster, join again with a new token from kelson token create --print-join-command on its server; the given token failed ({e:#}); {anew}"
        ),
    }
}

/// Sets a clock that is obviously wrong by the server, whose certificate `ca` verifies; no certificate would be valid
/// otherwise.
async fn mend_clock(server: &str, ca: &str, clock: &dyn Clock, machine: &impl Machine) -> Result<(), Fault> {
    let config = Config { server: server.to_owned(), ca_pem: ca.into(), ..Config::default() };
    match clock::repair(&config, clock, machine).await {
        Ok(_) => Ok(()),
        // A time service may set the clock, and the server may start later.
        Err(e @ CertError::Clock { .. }) => Err(Fault::Wait(e.into())),
        Err(e) => Err(Fault::Never(e.into())),
    }
}

/// Retries until there is an answer or a permanent error.
async fn persist<T, F>(server: &str, mut attempt: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, Fault>>,
{
    let (started, mut pause) = (Instant::now(), PAUSE_FIRST);
    let mut reported: Option<(String, Instant)> = None;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(Fault::Never(e)) => return Err(e),
            Err(Fault::Soon(e)) if started.elapsed() >= PATIENCE => return Err(e),
            Err(Fault::Soon(e) | Fault::Wait(e)) => format!("{e:#}"),
        };
        if reported.as_ref().is_none_or(|(text, at)| *text != error || at.elapsed() >= REPEAT) {
            tracing::warn!(server, error, "joining the cluster failed; retrying");
            reported = Some((error, Instant::now()));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn client(server: &str, ca_pem: &str, credentials: Credentials) -> anyhow::Result<Client> {
    let config = Config { server: server.to_owned(), ca_pem: ca_pem.into(), credentials, ..Config::default() };
    Ok(Client::new(std::sync::Arc::new(Remote::new(config).context("--server")?), "agent"))
}

async fn ask<T>(question: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    let late = || kelson_client::TransportError(format!("timed out after {} s", ANSWER_LIMIT.as_secs()));
    tokio::time::timeout(ANSWER_LIMIT, question).await.map_err(|_| late())?
}

/// Returns the CA that the cluster's signature proves.
async fn signed_ca(server: &str, token: &Token, pins: &[String]) -> Result<String, Fault> {
    let config = Config { server: server.to_owned(), insecure_skip_tls_verify: true, ..Config::default() };
    let anyone = Remote::new(config).context("--server").map_err(Fault::Never)?;
    let info = cluster_info(server, &Client::new(std::sync::Arc::new(anyone), "agent")).await?;
    let ca = judge(&info, token, pins)?;
    mend_clock(server, &ca, &SystemClock, &ThisMachine).await?;
    // Reads the same again over a connection verified by this CA, which detects a server that only forwards the signed
    // text.
    let verified = client(server, &ca, Credentials::None).map_err(Fault::Never)?;
    let again = cluster_info(server, &verified).await?;
    if judge(&again, token, pins)? != ca {
        return Err(Fault::Never(anyhow!("{server} returned two different CAs")));
    }
    Ok(ca)
}

async fn cluster_info(server: &str, client: &Client) -> Result<ConfigMap, Fault> {
    let (namespace, name) = CLUSTER_INFO;
    ask(client.get::<ConfigMap>(namespace, name)).await.map_err(|e| match e.status().map(|s| s.code) {
        // The role that allows reading it is one of the last objects that a new cluster creates.
        Some(401 | 403) => Fault::Soon(anyhow!(
            "{server} does not allow anonymous reads of {namespace}/{name} ({e}); give the server's CA (DIR/pki/ca.crt) with --server-ca"
        )),
        Some(404) => Fault::Soon(anyhow!("{server} has no {namespace}/{name}; nodes cannot join with a token")),
        _ => unreachable(server, e),
    })
}

/// Classifies a request without an answer: an invalid certificate is permanent, everything else is not.
fn unreachable(server: &str, e: ClientError) -> Fault {
    let text = e.to_string();
    match e {
        ClientError::Transport(_) if text.contains(CERTIFICATE_FAULT) => Fault::Never(anyhow!(
            "the certificate of {server} is not valid for this address: {text}; add the address on the server with --tls-san"
        )),
        ClientError::Transport(_) => Fault::Wait(anyhow!("{server} is not reachable: {text}")),
        ClientError::Status(s) if s.code < 500 && s.code != 429 => Fault::Never(anyhow!("{server}: {s}")),
        ClientError::Status(_) => Fault::Wait(anyhow!("{server}: {text}")),
        _ => Fault::Never(anyhow!("{server} is not a Kubernetes API server: {text}")),
    }
}

/// Returns the CA in a `cluster-info`, if its signature with this token is valid and one of the pins, if any, matches.
fn judge(info: &ConfigMap, token: &Token, pins: &[String]) -> Result<String, Fault> {
    let id = &token.id;
    let none = std::collections::BTreeMap::new();
    let data = info.data.as_ref().unwrap_or(&none);
    let Some(kubeconfig) = data.get(INFO_KEY) else {
        return Err(Fault::Soon(anyhow!("the cluster's {} holds no {INFO_KEY}", CLUSTER_INFO.1)));
    };
    let Some(signature) = data.get(&format!("{}{id}", kelson_pki::SIGNATURE_PREFIX)) else {
        return Err(Fault::Soon(anyhow!(
            "token {id:?} does not exist or has expired; create a new one on the server with kelson token create"
        )));
    };
    if !kelson_pki::verify_detached(signature, kubeconfig, id, &token.secret) {
        return Err(Fault::Never(anyhow!(
            "the signature for token {id:?} does not match: the token secret is wrong, or the connection is intercepted"
        )));
    }
    let cluster = Config::parse_cluster(kubeconfig.as_bytes());
    let cluster = cluster.context("the cluster's cluster-info").map_err(Fault::Never)?;
    let ca = String::from_utf8(cluster.ca_pem).context("the cluster's CA").map_err(Fault::Never)?;
    check_pins(&ca, pins).map_err(Fault::Never)?;
    Ok(ca)
}

async fn settings(server: &str, client: &Client) -> Result<ClusterSettings, Fault> {
    ask(cluster::read(client)).await.map_err(|e| match e.status().map(|s| s.code) {
        Some(401) => Fault::Never(anyhow!(
            "{server} rejected the token: it is wrong, has expired or is not for authentication; create a new one on the server with kelson token create"
        )),
        Some(403) => Fault::Never(anyhow!("the token may not read the cluster's node settings from {server}: {e}")),
        Some(404) => Fault::Soon(anyhow!("{server} has no node settings: {e}")),
        _ => unreachable(server, e),
    })
}

/// Rejects a name whose node is up, as kubeadm does: two machines with one name would take each other's pods.
async fn name_is_free(server: &str, client: &Client, name: &str) -> Result<(), Fault> {
    let node = ask(client.get_opt::<Node>("", name)).await.map_err(|e| unreachable(server, e))?;
    let conditions = node.and_then(|n| n.status).and_then(|s| s.conditions).unwrap_or_default();
    if conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True") {
        return Err(Fault::Never(anyhow!(
            "a Node with name {name:?} and status \"Ready\" already exists in the cluster: delete that Node, or give this \
             one another name with --node-name"
        )));
    }
    Ok(())
}

/// Checks that the address is of the known cluster. If the server is down, the node starts with what it knows.
async fn still_the_same(args: &AgentArgs, known: &JoinedNode) -> anyhow::Result<()> {
    if let Err(Fault::Wait(e) | Fault::Soon(e) | Fault::Never(e)) =
        mend_clock(&args.server, &known.ca, &SystemClock, &ThisMachine).await
    {
        tracing::warn!(error = format!("{e:#}"), "setting the wrong clock failed");
        return Ok(());
    }
    let client = client(&args.server, &known.ca, Credentials::None)?;
    match ask(client.raw(http::Method::GET, "/version", "", bytes::Bytes::new())).await {
        Err(ClientError::Transport(e)) if e.to_string().contains(CERTIFICATE_FAULT) => bail!(
            "{} is not the cluster this machine joined, or its CAs were rotated while this machine was off ({e})",
            args.server
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
