//! `kelson support-bundle`: one file with what others need to find a fault, and without secrets. `secrets` knows the values that
//! must not be in it, `redact` takes them and what looks like one out of every text, `archive` bounds its size; `collect` asks the
//! machine and `api` the cluster, each of which may not answer.
mod api;
mod archive;
mod collect;
mod redact;
mod secrets;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;
use kelson_check::Host;

use super::args::SupportArgs;
use super::status::facts::Facts;
use super::status::{gather, show, warn};
use super::upgrade::unit;
use crate::about::About;
use crate::cli::Cli;
use crate::{config, token};
use archive::Archive;
use redact::Redactor;

/// The beginning of the list of contents.
const ABOUT: &str = "Collected by kelson support-bundle. Private keys, tokens, contents of Secrets and ConfigMaps, values of environment \
variables, command lines of containers and annotations are left out; values of this cluster's secrets are replaced by (hidden) \
everywhere. Names of objects, images, addresses and log lines are in it: look at it before you hand it on.\n";
/// The file with the flags of a service.
const ENVIRONMENT: &str = "/etc/kelson/kelson.env";
/// Flags that name a file with secrets.
const SECRET_FILES: [&str; 7] = [
    "token-auth-file",
    "encryption-provider-config",
    "authentication-token-webhook-config-file",
    "authorization-webhook-config-file",
    "audit-webhook-config-file",
    "etcd-keyfile",
    "kubeconfig-out",
];

/// Writes the file.
///
/// # Errors
/// The data directory is not there, or the file cannot be written.
pub async fn run(args: &SupportArgs) -> anyhow::Result<()> {
    let facts = gather::gather(&args.data_dir).await?;
    let role = if facts.is_server { "server" } else { "agent" };
    let pid = facts.process.as_ref().map(|process| process.pid);
    let flags = flags(pid, role);
    let client = if facts.is_server && pid.is_some() { token::admin(&facts.data_dir).ok() } else { None };

    let mut known = secrets::of_files(&facts.data_dir, &secret_files(&flags));
    known.extend(secrets::of_files(Path::new("/etc/kelson"), &[]));
    let mut unknown = None;
    if let Some(client) = &client {
        match secrets::of_cluster(client).await {
            Ok(values) => known.extend(values),
            Err(e) => unknown = Some(e.to_string()),
        }
    }
    let stamp = facts.time.strftime("%Y%m%d-%H%M%S");
    let name = format!("kelson-support-{stamp}");
    let file = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let time_s = u64::try_from(facts.time.as_second()).unwrap_or(0);
    let redactor = Redactor::new(known).context("prepare the search for secrets")?;
    let created = Archive::create(&file, &name, redactor, time_s);
    let mut archive = created.with_context(|| format!("create {}", file.display()))?;
    let written = async {
        describe(&facts, role, &flags, &mut archive)?;
        machine(&facts.data_dir, &mut archive).await?;
        match &client {
            // Objects may repeat a secret, and which ones there are could not be found out.
            Some(_) if unknown.is_some() => archive.miss("api", &unknown.as_deref().unwrap_or_default()),
            Some(client) => api::collect(client, &mut archive).await?,
            None => archive.miss("api", &"no server runs with this data directory, or it is an agent's"),
        }
        for log in collect::logs(&facts.data_dir, pid, unit(&Host::this(), pid, role), role) {
            match log.read().await {
                Ok(text) => archive.add(&log.name(), &text)?,
                Err(why) => archive.miss(&log.name(), &why),
            }
        }
        archive.finish(ABOUT)
    };
    written.await.with_context(|| format!("write {}", file.display()))?;
    outln!("{}", file.display());
    outln!(
        "It has no keys, tokens or contents of Secrets. Look at it before you hand it on: names and addresses are in it."
    );
    Ok(())
}

/// Adds the facts that this program knows without requests.
fn describe(facts: &Facts, role: &str, flags: &[OsString], archive: &mut Archive) -> std::io::Result<()> {
    let warnings = warn::warnings(facts);
    archive.add("status.txt", &show::text(facts, &warnings))?;
    archive.add("status.json", &show::json(facts, &warnings).map_err(std::io::Error::other)?)?;
    let about = serde_json::to_string_pretty(&About::this()).map_err(std::io::Error::other)?;
    archive.add("versions/kelson.json", &about)?;
    match config::effective(role, flags, &Cli::command()) {
        Ok(text) => archive.add("configuration.txt", &text),
        Err(e) => {
            archive.miss("configuration.txt", &format_args!("{e:#}"));
            Ok(())
        }
    }
}

/// Adds the facts of the machine.
async fn machine(dir: &Path, archive: &mut Archive) -> std::io::Result<()> {
    for (name, path) in collect::FILES {
        match collect::file(Path::new(path)) {
            Ok(text) => archive.add(name, &text)?,
            Err(why) => archive.miss(name, &why),
        }
    }
    for (name, words) in collect::PROGRAMS {
        match collect::output(words).await {
            Ok(text) => archive.add(name, &text)?,
            Err(why) => archive.miss(name, &why),
        }
    }
    archive.add("host/data-directory.txt", &collect::names(dir))
}

/// The flags of the process, or of the service where it does not run.
fn flags(pid: Option<u32>, role: &str) -> Vec<OsString> {
    let host = Host::this();
    let running = pid.map(|pid| host.text(format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    let words: Vec<&str> = running.split_terminator('\0').collect();
    match words.iter().position(|word| *word == role) {
        Some(at) => words[at + 1..].iter().map(OsString::from).collect(),
        None => of_environment(&host.text(ENVIRONMENT)),
    }
}

/// The words of `KELSON_ARGS` in an environment file.
fn of_environment(text: &str) -> Vec<OsString> {
    let line = text.lines().rev().find_map(|line| line.trim().strip_prefix("KELSON_ARGS=")).unwrap_or_default();
    let words = line.trim_matches(['\'', '"']).split_whitespace();
    words.map(|word| OsString::from(word.trim_matches('"'))).collect()
}

/// The files with secrets that flags name.
fn secret_files(flags: &[OsString]) -> Vec<PathBuf> {
    let words: Vec<String> = flags.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let value = |flag: &str| {
        let long = format!("--{flag}");
        let mut values = words.iter().enumerate().filter_map(|(at, word)| match word.split_once('=') {
            Some((name, value)) if name == long => Some(value.to_owned()),
            None if *word == long => words.get(at + 1).cloned(),
            _ => None,
        });
        values.next_back()
    };
    SECRET_FILES.iter().filter_map(|flag| value(flag)).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_service_and_the_files_that_they_name() {
        let text = "# read by the service\nKELSON_ARGS='--data-dir /d --token-auth-file \"/t.csv\" --etcd-keyfile=/k'\nKELSON_TOKEN='x'\n";
        let flags = of_environment(text);
        assert_eq!(flags.len(), 5, "{flags:?}");
        assert_eq!(secret_files(&flags), [PathBuf::from("/t.csv"), PathBuf::from("/k")]);
        assert!(of_environment("").is_empty());
    }
}
