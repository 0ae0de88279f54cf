//! The etcd binary: `--etcd-binary`, `DIR/bin/etcd`, PATH.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kelson_tasks::FILES;

use crate::error::MemberError;
use crate::options::MemberOptions;
use crate::system::is_executable;
use crate::version::Version;

/// The name of the program.
const ETCD: &str = "etcd";
/// The time that `etcd --version` may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// An etcd on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub path: PathBuf,
    pub version: Version,
}

impl Program {
    /// Finds the program and reads its version.
    ///
    /// # Errors
    /// There is none, or it is not a release that is supported.
    pub async fn find(options: &MemberOptions) -> Result<Self, MemberError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = candidates(options.binary.as_deref(), &options.bin_dir(), std::env::split_paths(&path));
        let found = FILES.run(move || first_executable(&places)).await??;
        let version = version_of(&found).await?;
        version.check().map_err(|why| MemberError::Version { path: found.clone(), why })?;
        Ok(Self { path: found, version })
    }

    /// Checks that this release may follow the one that the cluster runs.
    ///
    /// # Errors
    /// It skips a minor version or is older.
    pub fn check_step(&self, cluster_minor: Option<u32>) -> Result<(), MemberError> {
        let Some(cluster) = cluster_minor else { return Ok(()) };
        self.version.check_step(cluster).map_err(|why| MemberError::Version { path: self.path.clone(), why })
    }
}

/// Returns the paths to look at, in order. A path that the user gave is the only one.
fn candidates(given: Option<&Path>, bin_dir: &Path, path: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    match given {
        Some(given) => vec![given.to_owned()],
        None => std::iter::once(bin_dir.to_owned()).chain(path).map(|dir| dir.join(ETCD)).collect(),
    }
}

fn first_executable(places: &[PathBuf]) -> Result<PathBuf, MemberError> {
    let looked = || places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
    places.iter().find(|place| is_executable(place)).cloned().ok_or_else(|| MemberError::NotFound { looked: looked() })
}

async fn version_of(path: &Path) -> Result<Version, MemberError> {
    let not_etcd = |why: String| MemberError::NotEtcd { path: path.to_owned(), why };
    let mut command = tokio::process::Command::new(path);
    let output = command.arg("--version").kill_on_drop(true).output();
    let output = tokio::time::timeout(ANSWER_MAX, output).await;
    let output = output.map_err(|_| not_etcd("it does not answer --version".to_owned()))?;
    let output = output.map_err(|e| not_etcd(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Version::of_output(&text)
        .ok_or_else(|| not_etcd(format!("--version answers {:?}", text.lines().next().unwrap_or(""))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_path_is_the_only_one() {
        let path = || [PathBuf::from("/usr/bin"), PathBuf::from("/bin")].into_iter();
        let found = candidates(None, Path::new("/d/bin"), path());
        assert_eq!(found, ["/d/bin/etcd", "/usr/bin/etcd", "/bin/etcd"].map(PathBuf::from));
        assert_eq!(candidates(Some(Path::new("/x")), Path::new("/d/bin"), path()), [PathBuf::from("/x")]);
        let missing = first_executable(&[PathBuf::from("/none/etcd")]).unwrap_err().to_string();
        assert!(missing.contains("/none/etcd") && missing.contains("--etcd-binary"), "{missing}");
    }
}
