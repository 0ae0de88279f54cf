//! The secrets of a machine and its cluster, which the redactor looks for in everything else. They are read and never written.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kelson_client::{Client, ListParams};

/// Larger files hold no keys.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The directory depth to which secrets are searched below the data directory.
const DEPTH_MAX: usize = 4;
/// Fields of kubeconfigs, encryption configurations and registries' credentials whose value is a secret.
const FIELDS: [&str; 9] = [
    "token",
    "password",
    "client-key-data",
    "secret",
    "auth",
    "identitytoken",
    "registrytoken",
    "refresh-token",
    "id-token",
];
/// The shortest unbroken word of a key or token in a file of nothing else.
const WORD_MIN: usize = 16;

/// Values in the files of a data directory, and in those that flags name.
pub fn of_files(dir: &Path, named: &[PathBuf]) -> Vec<String> {
    let mut files = Vec::new();
    walk(dir, 0, &mut files);
    files.extend(named.iter().cloned());
    let texts = files.into_iter().filter_map(|file| {
        let about = fs::metadata(&file).ok().filter(|about| about.is_file() && about.len() <= FILE_BYTES_MAX)?;
        let text = fs::read(&file).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
        (about.len() > 0).then_some((file, text))
    });
    texts.flat_map(|(file, text)| of_text(&file, &text)).collect()
}

/// Files that may hold keys, tokens or credentials: all small ones but for the store's, containers' and the runtime's.
fn walk(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    const LARGE: [&str; 7] = ["store", "containerd", "images", "storage", "pods", "log", "pod-logs"];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < DEPTH_MAX && !LARGE.contains(&name.as_str()) => {
                walk(&path, depth + 1, files);
            }
            Ok(kind) if !kind.is_dir() => files.push(path),
            _ => {}
        }
    }
}

fn of_text(file: &Path, text: &str) -> Vec<String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let mut values = private_keys(text);
    // A file of static tokens: the first column.
    if name.ends_with(".csv") {
        values.extend(
            text.lines().filter_map(|line| line.split(',').next()).map(|token| token.trim_matches('"').to_owned()),
        );
    }
    if name.contains("token") {
        values.extend(text.split([',', '\n']).map(str::trim).filter(|word| word.len() >= WORD_MIN).map(str::to_owned));
    }
    values.extend(text.lines().flat_map(fields));
    values
}

/// The lines of base64 of each private key: a log may show one of them alone.
fn private_keys(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.contains("PRIVATE KEY-----") {
            true => inside = line.contains("-----BEGIN"),
            false if inside => lines.push(line.trim().to_owned()),
            false => {}
        }
    }
    lines
}

/// Values of fields in a line of YAML, JSON or an environment file, and what they are when they are decoded.
fn fields(line: &str) -> Vec<String> {
    let mut values = Vec::new();
    for part in line.split([',', '{', '}']) {
        let Some((name, value)) = part.split_once([':', '=']) else { continue };
        let name = name.trim().trim_start_matches(['-', '{', ' ']).trim_matches(['"', '\'', ' ']).to_lowercase();
        let value = value.trim().trim_end_matches(['}', ']']).trim().trim_matches(['"', '\'']);
        if FIELDS.contains(&name.as_str()) || name.ends_with("_token") || name.ends_with("_password") {
            if let Ok(decoded) = STANDARD.decode(value) {
                let decoded = String::from_utf8_lossy(&decoded).into_owned();
                values.extend(private_keys(&decoded));
                // `auth` of a registry: USER:PASSWORD.
                values.extend(decoded.split_once(':').map(|(_, password)| password.to_owned()));
            }
            values.push(value.to_owned());
        }
    }
    values
}

/// The values of all Secrets, decoded and as base64.
///
/// # Errors
/// They cannot be listed.
pub async fn of_cluster(client: &Client) -> Result<Vec<String>, kelson_client::ClientError> {
    let secrets = client.list::<Secret>("", &ListParams::default()).await?;
    let values = secrets.items.into_iter().flat_map(|secret| {
        // A release of Helm is one; its size would make the search slow, and no line of it is shown.
        let data = secret.data.unwrap_or_default().into_values().filter(|value| value.0.len() as u64 <= FILE_BYTES_MAX);
        data.flat_map(|value| [String::from_utf8_lossy(&value.0).into_owned(), STANDARD.encode(&value.0)])
            .collect::<Vec<_>>()
    });
    Ok(values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_every_kind_of_file_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        put("pki/ca.key", "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\nAgEGCCqG\n-----END PRIVATE KEY-----\n");
        put("node-token", "abcdef.0123456789abcdef\n");
        let key = STANDARD.encode("-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIFooBar\n-----END EC PRIVATE KEY-----\n");
        put("admin.kubeconfig", &format!("users:\n- user:\n    client-key-data: {key}\n    token: \"kube-token-1\"\n"));
        put("kubelet/config.json", r#"{"auths":{"r":{"auth":"bWU6cmVnaXN0cnktcGFzcw=="}}}"#);
        put("store/store.db", "token: in-the-store");
        let tokens = put("elsewhere/tokens.csv", "static-token-1,user,uid\n");
        let keys = put("elsewhere/encryption.yaml", "    - name: k\n      secret: c2VjcmV0IGlzIHNlY3VyZQ==\n");
        let found = of_files(dir.path(), &[tokens, keys]);
        for want in [
            "MIGHAgEAMBMGByqGSM49",
            "abcdef.0123456789abcdef",
            "kube-token-1",
            "MHcCAQEEIFooBar",
            key.as_str(),
            "registry-pass",
            "static-token-1",
            "c2VjcmV0IGlzIHNlY3VyZQ==",
        ] {
            assert!(found.iter().any(|value| value == want), "{want}: {found:?}");
        }
        assert!(!found.iter().any(|value| value.contains("in-the-store")), "what is large is not read");
    }
}
