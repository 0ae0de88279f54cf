//! Allows the bridge's traffic through a `FORWARD` chain that another program maintains with iptables. The rule is set
//! with iptables if that is installed, and otherwise with nft if the chain is one of nftables.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::process::{Command, Stdio};

use crate::error::NetError;

/// The maximum size of a failed program's output that is kept.
const STDERR_BYTES_MAX: usize = 2048;

/// Allows the bridge's traffic through an iptables `FORWARD` chain, such as Docker's with its policy drop: an accept in
/// another table does not override it. Nothing is done if there is no such chain.
pub(crate) fn allow_forward(bridge: &str) -> Result<(), NetError> {
    match forward_chain_owner() {
        None => Ok(()),
        Some(Owner::Iptables(program)) => {
            for direction in ["-i", "-o"] {
                let rule = ["FORWARD", direction, bridge, "-j", "ACCEPT"];
                if iptables(program, "-C", &rule).is_err() {
                    iptables(program, "-I", &rule)?;
                }
            }
            Ok(())
        }
        Some(Owner::Nft) => {
            let there = nft_handles(bridge)?;
            if there.len() >= 2 {
                return Ok(());
            }
            for direction in ["iifname", "oifname"] {
                let rule = [&["insert", "rule"][..], &FORWARD, &[direction, bridge, "accept"]].concat();
                run("nft", &rule)?;
            }
            Ok(())
        }
    }
}

/// Reports whether the bridge's traffic passes the `FORWARD` chain, or there is none.
pub(crate) fn is_forward_allowed(bridge: &str) -> Result<bool, NetError> {
    Ok(match forward_chain_owner() {
        None => true,
        Some(Owner::Iptables(program)) => {
            ["-i", "-o"].iter().all(|to| iptables(program, "-C", &["FORWARD", to, bridge, "-j", "ACCEPT"]).is_ok())
        }
        Some(Owner::Nft) => nft_handles(bridge)?.len() >= 2,
    })
}

/// Removes the rule of [`allow_forward`].
pub(crate) fn disallow_forward(bridge: &str) -> Result<(), NetError> {
    match forward_chain_owner() {
        None => Ok(()),
        Some(Owner::Iptables(program)) => {
            for direction in ["-i", "-o"] {
                let rule = ["FORWARD", direction, bridge, "-j", "ACCEPT"];
                while iptables(program, "-C", &rule).is_ok() {
                    iptables(program, "-D", &rule)?;
                }
            }
            Ok(())
        }
        Some(Owner::Nft) => {
            for handle in nft_handles(bridge)? {
                let rule = [&["delete", "rule"][..], &FORWARD, &["handle", &handle]].concat();
                run("nft", &rule)?;
            }
            Ok(())
        }
    }
}

/// Family, table and chain of iptables' rules for forwarded packets.
const FORWARD: [&str; 3] = ["ip", "filter", "FORWARD"];

/// The tool that changes the chain's rules.
enum Owner {
    Iptables(&'static str),
    Nft,
}

/// Returns the handles of the rules in `FORWARD` that allow the bridge's traffic.
fn nft_handles(bridge: &str) -> Result<Vec<String>, NetError> {
    let listed = run("nft", &[&["--handle", "list", "chain"][..], &FORWARD].concat())?;
    Ok(handles(&listed, bridge))
}

fn handles(listed: &str, bridge: &str) -> Vec<String> {
    let ours = ["iifname", "oifname"].map(|direction| format!("{direction} \"{bridge}\" accept # handle "));
    let handle = |line: &str| ours.iter().find_map(|rule| line.trim().strip_prefix(rule).map(str::to_owned));
    listed.lines().filter_map(handle).collect()
}

/// Returns the iptables flavour whose filter table exists. Found out without calling iptables, because even listing
/// creates the table.
fn forward_chain_owner() -> Option<Owner> {
    let quiet = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        matches!(command.status(), Ok(s) if s.success())
    };
    let legacy = std::fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
    let first = |candidates: &[&'static str]| {
        candidates.iter().copied().find(|program| quiet(program, &["--version"])).map(Owner::Iptables)
    };
    if legacy.lines().any(|l| l == "filter") {
        return first(&["iptables-legacy", "iptables"]);
    }
    if !quiet("nft", &[&["list", "chain"][..], &FORWARD].concat()) {
        return None;
    }
    first(&["iptables-nft", "iptables"]).or(Some(Owner::Nft))
}

fn iptables(program: &'static str, action: &str, rule: &[&str]) -> Result<String, NetError> {
    run(program, &[&["-w", "5", action][..], rule].concat())
}

/// Runs a program; returns its output.
fn run(program: &'static str, arguments: &[&str]) -> Result<String, NetError> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(NetError::io(format!("start {program}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(NetError::Program { program, message: tail(&output.stderr) })
}

fn tail(stderr: &[u8]) -> String {
    let start = stderr.len().saturating_sub(STDERR_BYTES_MAX);
    String::from_utf8_lossy(&stderr[start..]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_one_bridge_are_found_by_their_text() {
        let listed = "table ip filter {\n\tchain FORWARD { # handle 1\n\t\ttype filter hook forward priority 0; policy drop;\n\
            \t\toifname \"kel-a\" accept # handle 3\n\t\tiifname \"kel-a\" accept # handle 2\n\
            \t\tiifname \"kel-ab\" accept # handle 4\n\t\tiifname \"docker0\" oifname \"kel-a\" accept # handle 9\n\t}\n}\n";
        assert_eq!(handles(listed, "kel-a"), ["3", "2"]);
        assert_eq!(handles(listed, "kel"), [""; 0]);
    }
}
