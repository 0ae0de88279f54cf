//! `kelson certificate`: lists the certificates in the data directory of a server or node with their expiry dates,
//! renews them, and rotates CAs. The commands change files; running components reload them without a restart.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kelson_bootstrap::files::Store;
use kelson_client::ListParams;
use kelson_members::Layout;
use kelson_pki::kubeconfig::KubeconfigFile;
use kelson_pki::{BACKDATE, CertInfo, ClusterPki, rotation};

use crate::authorities::{self, PKI_DIR};
use crate::certificates::ISSUED_DIR;
use crate::cli::{CertificateCommand, RotateArgs};
use crate::cluster::{Bundles, REPORT};
use crate::{node, rotation_servers, token};

/// The time for which a command waits for running components to apply its change.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval of checks meanwhile.
const LOOK: Duration = Duration::from_millis(500);

/// One certificate in `kelson certificate list`.
pub struct Row {
    /// Its purpose, or its file.
    pub name: String,
    /// When it expires.
    pub ends: Timestamp,
    issuer: String,
    /// The component that renews it, or when it is renewed.
    pub renewed: &'static str,
}

/// Runs the subcommand.
pub async fn run(command: CertificateCommand) -> anyhow::Result<()> {
    let now = Timestamp::now();
    match command {
        CertificateCommand::List { data_dir } => out!("{}", listed(&data_dir, now)?),
        CertificateCommand::Renew { data_dir } => {
            listed(&data_dir, now)?;
            let asked = ask_to_renew(&data_dir, now)?;
            if !is_running(&data_dir)? {
                outln!("No component is running; certificates are renewed at the next start.");
                return Ok(());
            }
            settled("the certificates are renewed", || asked.iter().all(|file| made(file).is_some_and(|at| at >= now)))
                .await?;
            out!("{}", listed(&data_dir, Timestamp::now())?);
        }
        CertificateCommand::RotateCa(args) => match args.finish {
            true => finish(&args).await?,
            false => begin(&args, now).await?,
        },
    }
    Ok(())
}

fn listed(data_dir: &Path, now: Timestamp) -> anyhow::Result<String> {
    let rows = find(data_dir);
    if rows.is_empty() {
        bail!("{} has no certificates: is it the data directory of a server or agent?", data_dir.display());
    }
    Ok(table(&rows, now))
}

/// Reports whether a server or an agent uses the directory.
fn is_running(data_dir: &Path) -> anyhow::Result<bool> {
    if !data_dir.exists() {
        bail!("{} does not exist", data_dir.display());
    }
    node::run::is_running(data_dir)
}

/// Waits until running components have applied a change.
async fn settled(what: &str, done: impl Fn() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > PATIENCE {
            bail!(
                "timed out after {} s waiting until {what}; see the log of the running components",
                PATIENCE.as_secs()
            );
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Returns the directory of a node's certificates.
pub fn cert_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("kubelet").join("pki")
}

/// Writes the files that request new certificates, and returns those of the certificates to wait for.
fn ask_to_renew(data_dir: &Path, now: Timestamp) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let (pki, node) = (data_dir.join(PKI_DIR), cert_dir(data_dir));
    if pki.join("ca.key").exists() {
        rotation::ask_to_renew(&pki, now)?;
        files.push(pki.join(ISSUED_DIR).join("apiserver.crt"));
    }
    if node.exists() {
        rotation::ask_to_renew(&node, now)?;
        let current = ["kubelet-client", "kubelet-server"].map(|name| Store::new(name, &node).current_path());
        files.extend(current.into_iter().filter(|file| file.exists()));
    }
    Ok(files)
}

/// Returns when the certificate in a file was issued.
fn made(file: &Path) -> Option<Timestamp> {
    let info = CertInfo::from_pem(&std::fs::read_to_string(file).ok()?).ok()?;
    // Certificates have a resolution of a second.
    (info.not_before + BACKDATE).checked_add(Duration::from_secs(1)).ok()
}

async fn begin(args: &RotateArgs, now: Timestamp) -> anyhow::Result<()> {
    let dir = args.data_dir.join(PKI_DIR);
    rotation::begin(&dir, now).context("create new CAs")?;
    if is_running(&args.data_dir)? {
        let issuer = dir.join("ca.crt");
        let shown = dir.join(ISSUED_DIR).join("apiserver.crt");
        let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
        settled("the server uses them", || kelson_pki::is_issued_by(&read(&shown), &read(&issuer))).await?;
        outln!("The new CAs sign from now on; the previous ones are still trusted. Nodes renew their certificates.");
        name_others(&args.data_dir).await;
    } else {
        outln!("The new CAs sign from the server's next start on; the previous ones are still trusted.");
    }
    outln!(
        "Distribute new kubeconfigs to clients outside the cluster, and restart pods that read the CA only at their start. Then run: kelson certificate rotate-ca --finish"
    );
    Ok(())
}

