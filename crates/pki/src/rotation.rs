//! Rotation of CAs, with a time in which old and new ones are trusted.
//!
//! [`begin`] creates the new ones: from then on they sign, parties that only know the old ones also accept their
//! certificates ([`Authority::successor`]), and the old ones stay trusted. When everything has been renewed, [`finish`]
//! drops the old ones. Their keys are deleted in the first step, so nothing can be issued by them any more.
//!
//! On disk a CA `NAME` is `NAME.crt` and `NAME.key`; in between there are `NAME-cross.crt`, by its predecessor, and
//! `NAME-previous.crt`, that predecessor. Each step is completed or resumed: `NAME-next.*` are the files that will
//! become the CA, and the process that finds them first renames them. A lock prevents two processes from doing so at
//! once.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::file::{at, read, write_secret};
use crate::{Authority, Key, PkiError};

/// The CAs of a cluster, by the names of their files.
pub const AUTHORITIES: [&str; 3] = ["ca", "front-proxy-ca", "kubelet-serving-ca"];

/// Holds the time before which no certificate may have been made (`kelson certificate renew`).
const RENEW: &str = "renew";
const LOCK: &str = "rotation.lock";

fn path(dir: &Path, name: &str, what: &str) -> PathBuf {
    dir.join(format!("{name}{what}"))
}

/// Keeps others from changing the directory until it is dropped.
pub(crate) fn lock(dir: &Path) -> Result<File, PkiError> {
    let place = dir.join(LOCK);
    let open = File::options().write(true).create(true).truncate(false).open(&place);
    let file = open.map_err(|e| at(&place, e))?;
    file.lock().map_err(|e| at(&place, e))?;
    Ok(file)
}

/// Creates a successor of each CA and puts it in place of the old one, which stays trusted.
///
/// # Errors
/// The last rotation is not finished, or files cannot be read or written. The next call, or the server's next start,
/// then continues.
pub fn begin(dir: &Path, now: Timestamp) -> Result<(), PkiError> {
    let _lock = lock(dir)?;
    complete(dir)?;
    let mut waiting = Vec::new();
    for name in AUTHORITIES {
        if previous(dir, name)?.is_none() {
            waiting.push((name, load(dir, name)?));
        }
    }
    if waiting.is_empty() {
        return Err(PkiError::malformed("rotation", "a rotation is in progress; finish it before starting another"));
    }
    for (name, old) in &waiting {
        let next = old.successor(now)?;
        write_secret(&path(dir, name, "-next.key"), next.key().to_pem().as_bytes(), true)?;
        write_secret(&path(dir, name, "-next-cross.crt"), next.cross_pem().as_bytes(), true)?;
        // The last one: where it is, all of it is.
        write_secret(&path(dir, name, "-next.crt"), next.cert_pem().as_bytes(), true)?;
    }
    complete(dir)
}

/// Puts in place what [`begin`] left unfinished, if anything. The lock is held.
pub(crate) fn complete(dir: &Path) -> Result<(), PkiError> {
    for name in AUTHORITIES {
        let next = path(dir, name, "-next.crt");
        let (key, cross) = (path(dir, name, "-next.key"), path(dir, name, "-next-cross.crt"));
        if let Some(cert) = read(&next)? {
            let old = read(&path(dir, name, ".crt"))?.filter(|old| *old != cert);
            if let Some(old) = old {
                write_secret(&path(dir, name, "-previous.crt"), old.as_bytes(), true)?;
            }
            for (from, to) in [(&cross, "-cross.crt"), (&key, ".key")] {
                let text = read(from)?.ok_or_else(|| PkiError::malformed(from.display().to_string(), "missing"))?;
                write_secret(&path(dir, name, to), text.as_bytes(), true)?;
            }
            write_secret(&path(dir, name, ".crt"), cert.as_bytes(), true)?;
        }
        // The certificate goes first: without it the others mean nothing.
        for file in [next, key, cross] {
            remove(&file)?;
        }
    }
    Ok(())
}

/// Drops the old CAs: certificates issued by them are not valid any more. Returns whether there were any.
///
/// # Errors
/// Files cannot be removed.
pub fn finish(dir: &Path) -> Result<bool, PkiError> {
    let _lock = lock(dir)?;
    complete(dir)?;
    let mut found = false;
    for name in AUTHORITIES {
        found |= previous(dir, name)?.is_some();
        remove(&path(dir, name, "-cross.crt"))?;
        remove(&path(dir, name, "-previous.crt"))?;
    }
    Ok(found)
}

