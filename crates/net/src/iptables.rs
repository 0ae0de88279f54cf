//! A way for the bridge's traffic through a `FORWARD` chain that another program keeps with iptables.

use std::process::{Command, Stdio};

use crate::error::NetError;

/// How much of a failed program's words is kept.
const STDERR_BYTES_MAX: usize = 2048;

/// Lets the bridge's traffic through an iptables `FORWARD` chain, such as Docker's with its policy drop: an accept in a
/// table of our own does not overrule it. Nothing is done where no such chain exists.
pub(crate) fn allow_forward(bridge: &str) -> Result<(), NetError> {
    let Some(program) = forward_chain_owner() else { return Ok(()) };
    for direction in ["-i", "-o"] {
        let rule = ["FORWARD", direction, bridge, "-j", "ACCEPT"];
        if iptables(program, "-C", &rule).is_err() {
            iptables(program, "-I", &rule)?;
        }
    }
    Ok(())
}

/// Takes back what [`allow_forward`] did.
pub(crate) fn disallow_forward(bridge: &str) -> Result<(), NetError> {
    let Some(program) = forward_chain_owner() else { return Ok(()) };
    for direction in ["-i", "-o"] {
        let rule = ["FORWARD", direction, bridge, "-j", "ACCEPT"];
        while iptables(program, "-C", &rule).is_ok() {
            iptables(program, "-D", &rule)?;
        }
    }
    Ok(())
}

/// The iptables flavour whose filter table exists. Asked without touching either, because a mere listing by iptables
/// would create the table.
fn forward_chain_owner() -> Option<&'static str> {
    let quiet = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        matches!(command.status(), Ok(s) if s.success())
    };
    let legacy = std::fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
    let candidates: &[&'static str] = if legacy.lines().any(|l| l == "filter") {
        &["iptables-legacy", "iptables"]
    } else if quiet("nft", &["list", "chain", "ip", "filter", "FORWARD"]) {
        &["iptables-nft", "iptables"]
    } else {
        return None;
    };
    candidates.iter().copied().find(|program| quiet(program, &["--version"]))
}

fn iptables(program: &str, action: &str, rule: &[&str]) -> Result<(), NetError> {
    let output = Command::new(program)
        .args(["-w", "5", action])
        .args(rule)
        .stdin(Stdio::null())
        .output()
        .map_err(NetError::io(format!("start {program}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(NetError::Program { program: "iptables", message: tail(&output.stderr) })
}

fn tail(stderr: &[u8]) -> String {
    let start = stderr.len().saturating_sub(STDERR_BYTES_MAX);
    String::from_utf8_lossy(&stderr[start..]).trim().to_owned()
}