/// Says what to do on the other servers of the cluster, if there are any.
async fn name_others(data_dir: &Path) {
    let servers = async { rotation_servers::listed(&token::admin(data_dir)?).await };
    let step = "copy DIR/pki/*.crt and DIR/pki/*.key of this server to DIR/pki of each other server, which applies them at once";
    match servers.await {
        Ok(servers) if servers.len() < 2 => {}
        Ok(servers) => outln!("The cluster has the servers {}: {step}.", servers.join(", ")),
        Err(error) => outln!("The servers cannot be listed ({error:#}). If the cluster has several: {step}."),
    }
}

async fn finish(args: &RotateArgs) -> anyhow::Result<()> {
    let dir = args.data_dir.join(PKI_DIR);
    if rotation::previous(&dir, "ca")?.is_none() {
        bail!("no CA rotation is in progress in {}", dir.display());
    }
    let servers = if args.force { Vec::new() } else { confirmed(&args.data_dir).await? };
    rotation::finish(&dir)?;
    outln!("The previous CAs are no longer trusted.");
    if servers.len() > 1 {
        outln!("Run the same command on the other servers: {}.", servers.join(", "));
    }
    Ok(())
}

/// Returns the servers of the cluster, all of which use the new CAs, as all nodes do.
///
/// # Errors
/// Those that do not, by name, or they cannot be asked.
async fn confirmed(data_dir: &Path) -> anyhow::Result<Vec<String>> {
    let pki = ClusterPki::open(&authorities::options(data_dir), Timestamp::now())?;
    let client = token::admin(data_dir)?;
    let nodes =
        client.list::<Node>("", &ListParams::default()).await.context("list nodes (--force continues without them)");
    let mut missing = Vec::new();
    let nodes = late(&token::reaching(data_dir, nodes)?.items, &Bundles::of(&pki).report()?);
    if !nodes.is_empty() {
        missing.push(format!(
            "these nodes have not confirmed that they use the new CAs and would be disconnected: {}",
            nodes.join(", ")
        ));
    }
    let servers = token::reaching(data_dir, rotation_servers::listed(&client).await)?;
    // A single server has applied its own files, and may be advertised at an address that this machine does not reach.
    let late = if servers.len() > 1 { rotation_servers::late(&servers, pki.ca.cert_pem()).await } else { Vec::new() };
    if !late.is_empty() {
        missing.push(format!(
            "these servers do not use the new CAs and would be disconnected: {}; copy {}/*.crt and *.key to DIR/pki there",
            late.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            data_dir.join(PKI_DIR).display()
        ));
    }
    match missing.is_empty() {
        true => Ok(servers),
        false => bail!("{}; use --force to continue", missing.join("; ")),
    }
}

/// Returns the nodes that have not reported `wanted`.
fn late(nodes: &[Node], wanted: &str) -> Vec<String> {
    let reported = |node: &&Node| {
        let notes = node.metadata.annotations.as_ref();
        notes.and_then(|notes| notes.get(REPORT)).is_none_or(|report| report != wanted)
    };
    nodes.iter().filter(reported).map(|node| node.metadata.name.clone().unwrap_or_default()).collect()
}

/// Returns all certificates of a data directory.
pub fn find(dir: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: &str, pem: Option<String>, renewed| {
        if let Some(info) = pem.and_then(|pem| CertInfo::from_pem(&pem).ok()) {
            rows.push(Row { name: name.to_owned(), ends: info.not_after, issuer: info.issuer, renewed });
        }
    };
    let pki = dir.join(PKI_DIR);
    let read = |file: PathBuf| std::fs::read_to_string(file).ok();
    for name in rotation::AUTHORITIES {
        add(name, read(pki.join(format!("{name}.crt"))), "by rotate-ca");
        add(
            &format!("{name} (previous)"),
            rotation::previous(&pki, name).ok().flatten(),
            "trusted until rotate-ca --finish",
        );
    }
    let issued = std::fs::read_dir(pki.join(ISSUED_DIR)).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut issued: Vec<PathBuf> = issued.filter(|file| file.extension().is_some_and(|ext| ext == "crt")).collect();
    issued.sort();
    for file in issued {
        add(&file.file_stem().unwrap_or_default().to_string_lossy(), read(file.clone()), "by the server");
    }
    let etcd = Layout::new(dir);
    add("etcd-ca", read(etcd.pki_file("ca.crt")), "no rotation");
    for name in ["peer", "server", "client"] {
        add(&format!("etcd-{name}"), read(etcd.pki_file(&format!("{name}.crt"))), "by the server");
    }
    add("admin.kubeconfig", admin(&dir.join("admin.kubeconfig")), "when the server starts");
    for name in ["kubelet-client", "kubelet-server"] {
        let current = Store::new(name, &cert_dir(dir)).current();
        add(name, current.ok().flatten().map(|issued| issued.cert_pem), "by the node");
    }
    rows
}

