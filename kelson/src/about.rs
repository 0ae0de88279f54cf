//! `kelson version`: which Kelson and which Kubernetes this program is, and which data it reads and writes. As JSON it is what
//! `kelson upgrade` asks two programs before one replaces the other.
use clap::Args;
use kelson_meta::version;
use serde::{Deserialize, Serialize};

/// Flags of `kelson version`.
#[derive(Args, Debug)]
pub struct VersionArgs {
    /// Output format: `text` or `json`.
    #[arg(long, short, value_name = "FORM", default_value = "text", value_parser = ["text", "json"])]
    pub output: String,
}

/// A program, as it describes itself. Later versions add fields and keep these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Kelson's own version.
    pub kelson_version: String,
    /// The commit that it was built from.
    pub git_commit: String,
    /// `gitVersion` of `/version`.
    pub kubernetes_version: String,
    /// The minor version of Kubernetes.
    pub minor: u16,
    /// Operating system and architecture, in Go's words.
    pub platform: String,
    /// The formats of a server's store.
    pub store_format: StoreFormats,
}

/// The formats of a store that a program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreFormats {
    /// The format that it writes, and the newest that it reads.
    pub written: u64,
    /// The oldest format that it reads.
    pub oldest_read: u64,
}

impl About {
    /// Describes the running program.
    pub fn this() -> Self {
        Self {
            kelson_version: version::KELSON_VERSION.to_owned(),
            git_commit: version::build().commit.to_owned(),
            kubernetes_version: version::GIT_VERSION.to_owned(),
            minor: version::MINOR_NUMBER,
            platform: version::platform(),
            store_format: StoreFormats {
                written: kelson_store::FORMAT_WRITTEN,
                oldest_read: kelson_store::FORMAT_OLDEST_READ,
            },
        }
    }
}

/// Prints it.
///
/// # Errors
/// None that is known.
pub fn run(args: &VersionArgs) -> anyhow::Result<()> {
    let about = About::this();
    match args.output.as_str() {
        "json" => outln!("{}", serde_json::to_string_pretty(&about)?),
        _ => {
            outln!("kelson {} ({})", about.kelson_version, about.git_commit);
            outln!("Kubernetes {} {}", about.kubernetes_version, about.platform);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_the_format_that_it_writes() {
        let StoreFormats { written, oldest_read } = About::this().store_format;
        assert!(oldest_read <= written, "{oldest_read} {written}");
        let text = serde_json::to_string(&About::this()).unwrap();
        assert_eq!(serde_json::from_str::<About>(&text).unwrap(), About::this());
        let newer = text.replacen('{', r#"{"fieldOfALaterVersion":1,"#, 1);
        assert_eq!(serde_json::from_str::<About>(&newer).unwrap(), About::this());
    }
}