/// Returns the CA that `name` has replaced and that is still trusted, PEM.
///
/// # Errors
/// Its file cannot be read.
pub fn previous(dir: &Path, name: &str) -> Result<Option<String>, PkiError> {
    read(&path(dir, name, "-previous.crt"))
}

/// The predecessor's certificate of this CA's key. Empty if there is none.
pub(crate) fn cross(dir: &Path, name: &str) -> Result<String, PkiError> {
    Ok(read(&path(dir, name, "-cross.crt"))?.unwrap_or_default())
}

/// Requests the renewal of all certificates issued before `now`. `dir` is that of a server's CAs or of a node's
/// certificates.
///
/// # Errors
/// The file cannot be written.
pub fn ask_to_renew(dir: &Path, now: Timestamp) -> Result<(), PkiError> {
    write_secret(&dir.join(RENEW), now.to_string().as_bytes(), true)
}

/// Returns the time before which no certificate may have been issued; long ago if no renewal was requested.
///
/// # Errors
/// The file cannot be read or contains no time.
pub fn renew_since(dir: &Path) -> Result<Timestamp, PkiError> {
    let Some(text) = read(&dir.join(RENEW))? else { return Ok(Timestamp::UNIX_EPOCH) };
    text.trim().parse().map_err(|e| PkiError::malformed(dir.join(RENEW).display().to_string(), e))
}

fn load(dir: &Path, name: &str) -> Result<Authority, PkiError> {
    let (crt, key) = (path(dir, name, ".crt"), path(dir, name, ".key"));
    let missing = |file: &Path| PkiError::malformed(file.display().to_string(), "missing");
    let cert = read(&crt)?.ok_or_else(|| missing(&crt))?;
    let key = Key::from_pem(&read(&key)?.ok_or_else(|| missing(&key))?)?;
    Authority::from_parts(&cert, key).map_err(|e| PkiError::malformed(crt.display().to_string(), e))
}

