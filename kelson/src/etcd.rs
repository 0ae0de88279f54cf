//! `etcd`, by the name of the program or as the first word: a store with etcd's protocol, with etcd's flags in all
//! spellings of Go programs, its environment variables (`ETCD_NAME` for `--name`) and its configuration file.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Command, FromArgMatches as _};
use http::Uri;
use kelson_etcd::mvcc::Limits;
use kelson_etcd::server::{Address, Endpoint, Server, ServerOptions, TlsFiles, VERSION};
use kelson_etcd::store::{AutoCompaction, Options, Store};
use kelson_meta::parse_duration;
use kelson_metrics::Registry;
use serde_json::Value;

use crate::flags::{ParsedArgs, Spoken, Table, help, read};
use crate::lock::DataDirLock;
use crate::{logging, process};

const NAME: &str = "etcd";
const FACTS: &str = include_str!("flags/facts/etcd.txt");
const ABOUT: &str = "A single-member store with etcd's API.";
/// The quota in bytes if none or 0 is given.
const QUOTA_DEFAULT: u64 = 2 << 30;

#[derive(Args, Debug, Clone)]
struct EtcdCommand {
    /// Name of this member.
    #[arg(long, value_name = "string", default_value = "default")]
    name: String,
    /// Data directory [default: NAME.etcd].
    #[arg(long, value_name = "string")]
    data_dir: Option<PathBuf>,
    /// URLs to listen on for clients.
    #[arg(long, value_name = "string", value_delimiter = ',', default_value = "http://localhost:2379")]
    listen_client_urls: Vec<String>,
    /// Additional URLs that serve only health and metrics.
    #[arg(long, value_name = "string", value_delimiter = ',')]
    listen_metrics_urls: Vec<String>,
    /// Client URLs to advertise in the member list [default: --listen-client-urls].
    #[arg(long, value_name = "string", value_delimiter = ',')]
    advertise_client_urls: Vec<String>,
    /// Peer URLs to advertise in the member list; nothing listens there.
    #[arg(long, value_name = "string", value_delimiter = ',', default_value = "http://localhost:2380")]
    initial_advertise_peer_urls: Vec<String>,
    /// Serving certificate for https.
    #[arg(long, value_name = "string")]
    cert_file: Option<PathBuf>,
    /// Private key of the serving certificate.
    #[arg(long, value_name = "string")]
    key_file: Option<PathBuf>,
    /// Require a client certificate signed by a CA in --trusted-ca-file.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    client_cert_auth: bool,
    /// CA bundle that verifies client certificates.
    #[arg(long, value_name = "string")]
    trusted_ca_file: Option<PathBuf>,
    /// Maximum number of operations in a transaction.
    #[arg(long, value_name = "uint", default_value_t = 128)]
    max_txn_ops: usize,
    /// Maximum size of a request in bytes.
    #[arg(long, value_name = "uint", default_value_t = 1_572_864)]
    max_request_bytes: usize,
    /// Maximum number of concurrent requests per connection.
    #[arg(long, value_name = "uint", default_value_t = u32::MAX)]
    max_concurrent_streams: u32,
    /// Maximum size of all keys and values in bytes; above it only deletions are accepted. 0 is 2 GiB; a negative
    /// number disables the limit.
    #[arg(long, value_name = "int", default_value_t = 0, allow_negative_numbers = true)]
    quota_backend_bytes: i64,
    /// Whether --auto-compaction-retention is a time (periodic) or a number of revisions (revision).
    #[arg(long, value_name = "string", default_value = "periodic")]
    auto_compaction_mode: String,
    /// History to keep: hours, a duration such as 5m, or a number of revisions; 0 disables automatic compaction.
    #[arg(long, value_name = "string", default_value = "0")]
    auto_compaction_retention: String,
    /// Interval of progress notifications to idle watches that requested them [default: 10m].
    #[arg(long, value_name = "duration", value_parser = parse_duration)]
    watch_progress_notify_interval: Option<Duration>,
    /// Deprecated: use --watch-progress-notify-interval.
    #[arg(long, value_name = "duration", value_parser = parse_duration)]
    experimental_watch_progress_notify_interval: Option<Duration>,
    /// Do not fsync commits. A power failure loses the last commits; the end of the process loses none.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    unsafe_no_fsync: bool,
    /// YAML file with flags. Flags on the command line are then ignored.
    #[arg(long, value_name = "string")]
    config_file: Option<PathBuf>,
    /// Log level: debug, info, warn, error, panic or fatal.
    #[arg(long, value_name = "string", default_value = "info")]
    log_level: String,
}

