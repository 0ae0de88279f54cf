//! Whether one program may replace another on a machine. Pure.
use thiserror::Error;

use crate::about::About;

/// Why a program must not replace the installed one.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// It is for another system or architecture.
    #[error("the new binary is for {new}, this machine has {installed}")]
    Platform {
        /// The new program's.
        new: String,
        /// The installed program's.
        installed: String,
    },
    /// It cannot read the data.
    #[error(
        "downgrade: the data is in format {data}, and Kelson {version} reads formats {oldest} to {newest}. It would not start. To go back to it, restore a snapshot that it has made (kelson snapshot restore)"
    )]
    Format {
        /// The format of the data.
        data: u64,
        /// The new program's version.
        version: String,
        /// The oldest format that it reads.
        oldest: u64,
        /// The newest format that it reads.
        newest: u64,
    },
    /// Its Kubernetes is older.
    #[error(
        "downgrade: Kubernetes {new} does not know all resources and fields of {installed}. It would not serve them, and would drop them at the next update of an object. To go back to it, restore a snapshot that it has made (kelson snapshot restore)"
    )]
    Minor {
        /// The new program's version of Kubernetes.
        new: String,
        /// The installed one's.
        installed: String,
    },
    /// Its Kubernetes is more than one minor version newer.
    #[error("Kubernetes {new} is more than one minor version after {installed}; upgrade to 1.{next} first")]
    Skipped {
        /// The new program's version of Kubernetes.
        new: String,
        /// The installed one's.
        installed: String,
        /// The minor version in between.
        next: u16,
    },
    /// A node must not be newer than its API server.
    #[error("the API server is Kubernetes 1.{server}, and a node must not be newer; upgrade the servers first")]
    NodeFirst {
        /// The API server's minor version.
        server: u16,
    },
    /// There is no way back.
    #[error(
        "Kelson {version} rewrites the data in format {format}, which the installed version cannot read: there is no way back but a snapshot. Save one (kelson snapshot save), and repeat with --one-way"
    )]
    OneWay {
        /// The new program's version.
        version: String,
        /// The format that it writes.
        format: u64,
    },
}

/// The facts of a machine besides its programs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// The API server's minor version, where the machine is a node of another server.
    pub server_minor: Option<u16>,
    /// The user accepts that the upgrade cannot be reverted (`--one-way`).
    pub one_way: bool,
}

/// Whether `new` may replace `installed`.
///
/// # Errors
/// The first reason against it.
pub fn compare(installed: &About, new: &About, about: Circumstances) -> Result<(), Refusal> {
    if new.platform != installed.platform {
        let (new, installed) = (new.platform.clone(), installed.platform.clone());
        return Err(Refusal::Platform { new, installed });
    }
    let data = installed.store_format.written;
    let (oldest, newest) = (new.store_format.oldest_read, new.store_format.written);
    let version = || new.kelson_version.clone();
    if !(oldest..=newest).contains(&data) {
        return Err(Refusal::Format { data, version: version(), oldest, newest });
    }
    let kubernetes = || (new.kubernetes_version.clone(), installed.kubernetes_version.clone());
    if new.minor < installed.minor {
        let (new, installed) = kubernetes();
        return Err(Refusal::Minor { new, installed });
    }
    let next = installed.minor.saturating_add(1);
    if new.minor > next {
        let (new, installed) = kubernetes();
        return Err(Refusal::Skipped { new, installed, next });
    }
    if let Some(server) = about.server_minor.filter(|server| new.minor > *server) {
        return Err(Refusal::NodeFirst { server });
    }
    if newest > data && !about.one_way {
        return Err(Refusal::OneWay { version: version(), format: newest });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::about::StoreFormats;

    /// A program of Kubernetes 1.`minor` that reads formats from `oldest_read` on and writes `written`.
    fn program(minor: u16, oldest_read: u64, written: u64) -> About {
        About {
            minor,
            kubernetes_version: format!("v1.{minor}.0+kelson.0.1.0"),
            store_format: StoreFormats { written, oldest_read },
            ..About::this()
        }
    }

    #[test]
    fn what_would_lose_something_is_refused_with_its_reason() {
        let installed = program(36, 1, 2);
        let verdict = |new: &About, about| compare(&installed, new, about).map_err(|refusal| refusal.to_string());
        let plain = Circumstances::default();
        let foreign = About { platform: "plan9/mips".to_owned(), ..program(36, 1, 2) };
        let rows = [
            (program(36, 1, 2), plain, None),
            (program(37, 2, 2), plain, None),
            (About { kelson_version: "0.0.9".to_owned(), ..program(36, 1, 2) }, plain, None),
            (foreign, plain, Some("is for plan9/mips")),
            (program(36, 1, 1), plain, Some("data is in format 2, and Kelson 0.1.0 reads formats 1 to 1")),
            (program(37, 3, 3), plain, Some("reads formats 3 to 3")),
            (program(35, 1, 2), plain, Some("downgrade: Kubernetes v1.35.0+kelson.0.1.0")),
            (program(38, 1, 2), plain, Some("upgrade to 1.37 first")),
            (program(37, 2, 2), Circumstances { server_minor: Some(36), ..plain }, Some("upgrade the servers first")),
            (program(37, 2, 2), Circumstances { server_minor: Some(37), ..plain }, None),
            (program(37, 2, 3), plain, Some("Save one (kelson snapshot save), and repeat with --one-way")),
            (program(37, 2, 3), Circumstances { one_way: true, ..plain }, None),
            (program(35, 1, 2), Circumstances { one_way: true, ..plain }, Some("downgrade")),
        ];
        for (new, about, want) in rows {
            match (verdict(&new, about), want) {
                (Ok(()), None) => {}
                (Err(text), Some(want)) => assert!(text.contains(want), "{want}: {text}"),
                (verdict, want) => panic!("{new:?} {about:?}: {verdict:?}, not {want:?}"),
            }
        }
    }
}
