//! The CA of an etcd cluster, which signs nothing else, and the certificates of one member: for peers, for its clients, and the
//! one that the API server shows it. etcd reads the files for each handshake, so a renewal needs no restart.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::Path;

use jiff::Timestamp;
use kelson_pki::{Authority, CertInfo, Key, LEAF_LIFETIME, LeafSpec, PkiError, Purpose, Renewal, San, write_secret};
use kelson_platform::files;

use crate::error::MemberError;
use crate::layout::{CA, Layout};
use crate::options::{loopback_names, peer_names};

/// The common name of the CA.
const CA_NAME: &str = "etcd-ca";

/// The certificates of a member.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    layout: Layout,
    name: String,
    peer_url: String,
}

impl Certificates {
    /// Describes the certificates of the member with this name and peer URL.
    pub fn new(layout: &Layout, name: &str, peer_url: &str) -> Self {
        Self { layout: layout.clone(), name: name.to_owned(), peer_url: peer_url.to_owned() }
    }

    /// Writes the certificates that are missing, due for renewal, or for other names. Creates the CA if `may_create` is true.
    /// Returns the names of those that were written. Blocks.
    ///
    /// # Errors
    /// The CA is missing or expired; files cannot be read or written.
    pub fn ensure(&self, may_create: bool, now: Timestamp) -> Result<Vec<&'static str>, MemberError> {
        let dir = self.layout.pki();
        let io = |source| MemberError::File { path: dir.clone(), source };
        files::ensure_private_dir(self.layout.dir()).map_err(io)?;
        files::ensure_private_dir(&dir).map_err(io)?;
        let ca_file = dir.join(format!("{CA}.crt"));
        if !may_create && !ca_file.exists() {
            let why =
                "the CA of the etcd cluster is missing; copy it from another server or restore it from a snapshot";
            return Err(MemberError::Layout { path: ca_file, why: why.to_owned() });
        }
        let ca = Authority::load_or_create(&dir, CA, CA_NAME, now)?;
        let mut written = Vec::new();
        let (peer, loopback) = (peer_names(&self.peer_url), loopback_names());
        // etcd's gateway for JSON connects to its server port as a client and shows the server's certificate.
        let all = [
            ("peer", Purpose::Both, &peer[..]),
            ("server", Purpose::Both, &loopback),
            ("client", Purpose::Client, &[]),
        ];
        for (file, purpose, sans) in all {
            if ensure_one(
                &ca,
                &dir,
                file,
                &LeafSpec { common_name: &self.name, organizations: &[], sans, purpose, lifetime: LEAF_LIFETIME },
                now,
            )? {
                written.push(file);
            }
        }
        Ok(written)
    }
}

/// Writes one certificate if it must be. The key stays the same, so that certificate and key on disk always match.
fn ensure_one(ca: &Authority, dir: &Path, file: &str, spec: &LeafSpec<'_>, now: Timestamp) -> Result<bool, PkiError> {
    let (cert, key) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    let present = std::fs::read_to_string(&cert).ok().filter(|_| key.exists());
    if present.is_some_and(|pem| ca.has_issued(&pem) && is_current(&pem, spec, now)) {
        return Ok(false);
    }
    let issued = ca.issue_for(spec, Key::load_or_generate(&key)?, now)?;
    write_secret(&cert, issued.cert_pem.as_bytes(), true)?;
    Ok(true)
}

fn is_current(pem: &str, spec: &LeafSpec<'_>, now: Timestamp) -> bool {
    let Ok(info) = CertInfo::from_pem(pem) else { return false };
    let sorted = |sans: &[San]| {
        let mut sans = sans.to_vec();
        sans.sort();
        sans
    };
    let is_same = info.common_name == spec.common_name && sorted(&info.sans) == sorted(spec.sans);
    is_same && !Renewal::plan(info.not_before, info.not_after, 0.0).is_due(now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn certificates_are_written_when_they_are_due_or_for_other_names() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let now: Timestamp = "2026-11-28T00:00:00Z".parse().unwrap();
        let of = |url: &str| Certificates::new(&layout, "a", url);
        let missing = of("https://10.0.0.1:2380").ensure(false, now).unwrap_err().to_string();
        assert!(missing.contains("ca.crt") && missing.contains("missing"), "{missing}");
        let all = ["peer", "server", "client"];
        assert_eq!(of("https://10.0.0.1:2380").ensure(true, now).unwrap(), all);
        let key = std::fs::read(layout.pki_file("peer.key")).unwrap();
        assert!(of("https://10.0.0.1:2380").ensure(false, now).unwrap().is_empty());
        assert_eq!(of("https://10.0.0.2:2380").ensure(false, now).unwrap(), ["peer"], "another address");
        let late = now + Duration::from_secs(300 * 24 * 3600);
        assert_eq!(of("https://10.0.0.2:2380").ensure(false, late).unwrap(), all);
        assert_eq!(std::fs::read(layout.pki_file("peer.key")).unwrap(), key, "keys stay");
        for name in all {
            let files = layout.pki_file(&format!("{name}.key"));
            assert_eq!(files::open_to_others(&files), None);
        }
        assert!(layout.client_tls().config().is_ok() && layout.peer_tls().config().is_ok());
    }
}