/// Returns the words for `etcd`, if the program's name or the first word is `etcd`.
pub fn named(words: &[OsString]) -> Option<&[OsString]> {
    let (program, rest) = words.split_first()?;
    let program = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    if program.strip_suffix(".exe").unwrap_or(program) == NAME {
        return Some(rest);
    }
    let (first, rest) = rest.split_first()?;
    (first == NAME).then_some(rest)
}

/// Parses the words and runs the store until it ends.
pub fn main(words: &[OsString]) -> ExitCode {
    let environment = |name: &str| std::env::var(name).ok();
    match asked(words, environment) {
        Ok(ParsedArgs::Help) => {
            out!("{}", help::flags(NAME, ABOUT, &table()));
            ExitCode::SUCCESS
        }
        Ok(ParsedArgs::Version(_)) => {
            outln!("etcd Version: {VERSION}\nGit SHA: {}", kelson_meta::version::build().commit);
            outln!("Go Version: none\nGo OS/Arch: {}", kelson_meta::version::platform());
            ExitCode::SUCCESS
        }
        Ok(ParsedArgs::Run(spoken)) => match arguments(&spoken).and_then(|args| run(&args, &spoken)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failed(&format!("{why:#}")),
        },
        Err(why) => failed(&why),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("Error: {why}");
    ExitCode::FAILURE
}

fn command() -> Command {
    EtcdCommand::augment_args(Command::new(NAME).no_binary_name(true).disable_help_flag(true))
}

/// The flags of `kelson etcd`.
pub fn table() -> Table {
    Table::of(FACTS, &command())
}

fn arguments(spoken: &Spoken) -> anyhow::Result<EtcdCommand> {
    let first = |e: clap::Error| e.to_string().lines().next().unwrap_or_default().replacen("error: ", "", 1);
    let matches = command().try_get_matches_from(&spoken.words).map_err(first).map_err(anyhow::Error::msg)?;
    Ok(EtcdCommand::from_arg_matches(&matches)?)
}

/// Returns the settings of the words, then of the environment; only of a configuration file if one is given.
fn asked(words: &[OsString], environment: impl Fn(&str) -> Option<String>) -> Result<ParsedArgs, String> {
    let table = table();
    // Go's own flags have one dash or two.
    let mut words: Vec<OsString> = words.iter().map(|word| two_dashes(word)).collect();
    let name = |word: &OsString| word.to_str()?.strip_prefix("--")?.split('=').next().map(str::to_owned);
    let given: BTreeSet<String> = words.iter().filter_map(name).collect();
    for (flag, _) in table.iter().filter(|(flag, _)| !given.contains(*flag)) {
        let variable = format!("ETCD_{}", flag.to_uppercase().replace('-', "_"));
        if let Some(value) = environment(&variable).filter(|value| !value.is_empty()) {
            words.push(format!("--{flag}={value}").into());
        }
    }
    let asked = read(NAME, &table, words)?;
    let ParsedArgs::Run(spoken) = &asked else { return Ok(asked) };
    let file = spoken.words.iter().rev().find_map(|word| word.strip_prefix("--config-file="));
    match file.filter(|file| !file.is_empty()) {
        Some(file) => read(NAME, &table, of_file(Path::new(file)).map_err(|error| format!("{error:#}"))?),
        None => Ok(asked),
    }
}

fn two_dashes(word: &OsStr) -> OsString {
    match word.to_str().and_then(|word| word.strip_prefix('-')) {
        Some(flag) if flag.len() > 1 && !flag.starts_with('-') => format!("--{flag}").into(),
        _ => word.to_owned(),
    }
}

/// Returns the settings of a configuration file as words: its keys are the names of flags.
fn of_file(file: &Path) -> anyhow::Result<Vec<OsString>> {
    let what = || format!("--config-file {}", file.display());
    let text = std::fs::read(file).with_context(what)?;
    let (tree, _) = kelson_codec::yaml::to_value(&text).with_context(what)?;
    let tree: Value = serde_json::from_str(&serde_json::to_string(&tree)?)?;
    let Value::Object(fields) = tree else { bail!("{}: must be a mapping of flags", what()) };
    let mut words = Vec::new();
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("client-transport-security", Value::Object(fields)) => {
                words.extend(fields.into_iter().filter_map(|(name, value)| flag(&name, &value)));
            }
            // Peer URLs are not served.
            ("peer-transport-security", _) => {}
            (name, value) => words.extend(flag(name, &value)),
        }
    }
    Ok(words)
}

fn flag(name: &str, value: &Value) -> Option<OsString> {
    let value = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    Some(format!("--{name}={value}").into())
}

