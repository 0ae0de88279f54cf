//! Bootstrap tokens for joining nodes, as secrets in kubeadm's format. The server's own node joins with a token that is
//! created once and stored in the data directory; `kelson token` creates tokens for other machines.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kelson_client::kubeconfig::Config;
use kelson_client::remote::Remote;
use kelson_client::{Client, DeleteOptions, ListParams, PatchKind, WriteOptions};
use rand::Rng as _;
use serde::Serialize;
use serde_json::json;
use zeroize::Zeroizing;

use crate::cli::{TokenCommand, TokenServer};
use crate::cluster::{CLUSTER_INFO, INFO_KEY};

/// The characters of a token (upstream: bootstrap token format `[a-z0-9]{6}.[a-z0-9]{16}`).
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// A token in its two parts. It is never printed, and erased from memory when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The public part, before the dot.
    pub id: String,
    /// The secret part, after the dot.
    pub secret: Zeroizing<String>,
}

impl Token {
    fn random() -> Self {
        let word = |n: usize| {
            let mut rng = rand::rng();
            (0..n).map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())])).collect()
        };
        Self { id: word(ID_LENGTH), secret: Zeroizing::new(word(SECRET_LENGTH)) }
    }

    /// Parses `ID.SECRET`; the error never contains it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        match text.trim().split_once('.') {
            Some((id, secret)) if is_word(id, ID_LENGTH) && is_word(secret, SECRET_LENGTH) => {
                Ok(Self { id: id.to_owned(), secret: Zeroizing::new(secret.to_owned()) })
            }
            _ => bail!("a bootstrap token must be six letters or digits, a dot, and sixteen letters or digits"),
        }
    }

    /// Returns the token in its printed form, `ID.SECRET`.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, *self.secret)
    }
}

fn is_word(s: &str, length: usize) -> bool {
    s.len() == length && s.bytes().all(|b| ALPHABET.contains(&b))
}

/// The lifetime of the token in the data directory after a start: this machine's own node joins with it immediately,
/// and other machines use `kelson token create`.
const OWN_TOKEN_TTL: Duration = Duration::from_secs(24 * 3600);

/// Reads the token in `file`, or creates it.
///
/// # Errors
/// The file cannot be read or written, or has other content.
pub fn own(file: &Path) -> anyhow::Result<Token> {
    match std::fs::read_to_string(file) {
        Ok(text) => Token::parse(&text).with_context(|| file.display().to_string()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let token = Token::random();
            kelson_pki::write_secret(file, token.reveal().as_bytes(), true)?;
            Ok(token)
        }
        Err(e) => Err(e).with_context(|| file.display().to_string()),
    }
}

/// Makes this machine's own token valid for a day from now.
///
/// # Errors
/// The secret cannot be read or written.
pub async fn admit_own(client: &Client, token: &Token) -> anyhow::Result<()> {
    let ends = Timestamp::now() + OWN_TOKEN_TTL;
    let name = secret_name(&token.id);
    if client.get_opt::<Secret>(NAMESPACE, &name).await?.is_none() {
        let terms = Terms {
            expires: Some(ends),
            description: "Token for this machine's own node; other nodes may join with it, too.",
            usages: &["signing", "authentication"].map(String::from),
            groups: &["system:bootstrappers:kelson:default-node-token".to_owned()],
        };
        return store(client, token, &terms).await;
    }
    let patch = json!({"stringData": {"expiration": kelson_meta::format_seconds(ends)}});
    let options = WriteOptions::default();
    let renewed = client.patch::<Secret>(NAMESPACE, &name, "", PatchKind::Merge, &patch, &options).await;
    renewed.context("renew the bootstrap token")
}

fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// The stored properties of a token.
struct Terms<'a> {
    expires: Option<Timestamp>,
    description: &'a str,
    usages: &'a [String],
    groups: &'a [String],
}

async fn store(client: &Client, token: &Token, terms: &Terms<'_>) -> anyhow::Result<()> {
    if let Some(group) = terms.groups.iter().find(|g| !g.starts_with("system:bootstrappers:")) {
        bail!("--groups: {group:?} does not begin with system:bootstrappers:");
    }
    let mut secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
        "metadata": {"name": secret_name(&token.id), "namespace": NAMESPACE},
        "stringData": {
            "token-id": token.id, "token-secret": *token.secret, "description": terms.description,
            "auth-extra-groups": terms.groups.join(","),
        },
    });
    for usage in terms.usages {
        secret["stringData"][format!("usage-bootstrap-{usage}")] = "true".into();
    }
    if let Some(at) = terms.expires {
        secret["stringData"]["expiration"] = kelson_meta::format_seconds(at).into();
    }
    client.create::<Secret>(NAMESPACE, &secret).await.context("store the bootstrap token")?;
    Ok(())
}

