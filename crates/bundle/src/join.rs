//! What a joining server receives: the token of the join, and the cluster's keys sealed under it.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::error::BundleError;
use crate::key::Passphrase;
use crate::manifest::Manifest;
use crate::place::Staged;
use crate::write::Writer;

/// The largest sealed keys in bytes.
pub const JOIN_BYTES_MAX: usize = 1 << 20;
/// Entries without which a server cannot join.
const NEEDED: [&str; 8] = [
    "pki/ca.crt",
    "pki/ca.key",
    "pki/front-proxy-ca.key",
    "pki/kubelet-serving-ca.key",
    "pki/sa.key",
    "etcd/pki/ca.crt",
    "etcd/pki/ca.key",
    "network.json",
];
/// Entries of what a vote receives: the CA of the etcd cluster, with which the member issues its certificates.
const NEEDED_BY_VOTE: [&str; 2] = ["etcd/pki/ca.crt", "etcd/pki/ca.key"];
/// Keys that a server of the same cluster has already.
const COMPARED: [&str; 3] = ["pki/ca.key", "pki/sa.key", "etcd/pki/ca.key"];
/// The directory of the etcd member.
const ETCD: &str = "etcd";
const PREFIX: &str = "K10";
const USER: &str = "::server:";
/// The length of the pin in hexadecimal digits.
const PIN_DIGITS: usize = 64;
/// The lengths of both parts of a bootstrap token.
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

/// A token with which a server joins, `K10PIN::server:ID.SECRET`: the SHA-256 of the public key of the cluster's CA, and a
/// bootstrap token. It is never printed by accident, and its secret is erased from memory when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerToken {
    pin: String,
    id: String,
    secret: Zeroizing<String>,
}

impl ServerToken {
    /// Creates it from a pin in the form `sha256:HEX` and both parts of a bootstrap token; `None` if one is invalid.
    pub fn new(pin: &str, id: &str, secret: &str) -> Option<Self> {
        let pin = pin.strip_prefix("sha256:")?;
        let is_hex = pin.len() == PIN_DIGITS && pin.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let is_word =
            |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
        let is_valid = is_hex && is_word(id, ID_LENGTH) && is_word(secret, SECRET_LENGTH);
        let secret = Zeroizing::new(secret.to_owned());
        is_valid.then(|| Self { pin: pin.to_owned(), id: id.to_owned(), secret })
    }

    /// Parses the form that [`ServerToken::reveal`] returns.
    pub fn parse(text: &str) -> Option<Self> {
        let (pin, token) = text.trim().strip_prefix(PREFIX)?.split_once(USER)?;
        let (id, secret) = token.split_once('.')?;
        Self::new(&format!("sha256:{pin}"), id, secret)
    }

    /// Returns the token in its printed form.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{PREFIX}{}{USER}{}.{}", self.pin, self.id, *self.secret))
    }

    /// Returns the pin of the CA in the form `sha256:HEX`.
    pub fn pin(&self) -> String {
        format!("sha256:{}", self.pin)
    }

    /// Returns the bootstrap token, `ID.SECRET`, with which the joining server authenticates.
    pub fn bootstrap(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}.{}", self.id, *self.secret))
    }

    fn passphrase(&self) -> Result<Passphrase, BundleError> {
        Passphrase::random(&self.reveal())
    }
}

/// Whether a join changed the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// The keys were written.
    Written,
    /// The directory has the keys of this cluster already.
    AlreadyThere,
}

/// Seals a cluster's keys and settings for the server with this token. `parts` are names in a data directory and their
/// content.
///
/// # Errors
/// A needed part is missing, or they are larger than [`JOIN_BYTES_MAX`].
pub fn seal(parts: &[(String, Vec<u8>)], manifest: &Manifest, token: &ServerToken) -> Result<Vec<u8>, BundleError> {
    seal_parts(parts, manifest, token, &NEEDED)
}

/// Seals the part of a cluster's keys that a vote needs, as [`seal`] does. Other parts are left out.
///
/// # Errors
/// As of [`seal`].
pub fn seal_for_vote(
    parts: &[(String, Vec<u8>)],
    manifest: &Manifest,
    token: &ServerToken,
) -> Result<Vec<u8>, BundleError> {
    let parts: Vec<_> = parts.iter().filter(|(name, _)| NEEDED_BY_VOTE.contains(&&**name)).cloned().collect();
    seal_parts(&parts, manifest, token, &NEEDED_BY_VOTE)
}

