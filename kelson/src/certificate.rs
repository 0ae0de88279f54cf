//! `kelson certificate list`: what certificates a data directory holds, of a server and of its node, and when they end.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::Path;

use anyhow::bail;
use jiff::Timestamp;
use kelson_bootstrap::files::Store;
use kelson_pki::CertInfo;
use kelson_pki::kubeconfig::KubeconfigFile;

use crate::cli::CertificateCommand;

/// What is renewed by whom, told in the table.
const AUTHORITIES: [&str; 3] = ["ca", "front-proxy-ca", "kubelet-serving-ca"];

/// What `kelson certificate list` says of one certificate.
struct Row {
    name: String,
    ends: Timestamp,
    issuer: String,
    renewed: &'static str,
}

/// Runs the subcommand.
pub fn run(command: &CertificateCommand) -> anyhow::Result<()> {
    match command {
        CertificateCommand::List { data_dir } => {
            let rows = find(data_dir);
            if rows.is_empty() {
                bail!("{} holds no certificates: is it a data directory of a server or an agent?", data_dir.display());
            }
            print!("{}", table(&rows, Timestamp::now()));
        }
    }
    Ok(())
}

fn find(dir: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: &str, pem: Option<String>, renewed| {
        if let Some(info) = pem.and_then(|pem| CertInfo::from_pem(&pem).ok()) {
            rows.push(Row { name: name.to_owned(), ends: info.not_after, issuer: info.issuer, renewed });
        }
    };
    for name in AUTHORITIES {
        add(name, std::fs::read_to_string(dir.join("pki").join(format!("{name}.crt"))).ok(), "no");
    }
    add("admin.kubeconfig", admin(&dir.join("admin.kubeconfig")), "when the server starts");
    for name in ["kubelet-client", "kubelet-server"] {
        let current = Store::new(name, &dir.join("kubelet").join("pki")).current();
        add(name, current.ok().flatten().map(|issued| issued.cert_pem), "by the node");
    }
    rows
}

/// The certificate in an administrator's kubeconfig.
fn admin(file: &Path) -> Option<String> {
    let file = KubeconfigFile::parse(&std::fs::read(file).ok()?).ok()?;
    let (_, user) = file.current().ok()?;
    String::from_utf8(user?.certificate(Path::new("")).ok()?.load().ok()??).ok()
}

fn table(rows: &[Row], now: Timestamp) -> String {
    let mut out = format!("{:<20} {:<22} {:<10} {:<22} {}\n", "CERTIFICATE", "EXPIRES", "LEFT", "AUTHORITY", "RENEWED");
    for row in rows {
        let days = row.ends.duration_since(now).as_secs().div_euclid(24 * 3600);
        let left = if days < 0 { "expired".to_owned() } else { format!("{days}d") };
        let ends = kelson_meta::format_seconds(row.ends);
        out.push_str(&format!("{:<20} {:<22} {:<10} {:<22} {}\n", row.name, ends, left, row.issuer, row.renewed));
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
    }
}