/// Runs a subcommand of `kelson token`.
pub async fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Generate => outln!("{}", Token::random().reveal()),
        TokenCommand::Create { token, usages, groups, ttl, description, print_join_command, of } => {
            let token = token.as_deref().map_or_else(|| Ok(Token::random()), Token::parse)?;
            let client = of.client()?;
            let expires = (!ttl.is_zero()).then(|| Timestamp::now() + ttl);
            let description = description.as_deref().unwrap_or_default();
            let terms = Terms { expires, description, usages: &usages, groups: &groups };
            if of.dry_run {
                outln!("would create bootstrap token {:?}", token.id);
                return Ok(());
            }
            of.reaching(store(&client, &token, &terms).await)?;
            if print_join_command {
                outln!("{}", join_command(&client, &token).await?);
            } else {
                outln!("{}", token.reveal());
            }
        }
        TokenCommand::List { output, show_secrets, of } => {
            let params = ListParams::default().with_fields(format!("type={SECRET_TYPE}"));
            let list = of.client()?.list::<Secret>(NAMESPACE, &params).await.context("list the tokens");
            let mut rows: Vec<TokenSummary> =
                of.reaching(list)?.items.iter().map(|s| TokenSummary::of(s, show_secrets)).collect();
            rows.sort_by(|a, b| a.token.cmp(&b.token));
            out!("{}", shown(&rows, &output, Timestamp::now())?);
        }
        TokenCommand::Delete { tokens, of } => {
            let client = of.client()?;
            for given in &tokens {
                let id = given.split('.').next().unwrap_or_default();
                if !is_word(id, ID_LENGTH) {
                    bail!("a token ID must be six letters or digits, got {id:?}");
                }
                if of.dry_run {
                    outln!("would delete bootstrap token {id:?}");
                    continue;
                }
                let gone = client.delete::<Secret>(NAMESPACE, &secret_name(id), &DeleteOptions::default()).await;
                match gone {
                    Err(e) if e.is_not_found() => bail!("there is no bootstrap token {id:?}"),
                    other => of.reaching(other.context("delete the token"))?,
                }
                outln!("bootstrap token {id:?} deleted");
            }
        }
    }
    Ok(())
}

impl TokenServer {
    fn client(&self) -> anyhow::Result<Client> {
        match &self.kubeconfig {
            Some(file) => Ok(Client::new(Arc::new(Remote::new(Config::load(file)?)?), "token")),
            None => admin(&self.data_dir),
        }
    }

    fn reaching<T>(&self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        match &self.kubeconfig {
            Some(file) => done.with_context(|| format!("ask the server of {}", file.display())),
            None => reaching(&self.data_dir, done),
        }
    }
}

/// Creates a client as the administrator of the server with this data directory.
pub fn admin(data_dir: &Path) -> anyhow::Result<Client> {
    let file = data_dir.join("admin.kubeconfig");
    if !file.exists() {
        bail!("{} does not exist: is {} a server's data directory?", file.display(), data_dir.display());
    }
    Ok(Client::new(Arc::new(Remote::new(Config::load(&file)?)?), "token"))
}

/// Adds the server to the error of a failed request.
pub fn reaching<T>(data_dir: &Path, done: anyhow::Result<T>) -> anyhow::Result<T> {
    done.with_context(|| format!("ask the server with data directory {}", data_dir.display()))
}

/// Returns the command that joins a machine, with the CA pinned.
async fn join_command(client: &Client, token: &Token) -> anyhow::Result<String> {
    let (namespace, name) = CLUSTER_INFO;
    let info = client.get::<ConfigMap>(namespace, name).await.context("read the API server's address")?;
    let text = info.data.unwrap_or_default().remove(INFO_KEY).context("cluster-info is empty")?;
    let cluster = Config::parse_cluster(text.as_bytes())?;
    let mut command = format!("kelson agent --server {} --token {}", cluster.server, token.reveal());
    for certificate in kelson_pki::certificates_from_pem(&String::from_utf8(cluster.ca_pem)?)? {
        command.push_str(" --token-ca-cert-hash ");
        command.push_str(&kelson_pki::public_key_pin(&certificate)?);
    }
    Ok(command)
}

/// A token in lists, in the form of kubeadm's `output.kubeadm.k8s.io/v1alpha3`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenSummary {
    api_version: &'static str,
    kind: &'static str,
    token: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    expires: String,
    usages: Vec<&'static str>,
    groups: Vec<String>,
}

impl TokenSummary {
    fn of(secret: &Secret, whole: bool) -> Self {
        let none = BTreeMap::new();
        let data = secret.data.as_ref().unwrap_or(&none);
        let text = |key: &str| data.get(key).map(|v| String::from_utf8_lossy(&v.0).into_owned()).unwrap_or_default();
        let usages = [("usage-bootstrap-authentication", "authentication"), ("usage-bootstrap-signing", "signing")];
        let groups = text("auth-extra-groups");
        Self {
            api_version: "output.kubeadm.k8s.io/v1alpha3",
            kind: "BootstrapToken",
            token: if whole { format!("{}.{}", text("token-id"), text("token-secret")) } else { text("token-id") },
            description: text("description"),
            expires: text("expiration"),
            usages: usages.iter().filter(|(key, _)| text(key) == "true").map(|(_, usage)| *usage).collect(),
            groups: groups.split(',').filter(|group| !group.is_empty()).map(str::to_owned).collect(),
        }
    }
}

