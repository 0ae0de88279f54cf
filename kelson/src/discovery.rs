//! Joining a cluster with nothing but its address and a token. The token's secret half never leaves this machine before
//! the cluster has shown, by its signature under that very token, which CA is its own. Upstream
//! `kubeadm/app/discovery/token`.
//!
//! What may mend itself is waited for: a server that is not up yet for as long as it takes, a token that was made a
//! moment ago for [`PATIENCE`]. What cannot, ends with a sentence that says what to do.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::Remote;
use kelson_client::{Client, ClientError};
use tokio::time::Instant;

use crate::cli::AgentArgs;
use crate::cluster::{self, CLUSTER_INFO, ClusterSettings, INFO_KEY, Known};
use crate::token::Token;

/// One question to the server.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// First and longest pause between attempts; doubled each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long what the cluster has not published yet is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a fault that stays the same is logged.
const REPEAT: Duration = Duration::from_secs(60);
/// What every TLS error about the server's certificate holds.
const CERTIFICATE_FAULT: &str = "invalid peer certificate";

/// Whether another attempt can help.
enum Fault {
    /// It can, at any time.
    Wait(anyhow::Error),
    /// It can, soon or never.
    Soon(anyhow::Error),
    /// Asking again cannot help, because of this.
    Never(anyhow::Error),
}

/// CA and settings of the cluster to join: what an earlier start kept, else what the cluster tells. `name` is what the
/// node will be called.
pub async fn find(args: &AgentArgs, token: &Token, name: &str) -> anyhow::Result<Known> {
    let pins = pins(&args.token_ca_cert_hash)?;
    if let Some(known) = Known::load(&args.data_dir)? {
        check_pins(&known.ca, &pins)?;
        still_the_same(args, &known).await?;
        return Ok(known);
    }
    let ca = match &args.server_ca {
        Some(file) => {
            let ca = std::fs::read_to_string(file).with_context(|| format!("--server-ca {}", file.display()))?;
            check_pins(&ca, &pins)?;
            ca
        }
        None => persist(&args.server, async || signed_ca(&args.server, token, &pins).await).await?,
    };
    let client = client(&args.server, &ca, Credentials::Token(token.reveal()))?;
    let settings = persist(&args.server, async || settings(&args.server, &client).await).await?;
    persist(&args.server, async || name_is_free(&args.server, &client, name).await).await?;
    let known = Known { ca, settings };
    known.save(&args.data_dir)?;
    Ok(known)
}

/// Asks until there is an answer or a fault that stays.
async fn persist<T>(server: &str, mut attempt: impl AsyncFnMut() -> Result<T, Fault>) -> anyhow::Result<T> {
    let (started, mut pause) = (Instant::now(), PAUSE_FIRST);
    let mut told: Option<(String, Instant)> = None;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(Fault::Never(e)) => return Err(e),
            Err(Fault::Soon(e)) if started.elapsed() >= PATIENCE => return Err(e),
            Err(Fault::Soon(e) | Fault::Wait(e)) => format!("{e:#}"),
        };
        if told.as_ref().is_none_or(|(text, at)| *text != error || at.elapsed() >= REPEAT) {
            tracing::warn!(server, error, "cannot join yet, will try again");
            told = Some((error, Instant::now()));
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
    let late = || kelson_client::TransportError(format!("no answer within {} s", ANSWER_LIMIT.as_secs()));
    tokio::time::timeout(ANSWER_LIMIT, question).await.map_err(|_| late())?
}

/// The CA that the cluster's own signature vouches for.
async fn signed_ca(server: &str, token: &Token, pins: &[String]) -> Result<String, Fault> {
    let config = Config { server: server.to_owned(), insecure_skip_tls_verify: true, ..Config::default() };
    let anyone = Remote::new(config).context("--server").map_err(Fault::Never)?;
    let info = cluster_info(server, &Client::new(std::sync::Arc::new(anyone), "agent")).await?;
    let ca = judge(&info, token, pins)?;
    // The same over a connection that this CA vouches for: whoever merely passed the signed text on is found out here.
    let verified = client(server, &ca, Credentials::None).map_err(Fault::Never)?;
    let again = cluster_info(server, &verified).await?;
    if judge(&again, token, pins)? != ca {
        return Err(Fault::Never(anyhow!("{server} gave two different answers about its CA")));
    }
    Ok(ca)
}