fn seal_parts(
    parts: &[(String, Vec<u8>)],
    manifest: &Manifest,
    token: &ServerToken,
    needed: &[&str],
) -> Result<Vec<u8>, BundleError> {
    if let Some(missing) = needed.iter().find(|needed| !parts.iter().any(|(name, _)| name == **needed)) {
        return Err(BundleError::Missing((*missing).to_owned()));
    }
    let mut writer = Writer::new(Vec::new(), Some(&token.passphrase()?), manifest)?;
    for (name, content) in parts {
        writer.add_bytes(name, content)?;
    }
    check_size(writer.finish()?)
}

fn check_size(sealed: Vec<u8>) -> Result<Vec<u8>, BundleError> {
    match sealed.len() {
        0..=JOIN_BYTES_MAX => Ok(sealed),
        found => Err(BundleError::Limit {
            what: "the size of the keys in bytes".to_owned(),
            found: found as u64,
            limit: JOIN_BYTES_MAX as u64,
        }),
    }
}

/// Writes sealed keys into a data directory, whose lock the caller has and in which [`crate::complete`] has run. All files are
/// there afterwards, or none; doing it again changes nothing.
///
/// # Errors
/// The keys are not valid or not for this token; [`BundleError::OtherCluster`]: the directory has objects or the keys of
/// another cluster.
pub fn install(
    sealed: &[u8],
    token: &ServerToken,
    data_dir: &Path,
    now: Timestamp,
) -> Result<JoinOutcome, BundleError> {
    if sealed.len() > JOIN_BYTES_MAX {
        check_size(sealed.to_vec())?;
    }
    let staged = Staged::extract(sealed, Some(&token.passphrase()?), data_dir, &NEEDED)?;
    if !data_dir.join("pki").exists() {
        if data_dir.join("store").exists() || data_dir.join(ETCD).exists() {
            return Err(BundleError::OtherCluster(data_dir.to_owned()));
        }
        staged.install(data_dir, now)?;
        return Ok(JoinOutcome::Written);
    }
    // The directory of a member that was removed from its cluster is moved away before the server joins again.
    let is_member_gone = !data_dir.join(ETCD).exists() && !data_dir.join("store").exists();
    let compared: &[&str] = if is_member_gone { &COMPARED[..2] } else { &COMPARED };
    for name in compared.iter().copied() {
        let read = |dir: &Path| fs::read(dir.join(name)).map(Zeroizing::new);
        let received = read(staged.path()).map_err(BundleError::io(name))?;
        match read(data_dir) {
            Ok(present) if present == received => {}
            Ok(_) => return Err(BundleError::OtherCluster(data_dir.to_owned())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(BundleError::OtherCluster(data_dir.to_owned()));
            }
            Err(e) => return Err(BundleError::io(name)(e)),
        }
    }
    if is_member_gone {
        staged.install_part(ETCD, data_dir)?;
        return Ok(JoinOutcome::Written);
    }
    Ok(JoinOutcome::AlreadyThere)
}

