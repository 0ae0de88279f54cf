//! The bootstrap token that nodes join with: made once, kept in the data directory for the operator to read, and as the
//! secret that the API server checks it against (the same shape kubeadm makes).
use std::path::Path;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Secret;
use kelson_client::Client;
use rand::Rng as _;
use serde_json::json;

/// Letters of a token (upstream: bootstrap token format `[a-z0-9]{6}.[a-z0-9]{16}`).
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

/// A token in its two halves. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Public half.
    pub id: String,
    /// Secret half.
    pub secret: String,
}

impl Token {
    fn random() -> Self {
        let word = |n: usize| {
            let mut rng = rand::rng();
            (0..n).map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())])).collect()
        };
        Self { id: word(ID_LENGTH), secret: word(SECRET_LENGTH) }
    }

    /// Reads `ID.SECRET`; the error never repeats it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let ok = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| ALPHABET.contains(&b));
        match text.trim().split_once('.') {
            Some((id, secret)) if ok(id, ID_LENGTH) && ok(secret, SECRET_LENGTH) => {
                Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
            }
            _ => bail!("a bootstrap token is six letters or digits, a dot, and sixteen letters or digits"),
        }
    }

    /// `ID.SECRET`.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// The token in `file`, made on first use, with its secret in the cluster.
pub async fn ensure(client: &Client, file: &Path) -> anyhow::Result<Token> {
    let token = match std::fs::read_to_string(file) {
        Ok(text) => Token::parse(&text).with_context(|| file.display().to_string())?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let token = Token::random();
            kelson_pki::write_secret(file, token.reveal().as_bytes(), true)?;
            token
        }
        Err(e) => return Err(e).with_context(|| file.display().to_string()),
    };
    let name = format!("bootstrap-token-{}", token.id);
    if client.get_opt::<Secret>("kube-system", &name).await?.is_some() {
        return Ok(token);
    }
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": name, "namespace": "kube-system"},
        "stringData": {
            "token-id": token.id, "token-secret": token.secret,
            "description": "Lets nodes join this cluster.",
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:kelson:default-node-token",
        },
    });
    client.create::<Secret>("kube-system", &secret).await.context("store the bootstrap token")?;
    Ok(token)
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