/// Runs the store until the process ends.
fn run(args: &EtcdCommand, spoken: &Spoken) -> anyhow::Result<()> {
    let level = if ["panic", "fatal", "dpanic"].contains(&args.log_level.as_str()) { "error" } else { &args.log_level };
    logging::init(level)?;
    spoken.log();
    let auto_compaction = AutoCompaction::parse(&args.auto_compaction_mode, &args.auto_compaction_retention)
        .map_err(anyhow::Error::msg)?;
    let data_dir = args.data_dir.clone().unwrap_or_else(|| format!("{}.etcd", args.name).into());
    let _lock = DataDirLock::make(&data_dir)?;
    let quota_bytes = match args.quota_backend_bytes {
        0 => Some(QUOTA_DEFAULT),
        bytes => u64::try_from(bytes).ok(),
    };
    let limits = Limits { txn_ops_max: args.max_txn_ops, request_bytes_max: args.max_request_bytes, quota_bytes };
    let options = Options { data_dir: Some(data_dir), syncs: !args.unsafe_no_fsync, limits, auto_compaction };
    process::run(async |process| {
        let serving = serving(args).await?;
        let tasks = process.tasks.child("etcd");
        let store = Store::open(options, &tasks).await?;
        let server = Server::start(store, serving, &tasks).await?;
        tracing::info!(clients = ?server.clients, metrics = ?server.metrics, "ready to serve client requests");
        process.ended().await
    })
}

async fn serving(args: &EtcdCommand) -> anyhow::Result<ServerOptions> {
    let tls = match (&args.cert_file, &args.key_file) {
        (Some(certificate), Some(key)) => Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authority: args.trusted_ca_file.clone(),
        }),
        (None, None) => None,
        _ => bail!("--cert-file and --key-file go together"),
    };
    if args.client_cert_auth && args.trusted_ca_file.is_none() {
        bail!("--client-cert-auth needs --trusted-ca-file");
    }
    let advertised = &args.advertise_client_urls;
    let client_urls = if advertised.is_empty() { &args.listen_client_urls } else { advertised };
    Ok(ServerOptions {
        name: args.name.clone(),
        clients: endpoints(&args.listen_client_urls).await?,
        metrics: endpoints(&args.listen_metrics_urls).await?,
        client_urls: client_urls.clone(),
        peer_urls: args.initial_advertise_peer_urls.clone(),
        tls,
        watch_progress_every: args
            .watch_progress_notify_interval
            .or(args.experimental_watch_progress_notify_interval)
            .filter(|every| !every.is_zero())
            .unwrap_or(Duration::from_secs(600)),
        streams_max: args.max_concurrent_streams,
        registry: Registry::of_component(),
    })
}

/// Returns the path of a Unix socket, and whether it uses TLS. A path without a leading slash is relative to the
/// working directory.
fn socket(url: &str) -> Option<(bool, PathBuf)> {
    let (tls, path) = match url.split_once("://")? {
        ("unix", path) => (false, path),
        ("unixs", path) => (true, path),
        _ => return None,
    };
    (!path.is_empty()).then(|| (tls, path.into()))
}