/// Writes the sealed keys of a vote into a data directory, whose lock the caller has. All files are there afterwards, or none;
/// doing it again changes nothing.
///
/// # Errors
/// As of [`install`]; the directory is that of a server.
pub fn install_for_vote(sealed: &[u8], token: &ServerToken, data_dir: &Path) -> Result<JoinOutcome, BundleError> {
    if sealed.len() > JOIN_BYTES_MAX {
        check_size(sealed.to_vec())?;
    }
    let other = || BundleError::OtherCluster(data_dir.to_owned());
    if data_dir.join("pki").exists() || data_dir.join("store").exists() {
        return Err(other());
    }
    let staged = Staged::extract(sealed, Some(&token.passphrase()?), data_dir, &NEEDED_BY_VOTE)?;
    if !data_dir.join(ETCD).exists() {
        staged.install_part(ETCD, data_dir)?;
        return Ok(JoinOutcome::Written);
    }
    let read = |dir: &Path| fs::read(dir.join(NEEDED_BY_VOTE[1])).map(Zeroizing::new).ok();
    match (read(data_dir), read(staged.path())) {
        (Some(present), Some(received)) if present == received => Ok(JoinOutcome::AlreadyThere),
        _ => Err(other()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::FORMAT;

    fn token(secret: &str) -> ServerToken {
        ServerToken::new(&format!("sha256:{}", "0a".repeat(32)), "abcdef", secret).unwrap()
    }

    fn parts(word: &str) -> Vec<(String, Vec<u8>)> {
        NEEDED.map(|name| (name.to_owned(), format!("{word} {name}").into_bytes())).to_vec()
    }

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            kelson_version: "0.1.0".into(),
            kubernetes_version: "v1.0.0".into(),
            created: Timestamp::UNIX_EPOCH,
            cluster_domain: "cluster.local".into(),
            store: None,
        }
    }

    #[test]
    fn a_token_is_read_as_it_is_printed() {
        let one = token("0123456789abcdef");
        assert!(ServerToken::parse(&format!("{}\n", *one.reveal())).is_some_and(|read| read == one));
        assert!(one.reveal().starts_with("K100a0a") && one.reveal().ends_with("::server:abcdef.0123456789abcdef"));
        assert_eq!(*one.bootstrap(), "abcdef.0123456789abcdef");
        let text = one.reveal();
        for bad in ["", "abcdef.0123456789abcdef", &text[1..], &text[..text.len() - 1], &text.replace("0a0a", "0A0A")] {
            assert!(ServerToken::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn keys_are_written_once_and_only_for_their_token_and_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        let (one, other) = (token("0123456789abcdef"), token("0123456789abcdeg"));
        let sealed = seal(&parts("a"), &manifest(), &one).unwrap();
        assert!(matches!(install(&sealed, &other, data, Timestamp::UNIX_EPOCH), Err(BundleError::WrongPassphrase)));
        assert_eq!(fs::read_dir(data).unwrap().count(), 0);
        let installed = |sealed: &[u8]| install(sealed, &one, data, Timestamp::UNIX_EPOCH);
        assert_eq!(installed(&sealed).unwrap(), JoinOutcome::Written);
        for (name, content) in parts("a") {
            assert_eq!(fs::read(data.join(&name)).unwrap(), content);
            assert_eq!(kelson_platform::files::open_to_others(&data.join(&name)), None, "{name}");
        }
        assert_eq!(installed(&sealed).unwrap(), JoinOutcome::AlreadyThere);
        let another = seal(&parts("b"), &manifest(), &one).unwrap();
        assert!(matches!(installed(&another), Err(BundleError::OtherCluster(_))));
        assert_eq!(fs::read(data.join("pki/ca.key")).unwrap(), b"a pki/ca.key");
        assert_eq!(fs::read_dir(data).unwrap().count(), 3, "nothing is left of the attempts");
        fs::remove_dir_all(data.join("etcd")).unwrap();
        assert!(matches!(installed(&another), Err(BundleError::OtherCluster(_))));
        assert_eq!(installed(&sealed).unwrap(), JoinOutcome::Written, "the member is gone");
        assert_eq!(fs::read(data.join("etcd/pki/ca.key")).unwrap(), b"a etcd/pki/ca.key");
        assert_eq!(installed(&sealed).unwrap(), JoinOutcome::AlreadyThere);
        assert_eq!(fs::read_dir(data).unwrap().count(), 3, "nothing is left of the attempts");
        fs::remove_dir_all(data.join("pki")).unwrap();
        assert!(matches!(installed(&sealed), Err(BundleError::OtherCluster(_))), "there are objects without keys");
    }

    #[test]
    fn a_vote_receives_the_etcd_ca_only() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        let one = token("0123456789abcdef");
        let sealed = seal_for_vote(&parts("a"), &manifest(), &one).unwrap();
        assert!(matches!(install(&sealed, &one, data, Timestamp::UNIX_EPOCH), Err(BundleError::Missing(_))));
        let other = token("0123456789abcdeg");
        assert!(matches!(install_for_vote(&sealed, &other, data), Err(BundleError::WrongPassphrase)));
        assert_eq!(fs::read_dir(data).unwrap().count(), 0);
        assert_eq!(install_for_vote(&sealed, &one, data).unwrap(), JoinOutcome::Written);
        assert_eq!(fs::read(data.join("etcd/pki/ca.key")).unwrap(), b"a etcd/pki/ca.key");
        let entries: Vec<_> = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(entries, ["etcd"], "nothing else is sent, and nothing is left of the attempts");
        assert_eq!(kelson_platform::files::open_to_others(&data.join("etcd/pki/ca.key")), None);
        assert_eq!(install_for_vote(&sealed, &one, data).unwrap(), JoinOutcome::AlreadyThere);
        let another = seal_for_vote(&parts("b"), &manifest(), &one).unwrap();
        assert!(matches!(install_for_vote(&another, &one, data), Err(BundleError::OtherCluster(_))));
        fs::create_dir(data.join("pki")).unwrap();
        assert!(matches!(install_for_vote(&sealed, &one, data), Err(BundleError::OtherCluster(_))), "a server's");
    }

    #[test]
    fn incomplete_and_large_keys_are_rejected() {
        let one = token("0123456789abcdef");
        assert!(matches!(seal(&parts("a")[1..], &manifest(), &one), Err(BundleError::Missing(_))));
        let mut large = parts("a");
        large.push(("encryption-config.yaml".to_owned(), vec![0; JOIN_BYTES_MAX]));
        assert!(matches!(seal(&large, &manifest(), &one), Err(BundleError::Limit { .. })));
    }
}