/// The certificate with which a node shows itself to the API, PEM.
pub fn kubelet_certificate(dir: &Path) -> Option<String> {
    Store::new("kubelet-client", &cert_dir(dir)).current().ok().flatten().map(|issued| issued.cert_pem)
}

/// The certificate in an administrator's kubeconfig.
fn admin(file: &Path) -> Option<String> {
    let file = KubeconfigFile::parse(&std::fs::read(file).ok()?).ok()?;
    let (_, user) = file.current().ok()?;
    String::from_utf8(user?.certificate(Path::new("")).ok()?.load().ok()??).ok()
}

fn table(rows: &[Row], now: Timestamp) -> String {
    let mut out = format!("{:<30} {:<22} {:<10} {:<22} {}\n", "CERTIFICATE", "EXPIRES", "LEFT", "AUTHORITY", "RENEWED");
    for row in rows {
        let days = row.ends.duration_since(now).as_secs().div_euclid(24 * 3600);
        let left = if days < 0 { "expired".to_owned() } else { format!("{days}d") };
        let ends = kelson_meta::format_seconds(row.ends);
        out.push_str(&format!("{:<30} {:<22} {:<10} {:<22} {}\n", row.name, ends, left, row.issuer, row.renewed));
    }
    out
}

#[cfg(test)]
mod tests {
    use kelson_pki::{ClusterPki, PkiOptions};

    use super::*;

    #[test]
    fn a_servers_certificates_are_listed_with_their_ends() {
        let dir = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().join("pki")), now).unwrap();
        pki.ensure_admin_kubeconfig(&dir.path().join("admin.kubeconfig"), "https://127.0.0.1:6443", now).unwrap();
        let names = |at: Timestamp| -> Vec<(String, String)> {
            let text = table(&find(dir.path()), at);
            let row = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                (words[0].to_owned(), words[2].to_owned())
            };
            text.lines().skip(1).map(row).collect()
        };
        let pairs = |rows: &[(&str, &str)]| {
            rows.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect::<Vec<(String, String)>>()
        };
        let wanted = [
            ("ca", "3650d"),
            ("front-proxy-ca", "3650d"),
            ("kubelet-serving-ca", "3650d"),
            ("admin.kubeconfig", "365d"),
        ];
        assert_eq!(names(now), pairs(&wanted));
        let later = now + std::time::Duration::from_secs(400 * 24 * 3600);
        assert_eq!(names(later)[3], ("admin.kubeconfig".to_owned(), "expired".to_owned()));
        assert!(find(&dir.path().join("nowhere")).is_empty());
        rotation::begin(&dir.path().join("pki"), now).unwrap();
        let names: Vec<String> = find(dir.path()).into_iter().map(|row| row.name).collect();
        assert!(names.contains(&"kubelet-serving-ca (previous)".to_owned()), "{names:?}");
    }

    #[test]
    fn nodes_that_would_be_cut_off_are_named() {
        let node = |name: &str, report: Option<&str>| {
            let annotations = report.map(|report| (REPORT.to_owned(), report.to_owned())).into_iter().collect();
            let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                name: Some(name.to_owned()),
                annotations: Some(annotations),
                ..Default::default()
            };
            Node { metadata, ..Node::default() }
        };
        let nodes = [node("a", Some("new")), node("b", Some("old")), node("c", None)];
        assert_eq!(late(&nodes, "new"), ["b", "c"]);
    }

    #[tokio::test]
    async fn what_is_stopped_is_renewed_at_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let now: Timestamp = Timestamp::now();
        let options = PkiOptions::new(dir.path().join("pki"));
        let old = ClusterPki::open(&options, now).unwrap();
        run(CertificateCommand::Renew { data_dir: dir.path().to_owned() }).await.unwrap();
        assert!(ClusterPki::open(&options, now).unwrap().renew_since >= now);
        let rotate = |finish, force| {
            let data_dir = dir.path().to_owned();
            run(CertificateCommand::RotateCa(RotateArgs { finish, force, data_dir }))
        };
        assert!(rotate(true, false).await.unwrap_err().to_string().contains("no CA rotation is in progress"));
        rotate(false, false).await.unwrap();
        assert_ne!(ClusterPki::open(&options, now).unwrap().ca.cert(), old.ca.cert());
        let refused = rotate(true, false).await.unwrap_err().to_string();
        assert!(refused.contains("admin.kubeconfig does not exist"), "nodes cannot be asked: {refused}");
        rotate(true, true).await.unwrap();
        assert_eq!(rotation::previous(&options.dir, "ca").unwrap(), None);
    }
}