async fn endpoints(urls: &[String]) -> anyhow::Result<Vec<Endpoint>> {
    let mut endpoints = Vec::new();
    for url in urls.iter().map(|url| url.trim()).filter(|url| !url.is_empty()) {
        let wrong = || format!("must be a URL of the form http://IP:PORT, https://IP:PORT or unix://PATH, got {url:?}");
        if let Some((tls, path)) = socket(url) {
            endpoints.push(Endpoint { address: Address::Unix(path), tls });
            continue;
        }
        let uri: Uri = url.parse().with_context(wrong)?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!(wrong()),
        };
        let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else { bail!(wrong()) };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await.with_context(wrong)?.collect();
        // A name such as localhost may resolve to an address of each family, of which IPv4 is always available.
        let address = found.iter().find(|a| a.is_ipv4()).or(found.first()).with_context(wrong)?;
        let endpoint = Endpoint { address: Address::Tcp(*address), tls };
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    Ok(endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<(EtcdCommand, Vec<String>), String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match asked(&words, |_| None)? {
            ParsedArgs::Run(spoken) => {
                let args = arguments(&spoken).map_err(|error| error.to_string())?;
                Ok((args, spoken.without_effect))
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn by_name_or_first_word() {
        let check = |words: &[&str], rest: Option<&[&str]>| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let rest = rest.map(|rest| rest.iter().map(OsString::from).collect::<Vec<_>>());
            assert_eq!(named(&words).map(<[_]>::to_vec), rest, "{words:?}");
        };
        check(&["/a/etcd", "--help"], Some(&["--help"]));
        check(&["kelson", "etcd", "x"], Some(&["x"]));
        check(&["kelson", "server"], None);
        check(&["/etcd/kelson"], None);
    }

    /// The flags of envtest, fabric8's kube-api-test, kwok and kubeadm.
    #[test]
    fn flags_as_tools_pass_them() {
        for line in [
            "--advertise-client-urls=http://127.0.0.1:1 --data-dir=/tmp/d --listen-client-urls=http://127.0.0.1:1 \
             --listen-peer-urls=http://127.0.0.1:2 --unsafe-no-fsync=true",
            "-data-dir /tmp/d -wal-dir /tmp/w --listen-client-urls http://localhost:1 --advertise-client-urls http://localhost:1 \
             --initial-cluster default=http://localhost:2 --initial-advertise-peer-urls http://localhost:2 \
             --listen-peer-urls http://localhost:2",
            "--name=node0 --auto-compaction-retention=1 --quota-backend-bytes=8589934592 --initial-cluster=node0=http://a:1 \
             --initial-advertise-peer-urls=http://a:1 --listen-peer-urls=http://a:1",
            "--cert-file=c --client-cert-auth=true --experimental-initial-corrupt-check=true --key-file=k \
             --experimental-watch-progress-notify-interval=5s --listen-metrics-urls=http://127.0.0.1:2381 --peer-cert-file=c \
             --peer-client-cert-auth=true --peer-key-file=k --peer-trusted-ca-file=c --snapshot-count=10000 --trusted-ca-file=c",
        ] {
            parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        let (args, without_effect) = parsed("-unsafe-no-fsync -max-txn-ops 7 -name=a --snapshot-count=5").unwrap();
        assert!(args.unsafe_no_fsync && args.max_txn_ops == 7 && args.name == "a");
        assert_eq!(without_effect, ["snapshot-count"]);
    }

    #[test]
    fn what_is_refused() {
        for line in ["--dat-dir=x", "-dat-dir x", "--max-txn-ops=many", "--data-dir", "extra"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn help_names_the_flag_that_test_environments_look_for() {
        let text = help::flags(NAME, ABOUT, &table());
        assert!(text.lines().any(|line| line.trim_start().starts_with("--unsafe-no-fsync ")), "{text}");
        assert!(FACTS.lines().collect::<Vec<_>>().is_sorted());
        command().debug_assert();
    }

    #[test]
    fn the_environment_goes_behind_the_words() {
        let environment = |name: &str| match name {
            "ETCD_NAME" => Some("e".to_owned()),
            "ETCD_MAX_TXN_OPS" => Some("9".to_owned()),
            _ => None,
        };
        let Ok(ParsedArgs::Run(spoken)) = asked(&["-name".into(), "w".into()], environment) else { panic!("runs") };
        let args = arguments(&spoken).unwrap();
        assert_eq!((args.name.as_str(), args.max_txn_ops), ("w", 9));
    }

    #[test]
    fn a_file_replaces_flags() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("etcd.yaml");
        let text = "name: f\nmax-txn-ops: 3\nlisten-client-urls: http://127.0.0.1:1,http://127.0.0.1:2\n\
                    client-transport-security:\n  cert-file: c\n  client-cert-auth: true\npeer-transport-security: {}\n";
        std::fs::write(&file, text).unwrap();
        let words = [OsString::from(format!("--config-file={}", file.display())), "--name=w".into()];
        let Ok(ParsedArgs::Run(spoken)) = asked(&words, |_| None) else { panic!("runs") };
        let args = arguments(&spoken).unwrap();
        assert_eq!((args.name.as_str(), args.max_txn_ops, args.listen_client_urls.len()), ("f", 3, 2));
        assert!(args.client_cert_auth && args.cert_file.as_deref() == Some(Path::new("c")));
        std::fs::write(&file, "nam: f\n").unwrap();
        assert!(asked(&words, |_| None).is_err());
    }

    #[tokio::test]
    async fn where_to_listen() {
        let check = async |urls: &[&str], wanted: &[(&str, bool)]| {
            let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            let found = endpoints(&urls).await.unwrap();
            let wanted =
                wanted.iter().map(|(a, tls)| Endpoint { address: Address::Tcp(a.parse().unwrap()), tls: *tls });
            assert_eq!(found, wanted.collect::<Vec<_>>(), "{urls:?}");
        };
        check(&["http://127.0.0.1:2379"], &[("127.0.0.1:2379", false)]).await;
        check(&["https://[::1]:1", "http://0.0.0.0:2", ""], &[("[::1]:1", true), ("0.0.0.0:2", false)]).await;
        let urls = ["unix:///tmp/etcd.sock".to_owned(), "unixs://localhost:2379".to_owned()];
        let sockets = endpoints(&urls).await.unwrap();
        let wanted = [("/tmp/etcd.sock", false), ("localhost:2379", true)];
        assert_eq!(sockets, wanted.map(|(path, tls)| Endpoint { address: Address::Unix(path.into()), tls }));
        for wrong in ["127.0.0.1:2379", "http://127.0.0.1", "unix://", "ftp://127.0.0.1:1"] {
            assert!(endpoints(&[wrong.to_owned()]).await.is_err(), "{wrong}");
        }
    }
}
