//! Bootstrap tokens for joining nodes, as secrets in kubeadm's format. The server's own node joins with a token that is
//! created once and stored in the data directory; `kelson token` creates tokens for other machines.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kelson_bundle::join::ServerToken;
use kelson_client::kubeconfig::Config;
use kelson_client::remote::Remote;
use kelson_client::{Client, DeleteOptions, ListParams, PatchKind, WriteOptions};
use rand::Rng as _;
use serde_json::json;
use zeroize::Zeroizing;

use crate::cli::{TokenCommand, TokenServer};
use crate::cluster::INFO_KEY;
use crate::reach::own_cluster_info;
use crate::token_list::{TokenRow, shown};

/// The characters of a token (upstream: bootstrap token format `[a-z0-9]{6}.[a-z0-9]{16}`).
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The group of tokens with which servers join.
pub const SERVERS: &str = "system:bootstrappers:kelson:server";

/// The group of tokens with which votes join.
pub const VOTES: &str = "system:bootstrappers:kelson:vote";

/// A token in its two parts. It is never printed, and erased from memory when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The public part, before the dot.
    pub id: String,
    /// The secret part, after the dot.
    pub secret: Zeroizing<String>,
}

impl Token {
    /// Generates a token.
    pub fn random() -> Self {
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

    /// Returns it as the token with which servers join the cluster whose CA has this pin, `sha256:HEX`.
    pub fn of_servers(&self, pin: &str) -> anyhow::Result<ServerToken> {
        ServerToken::new(pin, &self.id, &self.secret).context("the CA of the cluster has no valid pin")
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

/// What a token in the data directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The node of this machine joins with it.
    Node,
    /// Servers join with it.
    Server,
    /// Votes join with it.
    Vote,
}

impl Purpose {
    fn terms(self, expires: Option<Timestamp>) -> Terms {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (description, usages, group): (_, &[&str], _) = match self {
            Self::Node => (
                "Token for this machine's own node; other nodes may join with it, too.",
                &["signing", "authentication"],
                "system:bootstrappers:kelson:default-node-token",
            ),
            Self::Server => ("Token with which servers join.", &["authentication"], SERVERS),
            Self::Vote => ("Token with which votes join.", &["authentication"], VOTES),
        };
        Terms { expires, description: description.to_owned(), usages: words(usages), groups: words(&[group]) }
    }
}

/// Makes a token of the data directory valid for a day from now.
///
/// # Errors
/// The secret cannot be read or written.
pub async fn admit_own(client: &Client, token: &Token, purpose: Purpose) -> anyhow::Result<()> {
    let ends = Timestamp::now() + OWN_TOKEN_TTL;
    let name = secret_name(&token.id);
    if client.get_opt::<Secret>(NAMESPACE, &name).await?.is_none() {
        return store(client, token, &purpose.terms(Some(ends))).await;
    }
    let patch = json!({"stringData": {"expiration": kelson_meta::format_seconds(ends)}});
    let options = WriteOptions::default();
    let renewed = client.patch::<Secret>(NAMESPACE, &name, "", PatchKind::Merge, &patch, &options).await;
    renewed.context("renew the bootstrap token")
}

fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// Reads the secret half of a stored token.
///
/// # Errors
/// There is no such token, or it cannot be read.
pub async fn secret(client: &Client, id: &str) -> anyhow::Result<Zeroizing<String>> {
    let stored = client.get::<Secret>(NAMESPACE, &secret_name(id)).await?;
    let secret = stored.data.unwrap_or_default().remove("token-secret").context("it has no token-secret")?;
    Ok(Zeroizing::new(String::from_utf8(secret.0)?))
}

/// The stored properties of a token.
struct Terms {
    expires: Option<Timestamp>,
    description: String,
    usages: Vec<String>,
    groups: Vec<String>,
}

async fn store(client: &Client, token: &Token, terms: &Terms) -> anyhow::Result<()> {
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
    for usage in &terms.usages {
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
        TokenCommand::Create { token, usages, groups, server, vote, ttl, description, print_join_command, of } => {
            let token = token.as_deref().map_or_else(|| Ok(Token::random()), Token::parse)?;
            let client = of.client()?;
            let expires = (!ttl.is_zero()).then(|| Timestamp::now() + ttl);
            let member = server.then_some(Purpose::Server).or_else(|| vote.then_some(Purpose::Vote));
            if member.is_some() {
                of.check_member().await?;
            }
            let terms = match member {
                Some(purpose) => purpose.terms(expires),
                None => Terms { expires, description: String::new(), usages, groups },
            };
            let terms = Terms { description: description.unwrap_or(terms.description), ..terms };
            if of.dry_run {
                outln!("would create bootstrap token {:?}", token.id);
                return Ok(());
            }
            of.reaching(store(&client, &token, &terms).await)?;
            match (member, print_join_command) {
                (None, false) => outln!("{}", token.reveal()),
                (None, true) => outln!("{}", join_command(&client, &token).await?),
                (Some(purpose), _) => {
                    let command =
                        print_join_command.then_some(if purpose == Purpose::Vote { "vote" } else { "server" });
                    outln!("{}", member_join(&client, &token, command).await?);
                }
            }
        }
        TokenCommand::List { output, show_secrets, of } => {
            let params = ListParams::default().with_fields(format!("type={SECRET_TYPE}"));
            let list = of.client()?.list::<Secret>(NAMESPACE, &params).await.context("list the tokens");
            let mut rows: Vec<TokenRow> =
                of.reaching(list)?.items.iter().map(|s| TokenRow::of(s, show_secrets)).collect();
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

    /// Checks that servers can join this one, if its data directory is known.
    async fn check_member(&self) -> anyhow::Result<()> {
        if self.kubeconfig.is_none() && kelson_members::settings(&self.data_dir).await?.is_none() {
            bail!(
                "the server with data directory {} has no etcd member, so servers cannot join it; restart it with --cluster-init",
                self.data_dir.display()
            );
        }
        Ok(())
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

/// Returns the URL of the API and the pins of the cluster's CAs, of which the first one signs.
async fn url_and_pins(client: &Client) -> anyhow::Result<(String, Vec<String>)> {
    let info = own_cluster_info(client).await.context("read the API server's address")?;
    let text = info.data.unwrap_or_default().remove(INFO_KEY).context("cluster-info is empty")?;
    let cluster = Config::parse_cluster(text.as_bytes())?;
    let certificates = kelson_pki::certificates_from_pem(&String::from_utf8(cluster.ca_pem)?)?;
    let pins: Result<_, _> = certificates.iter().map(kelson_pki::public_key_pin).collect();
    Ok((cluster.server, pins?))
}

/// Returns the command that joins a machine, with the CA pinned.
async fn join_command(client: &Client, token: &Token) -> anyhow::Result<String> {
    let (server, pins) = url_and_pins(client).await?;
    let mut command = format!("kelson agent --server {server} --token {}", token.reveal());
    for pin in pins {
        command.push_str(" --token-ca-cert-hash ");
        command.push_str(&pin);
    }
    Ok(command)
}

/// Returns the token with which servers and votes join, or the command line with this command.
async fn member_join(client: &Client, token: &Token, command: Option<&str>) -> anyhow::Result<String> {
    let (server, pins) = url_and_pins(client).await?;
    let token = token.of_servers(pins.first().map_or("", String::as_str))?.reveal();
    Ok(match command {
        Some(command) => format!("kelson {command} --server {server} --token {}", *token),
        None => token.to_string(),
    })
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
}
