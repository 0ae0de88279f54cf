//! Where the files of a member are: `DIR/etcd` with etcd's own directory, certificates and settings.

use std::path::{Path, PathBuf};

use kelson_etcd::endpoint::ClientTlsFiles;

/// The directory of a member below a server's data directory.
pub const ETCD_DIR: &str = "etcd";
/// The file name of the CA of an etcd cluster, without `.crt` and `.key`, in [`Layout::pki`].
pub const CA: &str = "ca";

/// The files of the member of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    dir: PathBuf,
}

impl Layout {
    /// Creates the layout for a server's data directory, without a look at the disk.
    pub fn new(data_dir: &Path) -> Self {
        Self { dir: data_dir.join(ETCD_DIR) }
    }

    /// Returns the member's directory, `DIR/etcd`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns etcd's `--data-dir`.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Returns the directory of the CA and the certificates.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// Returns the file of [`crate::Settings`].
    pub fn settings(&self) -> PathBuf {
        self.dir.join("member.json")
    }

    /// Returns a certificate or key, such as `client.crt`.
    pub fn pki_file(&self, name: &str) -> PathBuf {
        self.pki().join(name)
    }

    /// Returns the files with which a client reaches the member.
    pub fn client_tls(&self) -> ClientTlsFiles {
        self.tls("client")
    }

    /// Returns the files with which a member reaches the others.
    pub(crate) fn peer_tls(&self) -> ClientTlsFiles {
        self.tls("peer")
    }

    fn tls(&self, name: &str) -> ClientTlsFiles {
        ClientTlsFiles {
            ca: Some(self.pki_file("ca.crt")),
            cert: Some(self.pki_file(&format!("{name}.crt"))),
            key: Some(self.pki_file(&format!("{name}.key"))),
        }
    }
}