fn shown(tokens: &[TokenSummary], form: &str, now: Timestamp) -> anyhow::Result<String> {
    let mut out = String::new();
    match form {
        "json" => {
            for token in tokens {
                out.push_str(&serde_json::to_string_pretty(token)?);
                out.push('\n');
            }
        }
        "yaml" => {
            for token in tokens {
                out.push_str("---\n");
                out.push_str(&kelson_codec::yaml::to_yaml(&serde_json::to_value(token)?));
            }
        }
        _ => out = table(tokens, now),
    }
    Ok(out)
}

fn table(tokens: &[TokenSummary], now: Timestamp) -> String {
    let mut rows = vec![["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned)];
    let or = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
    for token in tokens {
        rows.push([
            token.token.clone(),
            time_left(&token.expires, now),
            or(token.expires.clone(), "<never>"),
            or(token.usages.join(","), "<none>"),
            or(token.description.clone(), "<none>"),
            or(token.groups.join(","), "<none>"),
        ]);
    }
    let width = |i: usize| rows.iter().map(|r| r[i].len()).max().unwrap_or(0) + 3;
    let widths: Vec<usize> = (0..5).map(width).collect();
    rows.iter().fold(String::new(), |mut out, row| {
        for (cell, width) in row.iter().zip(&widths) {
            out.push_str(&format!("{cell:<width$}"));
        }
        out + &row[5] + "\n"
    })
}

fn time_left(expires: &str, now: Timestamp) -> String {
    if expires.is_empty() {
        return "<forever>".into();
    }
    let Ok(at) = expires.parse::<Timestamp>() else { return "<invalid>".into() };
    match now.duration_until(at).as_secs() {
        ..=0 => "<expired>".into(),
        s @ 1..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s => format!("{}h", s / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_faults() {
        let t = Token::random();
        assert!(Token::parse(&format!("{}\n", t.reveal())).unwrap() == t);
        for bad in ["", "abc", "abcdef.short", "ABCDEF.0123456789abcdef", "abcdef-0123456789abcdef"] {
            let e = Token::parse(bad).err().unwrap().to_string();
            assert!(bad.len() < 4 || !e.contains(bad), "{e}");
        }
    }

    #[test]
    fn the_list_shows_no_secrets() {
        let encode = |s: &str| k8s_openapi::ByteString(s.as_bytes().to_vec());
        let secret = |id: &str, expiration: &str| {
            let mut data = BTreeMap::from([
                ("token-id".to_owned(), encode(id)),
                ("token-secret".to_owned(), encode("0123456789abcdef")),
                ("usage-bootstrap-signing".to_owned(), encode("true")),
                ("auth-extra-groups".to_owned(), encode("system:bootstrappers:x")),
            ]);
            if !expiration.is_empty() {
                data.insert("expiration".to_owned(), encode(expiration));
            }
            Secret { data: Some(data), ..Secret::default() }
        };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let secrets = [secret("aaaaaa", ""), secret("bbbbbb", "2026-01-01T23:30:00Z")];
        let rows: Vec<TokenSummary> = secrets.iter().map(|s| TokenSummary::of(s, false)).collect();
        let out = shown(&rows, "text", now).unwrap();
        let titles = "TOKEN    TTL         EXPIRES                USAGES    DESCRIPTION   EXTRA GROUPS";
        assert_eq!(out.lines().next(), Some(titles));
        let rows: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["aaaaaa", "<forever>", "<never>", "signing", "<none>", "system:bootstrappers:x"]);
        assert_eq!(rows[2][..4], ["bbbbbb", "23h", "2026-01-01T23:30:00Z", "signing"]);
        let listed = |whole| secrets.iter().map(|s| TokenSummary::of(s, whole)).collect::<Vec<_>>();
        for form in ["text", "json", "yaml"] {
            let out = shown(&listed(false), form, now).unwrap();
            assert!(out.contains("bbbbbb") && !out.contains("0123456789abcdef"), "{out}");
            assert!(shown(&listed(true), form, now).unwrap().contains("aaaaaa.0123456789abcdef"));
        }
        let json = shown(&listed(false)[1..], "json", now).unwrap();
        let wanted = json!({"apiVersion": "output.kubeadm.k8s.io/v1alpha3", "kind": "BootstrapToken", "token": "bbbbbb",
            "expires": "2026-01-01T23:30:00Z", "usages": ["signing"], "groups": ["system:bootstrappers:x"]});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), wanted);
    }
}
