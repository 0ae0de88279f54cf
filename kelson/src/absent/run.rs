//! Every command of a node ends with a message that says why it is not available.
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use kelson_ranges::{ConfiguredRanges, Ranges};

use super::args::{NodeArgs, NodeCommand};
use crate::control_plane::ControlPlane;
use crate::flags;
use crate::host::NodeIdentity;
use crate::lock::DataDirLock;
use crate::process::Process;

/// Names of upstream's components, and Kelson's shorter ones, that only run on a node.
const NODE_COMPONENTS: [&str; 3] = ["kubelet", "kube-proxy", "proxy"];

fn refused(what: &str) -> String {
    format!("{what} is only available on Linux, where a node can run")
}

/// Runs before a command line is parsed: one that names the kubelet or the service proxy is rejected whatever its
/// arguments are. `None` when it names neither.
pub fn before(words: &[OsString]) -> Option<ExitCode> {
    let name = component(words)?;
    eprintln!("Error: {}", refused(name));
    Some(ExitCode::FAILURE)
}

/// Returns the node component that a command line names, by the program's name or the first word.
fn component(words: &[OsString]) -> Option<&'static str> {
    let program = flags::program(words.first()?);
    let first = words.get(1).filter(|_| program == "kelson").and_then(|word| OsStr::to_str(word));
    NODE_COMPONENTS.into_iter().find(|name| *name != "proxy" && program == *name || first == Some(*name))
}

/// Rejects a command.
pub fn run(command: NodeCommand) -> anyhow::Result<()> {
    bail!("{}", refused(&format!("kelson {}", command.name())))
}

/// Rejects a server that would have a node.
pub fn check(_: &NodeArgs) -> anyhow::Result<()> {
    bail!("a node requires Linux; with --disable-agent the control plane runs alone")
}

/// Never called, since [`check`] fails first.
pub async fn settle(_: &Path, _: ConfiguredRanges) -> anyhow::Result<Ranges> {
    bail!("{}", refused("a server's own node"))
}

/// Never called, since [`check`] fails first.
pub async fn beside(_: &ControlPlane, _: &Path, _: &NodeArgs, _: &NodeIdentity, _: &mut Process) -> anyhow::Result<()> {
    bail!("{}", refused("a server's own node"))
}

/// Returns whether a server uses the data directory: it has the lock, which is tried for a moment.
pub fn is_running(data_dir: &Path) -> anyhow::Result<bool> {
    Ok(DataDirLock::take(data_dir).is_err())
}

/// There is nothing that waits for it.
pub fn ready(_: &Process) {}

/// Nothing was made.
pub async fn remove(_: &Path, _: Option<&str>) -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches as _, Subcommand as _};

    use super::*;

    #[test]
    fn commands_of_a_node_say_where_they_are() {
        for line in [
            "agent --server https://a --token x",
            "credential-provider check i",
            "image --help",
            "network explain",
            "cni",
        ] {
            let command = NodeCommand::augment_subcommands(Command::new("kelson"));
            command.clone().debug_assert();
            let words = std::iter::once("kelson").chain(line.split(' '));
            let command = NodeCommand::from_arg_matches(&command.get_matches_from(words)).unwrap();
            let name = line.split(' ').next().unwrap();
            let want = format!("kelson {name} is only available on Linux, where a node can run");
            assert_eq!(run(command).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn components_of_a_node_are_known_by_their_names() {
        let rows = [
            ("/a/kubelet --config x", Some("kubelet")),
            ("kube-proxy.exe", Some("kube-proxy")),
            ("kelson kubelet --help", Some("kubelet")),
            ("kelson proxy", Some("proxy")),
            ("proxy", None),
            ("kube-apiserver kubelet", None),
            ("kelson server", None),
            ("kelson", None),
        ];
        for (line, want) in rows {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(component(&words), want, "{line}");
        }
    }
}