fn remove(file: &Path) -> Result<(), PkiError> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at(file, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ClientChains, ClusterPki, Component, PkiOptions, ServerChains, certificates_from_pem};

    fn now() -> Timestamp {
        "2026-05-06T07:08:09Z".parse().unwrap()
    }

    fn opened() -> (tempfile::TempDir, ClusterPki) {
        let dir = tempfile::tempdir().unwrap();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().to_owned()), now()).unwrap();
        (dir, pki)
    }

    fn reopened(dir: &Path) -> ClusterPki {
        ClusterPki::open(&PkiOptions::new(dir.to_owned()), now()).unwrap()
    }

    /// Reports whether parties that trust `bundle` accept a client, and a server, with a certificate issued by `pki`.
    fn believed(bundle: &str, pki: &ClusterPki) -> (bool, bool) {
        let at = now() + Duration::from_secs(60);
        let client = pki.issue_component(Component::Admin, now()).unwrap();
        let chain = certificates_from_pem(&client.cert_pem).unwrap();
        let by_server = ClientChains::new(&[bundle]).unwrap().verify(&chain, at).is_ok();
        let sans = ClusterPki::server_sans("cluster.local", "10.43.0.1".parse().unwrap(), &[]);
        let server = certificates_from_pem(&pki.issue_server(&sans, now()).unwrap().cert_pem).unwrap();
        (by_server, ServerChains::new(bundle).unwrap().verify(&server, "localhost", at).is_ok())
    }

    #[test]
    fn old_and_new_are_believed_by_all_until_the_old_is_dropped() {
        let (dir, old) = opened();
        begin(dir.path(), now()).unwrap();
        let new = reopened(dir.path());
        assert_ne!(old.ca.cert(), new.ca.cert());
        assert_eq!(old.ca.info().common_name, new.ca.info().common_name);
        // Parties that know only the old CA, or both, accept certificates of either.
        for bundle in [old.ca_bundle(), new.ca_bundle()] {
            assert_eq!(believed(&bundle, &old), (true, true));
            assert_eq!(believed(&bundle, &new), (true, true));
        }
        assert_eq!(believed(new.ca.cert_pem(), &new), (true, true), "the new one needs no help");
        assert!(new.ca.has_issued(&new.issue_component(Component::Admin, now()).unwrap().cert_pem));
        assert!(!new.ca.has_issued(&old.issue_component(Component::Admin, now()).unwrap().cert_pem));
        assert!(begin(dir.path(), now()).unwrap_err().to_string().contains("is in progress"));

        assert!(finish(dir.path()).unwrap());
        let last = reopened(dir.path());
        assert_eq!(last.ca.cert(), new.ca.cert());
        assert_eq!(certificates_from_pem(&last.ca_bundle()).unwrap().len(), 1);
        assert_eq!(believed(&last.ca_bundle(), &last), (true, true));
        assert_eq!(believed(&last.ca_bundle(), &old), (false, false));
        assert_eq!(believed(&old.ca_bundle(), &last), (false, false));
        assert!(!finish(dir.path()).unwrap(), "there is nothing left to drop");
        assert!(begin(dir.path(), now()).is_ok());
    }

    #[test]
    fn what_was_cut_short_at_any_write_is_taken_up_again() {
        let (whole, _) = opened();
        let before: Vec<_> = files(whole.path());
        begin(whole.path(), now()).unwrap();
        // All states between two steps: the next files are written, and a first part of the CAs is in place.
        let (done, steps) = (files(whole.path()), ["-previous.crt", "-cross.crt", ".key", ".crt"]);
        let text = |all: &[(String, String)], name: &str| all.iter().find(|(n, _)| n == name).unwrap().1.clone();
        for authority in AUTHORITIES {
            for cut in 0..=steps.len() {
                let dir = tempfile::tempdir().unwrap();
                before.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
                for (next, of) in [("-next.key", ".key"), ("-next-cross.crt", "-cross.crt"), ("-next.crt", ".crt")] {
                    fs::write(path(dir.path(), authority, next), text(&done, &format!("{authority}{of}"))).unwrap();
                }
                for step in &steps[..cut] {
                    let name = format!("{authority}{step}");
                    fs::write(dir.path().join(&name), text(&done, &name)).unwrap();
                }
                drop(reopened(dir.path()));
                let there = files(dir.path());
                for step in steps {
                    let name = format!("{authority}{step}");
                    assert_eq!(text(&there, &name), text(&done, &name), "{name} after {cut} steps");
                }
                assert!(!there.iter().any(|(name, _)| name.contains("-next")), "{authority} {cut}");
            }
        }
        // Cut short before the certificate was written: the files there have no meaning.
        let (dir, old) = opened();
        fs::write(path(dir.path(), "ca", "-next.key"), "x").unwrap();
        assert_eq!(reopened(dir.path()).ca.cert(), old.ca.cert());
        assert!(!path(dir.path(), "ca", "-next.key").exists());
    }

    fn files(dir: &Path) -> Vec<(String, String)> {
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap());
        entries.map(|e| (e.file_name().into_string().unwrap(), fs::read_to_string(e.path()).unwrap())).collect()
    }

    #[test]
    fn who_asks_for_renewal_is_heard() {
        let (dir, pki) = opened();
        let (admin, url) = (dir.path().join("admin"), "https://127.0.0.1:6443");
        assert!(pki.ensure_admin_kubeconfig(&admin, url, now()).unwrap());
        assert_eq!(renew_since(dir.path()).unwrap(), Timestamp::UNIX_EPOCH);
        let later = now() + Duration::from_secs(3600);
        ask_to_renew(dir.path(), later).unwrap();
        let pki = reopened(dir.path());
        assert_eq!(pki.renew_since, later);
        assert!(pki.ensure_admin_kubeconfig(&admin, url, later).unwrap(), "made before");
        assert!(!pki.ensure_admin_kubeconfig(&admin, url, later).unwrap(), "made since");
        fs::write(dir.path().join(RENEW), "soon").unwrap();
        assert!(renew_since(dir.path()).is_err());
    }

    #[test]
    fn authorities_that_have_ended_are_replaced_too() {
        let dir = tempfile::tempdir().unwrap();
        let start: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let options = crate::PkiOptions::new(dir.path().to_owned());
        let old = crate::ClusterPki::open(&options, start).unwrap();
        let late = old.ca.info().not_after + std::time::Duration::from_secs(3600);
        assert!(matches!(old.issue_server(&[], late), Err(PkiError::SignerExpired(_))));
        begin(dir.path(), late).unwrap();
        let next = crate::ClusterPki::open(&options, late).unwrap();
        assert!(next.issue_server(&[], late).is_ok() && next.ca.cross_pem().is_empty());
    }
}
