//! Programs that a node starts.
use std::path::PathBuf;

use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Programs, the packages that have them, what does not work without, and whether another runtime makes up for it.
const NEEDED: &[(&str, &str, &str, bool)] = &[
    ("containerd", "containerd", "No container starts.", true),
    ("runc", "runc", "No container starts.", true),
    ("nft", "nftables", "Services and network policies do not work.", false),
];

/// The paths of the programs, in the order of [`NEEDED`].
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramFacts(pub Vec<Option<PathBuf>>);

/// Searches the directories in which services find programs.
pub fn read(host: &Host) -> ProgramFacts {
    ProgramFacts(NEEDED.iter().map(|(program, ..)| host.program(program)).collect())
}

/// Returns the findings for a node.
pub fn find(facts: &ProgramFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("programs");
    if !purpose.node {
        return findings.or_ok(|| "a control plane alone starts none".to_owned());
    }
    let mut there = Vec::new();
    for ((program, package, meaning, is_runtime), path) in NEEDED.iter().zip(&facts.0) {
        match path {
            Some(path) => there.push(path.display().to_string()),
            None if *is_runtime && purpose.foreign_runtime => {}
            None => {
                let action = format!("Install the package {package} of your distribution.");
                findings.add(Level::Error, format!("{program} is not installed"), *meaning, action);
            }
        }
    }
    findings.or_ok(|| there.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{levels, machine, purpose};

    #[test]
    fn what_is_not_installed_is_named_with_its_package() {
        let (_dir, host) = machine(&[("/usr/bin/containerd", ""), ("/usr/sbin/runc", "")], &[]);
        let found = find(&read(&host), &purpose());
        assert_eq!(levels(&found), [Level::Error]);
        assert!(found[0].action.contains("nftables"), "{found:?}");
        let (_dir, host) = machine(&[("/usr/sbin/nft", "")], &[]);
        let with_runtime = Purpose { foreign_runtime: true, ..purpose() };
        assert_eq!(levels(&find(&read(&host), &with_runtime)), [Level::Ok]);
        assert_eq!(levels(&find(&read(&host), &purpose())), [Level::Error, Level::Error]);
    }
}