async fn cluster_info(server: &str, client: &Client) -> Result<ConfigMap, Fault> {
    let (namespace, name) = CLUSTER_INFO;
    ask(client.get::<ConfigMap>(namespace, name)).await.map_err(|e| match e.status().map(|s| s.code) {
        Some(401 | 403) => Fault::Never(anyhow!(
            "{server} does not let anybody read {namespace}/{name} ({e}); give its CA (DIR/pki/ca.crt there) with --server-ca"
        )),
        Some(404) => Fault::Soon(anyhow!("{server} has no {namespace}/{name}: nodes cannot join it by token")),
        _ => unreachable(server, e),
    })
}

/// A request without an answer: certificates do not mend themselves, everything else may.
fn unreachable(server: &str, e: ClientError) -> Fault {
    let text = e.to_string();
    match e {
        ClientError::Transport(_) if text.contains(CERTIFICATE_FAULT) => Fault::Never(anyhow!(
            "the certificate of {server} is not good for this address: {text}; on the server, --tls-san adds names and addresses"
        )),
        ClientError::Transport(_) => Fault::Wait(anyhow!("{server} is not reachable: {text}")),
        ClientError::Status(s) if s.code < 500 && s.code != 429 => Fault::Never(anyhow!("{server}: {s}")),
        ClientError::Status(_) => Fault::Wait(anyhow!("{server}: {text}")),
        _ => Fault::Never(anyhow!("{server} is no Kubernetes API server: {text}")),
    }
}

/// What a `cluster-info` is worth under this token: its CA, when the signature is good and a pin, if any, matches.
fn judge(info: &ConfigMap, token: &Token, pins: &[String]) -> Result<String, Fault> {
    let id = &token.id;
    let none = std::collections::BTreeMap::new();
    let data = info.data.as_ref().unwrap_or(&none);
    let Some(kubeconfig) = data.get(INFO_KEY) else {
        return Err(Fault::Soon(anyhow!("the cluster's {} holds no {INFO_KEY}", CLUSTER_INFO.1)));
    };
    let Some(signature) = data.get(&format!("{}{id}", kelson_pki::SIGNATURE_PREFIX)) else {
        return Err(Fault::Soon(anyhow!(
            "the cluster does not know the token {id:?}, or it has expired; kelson token create on its server makes a new one"
        )));
    };
    if !kelson_pki::verify_detached(signature, kubeconfig, id, &token.secret) {
        return Err(Fault::Never(anyhow!(
            "the signature under token {id:?} does not match: the second half of the token is wrong, or somebody stands \
             between this machine and the cluster"
        )));
    }
    let cluster = Config::parse_cluster(kubeconfig.as_bytes());
    let cluster = cluster.context("the cluster's cluster-info").map_err(Fault::Never)?;
    let ca = String::from_utf8(cluster.ca_pem).context("the cluster's CA").map_err(Fault::Never)?;
    check_pins(&ca, pins).map_err(Fault::Never)?;
    Ok(ca)
}

fn pins(given: &[String]) -> anyhow::Result<Vec<String>> {
    let parse = |text: &String| {
        kelson_pki::parse_pin(text)
            .with_context(|| format!("--token-ca-cert-hash {text:?}: expected sha256: and 64 hexadecimal digits"))
    };
    given.iter().map(parse).collect()
}

/// Without pins everything is fine; with some, one of the CA's certificates must match one of them.
fn check_pins(ca_pem: &str, pins: &[String]) -> anyhow::Result<()> {
    if pins.is_empty() {
        return Ok(());
    }
    let mut seen = Vec::new();
    for certificate in kelson_pki::certificates_from_pem(ca_pem)? {
        let pin = kelson_pki::public_key_pin(&certificate)?;
        if pins.contains(&pin) {
            return Ok(());
        }
        seen.push(pin);
    }
    bail!("--token-ca-cert-hash: the cluster's CA is {}, which is none of those given", seen.join(", "))
}

async fn settings(server: &str, client: &Client) -> Result<ClusterSettings, Fault> {
    ask(cluster::read(client)).await.map_err(|e| match e.status().map(|s| s.code) {
        Some(401) => Fault::Never(anyhow!(
            "{server} does not accept the token: it is wrong, has expired, or is not for authentication; kelson token \
             create on the server makes a new one"
        )),
        Some(403) => Fault::Never(anyhow!("{server} does not let the token read how nodes are set up: {e}")),
        Some(404) => Fault::Soon(anyhow!("{server} does not say how its nodes are set up: {e}")),
        _ => unreachable(server, e),
    })
}

