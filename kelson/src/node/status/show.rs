//! Formats the status as lines for people, and as a document for programs.
use std::fmt::Write as _;

use kelson_check::{Finding, Level};

use super::facts::{CertificateFacts, Facts};

const MIB: u64 = 1 << 20;

/// Returns a document: the facts with `warnings`.
///
/// # Errors
/// None is known.
pub fn json(facts: &Facts, warnings: &[Finding]) -> anyhow::Result<String> {
    let mut document = serde_json::to_value(facts)?;
    document["warnings"] = serde_json::to_value(warnings)?;
    Ok(serde_json::to_string_pretty(&document)?)
}

/// Returns lines, with the warnings last.
pub fn text(facts: &Facts, warnings: &[Finding]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14} {value}");
    };
    line("data", facts.data_dir.display().to_string());
    match &facts.process {
        Some(process) => {
            line(
                "runs",
                format!("{} (process {}, {} MiB)", process.command, process.pid, process.resident_bytes / MIB),
            );
        }
        None => line("runs", "nothing".to_owned()),
    }
    if !facts.runtime.is_empty() {
        let bytes: u64 = facts.runtime.iter().map(|process| process.resident_bytes).sum();
        line("runtime", format!("{} processes, {} MiB", facts.runtime.len(), bytes / MIB));
    }
    if !facts.listens.is_empty() {
        line("listens", facts.listens.join(", "));
    }
    if let Some(api) = &facts.api {
        line("API", if api.not_ready.is_none() { "ready".to_owned() } else { "not ready".to_owned() });
        for node in &api.nodes {
            let ready = if node.not_ready.is_none() { "ready" } else { "not ready" };
            line("node", format!("{} {ready} {}", node.name, node.version));
        }
    }
    for member in facts.members.iter().flat_map(|facts| &facts.members) {
        let state = if member.is_running { "running" } else { "down" };
        line("etcd member", format!("{} {} {state}", member.name, member.role));
    }
    if let Some(containers) = facts.containers.as_ref().filter(|containers| containers.unavailable.is_none()) {
        let runtime = &containers.runtime;
        let (pods, images, mib) = (containers.pods, containers.images, containers.image_bytes / MIB);
        line("containers", format!("{runtime}: {pods} pods, {images} images of {mib} MiB"));
    }
    let (free, total) = (facts.disk.free_bytes / MIB, facts.disk.total_bytes / MIB);
    line("disk", format!("{free} of {total} MiB free"));
    if let Some(first) = facts.certificates.iter().min_by_key(|certificate| certificate.expires) {
        let count = facts.certificates.len();
        line("certificates", format!("{count}; {} (kelson certificate list)", expiry(first, facts)));
    }
    for warning in warnings {
        let level = match warning.level {
            Level::Error => "ERROR",
            Level::Warning => "warning",
            Level::Info | Level::Ok => "info",
        };
        let _ = writeln!(text, "\n{level:<14} {}", warning.found);
        for more in [&warning.meaning, &warning.action].into_iter().filter(|more| !more.is_empty()) {
            let _ = writeln!(text, "{:<14} {more}", "");
        }
    }
    text
}

fn expiry(certificate: &CertificateFacts, facts: &Facts) -> String {
    let days = certificate.expires.duration_since(facts.time).as_secs().div_euclid(24 * 3600);
    match days {
        ..0 => format!("{} has expired", certificate.name),
        _ => format!("{} is the next to expire, in {days} days", certificate.name),
    }
}
