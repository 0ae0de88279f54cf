//! Certificate and key in one file `NAME-TIME.pem`, behind the symlink `NAME-current.pem` (upstream: client-go
//! `util/certificate/certificate_store.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kelson_pki::{CertInfo, Issued, Key, write_secret};
use kelson_platform::files::ensure_private_dir;
use kelson_tasks::FILES;

use crate::CertError;

/// The number of earlier certificates to keep.
const KEPT: usize = 3;

/// One pair's files.
#[derive(Clone, Debug)]
pub struct Store {
    name: String,
    dir: PathBuf,
}

impl Store {
    /// Files of `name` (`kubelet-client`, `kubelet-server`) in `dir`.
    pub fn new(name: &str, dir: &Path) -> Self {
        Self { name: name.to_owned(), dir: dir.to_owned() }
    }

    /// The link to the pair that is in force.
    pub fn current_path(&self) -> PathBuf {
        self.dir.join(format!("{}-current.pem", self.name))
    }

    /// The current pair, if there is one.
    pub fn current(&self) -> Result<Option<Issued>, CertError> {
        let path = self.current_path();
        let text = match std::fs::read_to_string(&path) {
            Ok(t) => t,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CertError::File { what: path.display().to_string(), source }),
        };
        let key = Key::from_pem(&blocks(&text, |kind| kind.ends_with("PRIVATE KEY")))?;
        Ok(Some(Issued { cert_pem: blocks(&text, |kind| kind == "CERTIFICATE"), key }))
    }

    /// Stores a pair and makes it the current one.
    pub async fn update(&self, issued: &Issued, now: Timestamp) -> Result<(), CertError> {
        let (store, issued) = (self.clone(), issued.clone());
        FILES.run(move || store.write(&issued, now)).await.map_err(|e| self.lane(e))?
    }

    fn write(&self, issued: &Issued, now: Timestamp) -> Result<(), CertError> {
        let stamp = now.strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let file = self.dir.join(format!("{}-{stamp}.pem", self.name));
        let text = format!("{}{}", issued.cert_pem, issued.key.to_pem());
        write_secret(&file, text.as_bytes(), true)?;
        let link = self.current_path();
        let tmp = self.dir.join(format!("{}-updated.pem", self.name));
        let fail = |what: &Path| {
            let what = what.display().to_string();
            move |source| CertError::File { what, source }
        };
        let _ = std::fs::remove_file(&tmp);
        kelson_platform::files::link(&file, &tmp).map_err(fail(&tmp))?;
        std::fs::rename(&tmp, &link).map_err(fail(&link))?;
        self.tidy(&file);
        Ok(())
    }

    /// Removes all but the newest files, by name, and never the one in force: a clock that was set back names it older than
    /// those it replaces.
    fn tidy(&self, in_force: &Path) {
        let prefix = format!("{}-", self.name);
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
        let dated =
            |name: &str| name.strip_prefix(&prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        files.retain(|p| p != in_force && p.file_name().is_some_and(|n| dated(&n.to_string_lossy())));
        files.sort();
        for old in files.iter().rev().skip(KEPT - 1) {
            let _ = std::fs::remove_file(old);
        }
    }

    /// Returns the path of a pending request's key.
    pub fn pending_key(&self) -> PathBuf {
        self.dir.join(format!("{}.key.tmp", self.name))
    }

    /// The key to ask with: that of an earlier attempt which was cut short, else a new one. It stays until
    /// [`Store::forget_key`], so that no restart asks with another.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub async fn key_to_ask_with(&self) -> Result<Key, CertError> {
        let (dir, file) = (self.dir.clone(), self.pending_key());
        let made = FILES.run(move || {
            ensure_private_dir(&dir).map_err(|source| CertError::File { what: dir.display().to_string(), source })?;
            Ok(Key::load_or_generate(&file)?)
        });
        made.await.map_err(|e| self.lane(e))?
    }

    /// Removes the key of a request that is over.
    pub async fn forget_key(&self) {
        let file = self.pending_key();
        let gone = FILES.run(move || match std::fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::info!(path = %file.display(), error = %e, "removing the temporary key failed");
            }
            _ => {}
        });
        // The next attempt finds it again, which is harmless.
        let _ = gone.await;
    }

    /// As [`Store::current`], off the runtime's threads.
    ///
    /// # Errors
    /// When there is something that cannot be read.
    pub async fn read(&self) -> Result<Option<Issued>, CertError> {
        let store = self.clone();
        FILES.run(move || store.current()).await.map_err(|e| self.lane(e))?
    }

    fn lane(&self, e: kelson_tasks::LaneError) -> CertError {
        CertError::File { what: self.dir.display().to_string(), source: std::io::Error::other(e) }
    }
}

/// Returns the properties of a certificate that decide about its renewal.
pub fn info(issued: &Issued) -> Result<CertInfo, CertError> {
    Ok(CertInfo::from_pem(&issued.cert_pem)?)
}

/// The PEM blocks of some kinds.
pub fn blocks(text: &str, wanted: impl Fn(&str) -> bool) -> String {
    let mut out = String::new();
    let mut inside = false;
    for line in text.lines() {
        let kind = line.trim().strip_prefix("-----BEGIN ").and_then(|l| l.strip_suffix("-----"));
        inside |= kind.is_some_and(&wanted);
        if inside {
            out.push_str(line);
            out.push('\n');
            inside = !line.starts_with("-----END ");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_pki::{Authority, LeafSpec, Purpose};

    #[test]
    fn the_link_follows_the_newest() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::new("kubelet-client", dir.path());
        assert!(store.current().expect("read").is_none());
        let t0: Timestamp = "2026-01-02T03:04:05Z".parse().expect("time");
        let ca = Authority::create("ca", t0).expect("ca");
        let issue = |cn: &str| {
            let day = std::time::Duration::from_secs(86400);
            let spec =
                LeafSpec { common_name: cn, organizations: &[], sans: &[], purpose: Purpose::Client, lifetime: day };
            ca.issue(&spec, t0).expect("leaf")
        };
        store.write(&issue("a"), t0).expect("store");
        store.write(&issue("b"), t0 + std::time::Duration::from_secs(1)).expect("store");
        let current = store.current().expect("read").expect("there");
        assert_eq!(info(&current).expect("info").common_name, "b");
        let link = std::fs::read_link(store.current_path()).expect("link");
        assert!(link.ends_with("kubelet-client-2026-01-02-03-04-06.pem"), "{}", link.display());
        let hour = std::time::Duration::from_secs(3600);
        for later in 1..5 {
            store.write(&issue("later"), t0 + later * hour).expect("store");
        }
        // The clock is set back: the newest certificate has the oldest name.
        store.write(&issue("newest"), t0 - hour).expect("store");
        let current = store.current().expect("read").expect("the file in force is there");
        assert_eq!(info(&current).expect("info").common_name, "newest");
        let left = std::fs::read_dir(dir.path()).expect("dir").count();
        assert_eq!(left, KEPT + 1, "the files that are kept, and the link");
    }
}