/// Two machines under one name would take each other's pods: a name whose node is up is refused, as kubeadm does.
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

/// A machine that belongs to one cluster is not pointed at another by its address alone. A server that is away says
/// nothing; then the node starts with what it knows.
async fn still_the_same(args: &AgentArgs, known: &Known) -> anyhow::Result<()> {
    let client = client(&args.server, &known.ca, Credentials::None)?;
    match ask(client.raw(http::Method::GET, "/version", "", bytes::Bytes::new())).await {
        Err(ClientError::Transport(e)) if e.to_string().contains(CERTIFICATE_FAULT) => bail!(
            "{} is not the cluster that this machine joined, or its authorities were replaced while this machine was off ({e}); to \
             join anew: kelson cleanup --delete-data --data-dir {}",
            args.server,
            args.data_dir.display()
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_pki::{Authority, certificates_from_pem, public_key_pin, sign_detached};
    use serde_json::json;

    fn said(fault: Fault) -> String {
        match fault {
            Fault::Wait(e) => format!("wait: {e:#}"),
            Fault::Soon(e) => format!("soon: {e:#}"),
            Fault::Never(e) => format!("never: {e:#}"),
        }
    }

    #[test]
    fn only_what_the_token_signed_is_believed() {
        use base64::Engine as _;
        let ca = Authority::create("ca", jiff::Timestamp::now()).unwrap();
        let encoded = base64::engine::general_purpose::STANDARD.encode(ca.cert_pem());
        let text = format!(
            "clusters: [{{name: '', cluster: {{server: 'https://h:1', certificate-authority-data: {encoded}}}}}]"
        );
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let pin = public_key_pin(&certificates_from_pem(ca.cert_pem()).unwrap()[0]).unwrap();
        let check = |data: serde_json::Value, pins: &[String]| {
            let info: ConfigMap = serde_json::from_value(json!({"data": data})).unwrap();
            judge(&info, &token, pins).map_err(said)
        };
        let good = sign_detached(&text, "abcdef", "0123456789abcdef");
        let forged = sign_detached(&text, "abcdef", "ffffffffffffffff");
        let signed = json!({"kubeconfig": text, "jws-kubeconfig-abcdef": good});
        assert_eq!(check(signed.clone(), &[]).unwrap(), ca.cert_pem());
        assert_eq!(check(signed.clone(), &[pin]).unwrap(), ca.cert_pem());
        let rows = [
            (json!({}), vec![], "soon: the cluster's cluster-info holds no kubeconfig"),
            (json!({"kubeconfig": text}), vec![], "soon: the cluster does not know the token \"abcdef\""),
            (json!({"kubeconfig": text, "jws-kubeconfig-abcdef": forged}), vec![], "never: the signature under token"),
            (
                json!({"kubeconfig": format!("{text} "), "jws-kubeconfig-abcdef": good}),
                vec![],
                "never: the signature under token",
            ),
            (signed, vec![format!("sha256:{}", "0".repeat(64))], "never: --token-ca-cert-hash: the cluster's CA is"),
        ];
        for (data, pins, want) in rows {
            let got = check(data, &pins).unwrap_err();
            assert!(got.starts_with(want), "{got}");
            assert!(!got.contains("0123456789abcdef"), "the secret is not repeated: {got}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_mend_itself_is_waited_for() {
        let mut left = 100;
        let done = persist("s", async || {
            left -= 1;
            if left == 0 { Ok(7) } else { Err(Fault::Wait(anyhow!("down"))) }
        });
        assert_eq!(done.await.unwrap(), 7);
        let started = Instant::now();
        let never: anyhow::Result<()> = persist("s", async || Err(Fault::Soon(anyhow!("unknown token")))).await;
        assert_eq!(never.unwrap_err().to_string(), "unknown token");
        assert!(started.elapsed() >= PATIENCE && started.elapsed() < PATIENCE + PAUSE_MAX);
        let at_once: anyhow::Result<()> = persist("s", async || Err(Fault::Never(anyhow!("bad")))).await;
        assert_eq!(at_once.unwrap_err().to_string(), "bad");
    }
}
