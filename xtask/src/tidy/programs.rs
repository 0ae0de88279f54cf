//! Programs that tests start: each is in the table of `scripts/deps`, which installs its package, or part of every
//! Debian system. Otherwise a program that happens to be installed here may be missing elsewhere.
use super::tree::Tree;

const TABLE: &str = "scripts/deps";
/// Part of every Debian system: bash, coreutils, dash, libc-bin, tar.
const EVERYWHERE: &[&str] = &["base64", "bash", "chroot", "install", "ldd", "nice", "sh", "sha256sum", "tar"];
/// Only tests that are ignored unless requested by name start these.
const OPTIONAL: &[&str] = &["dbus-daemon"];
const CALL: &str = "Command::new(\"";

/// Returns programs that are not installed by the script.
pub fn faults(tree: &Tree) -> Vec<String> {
    let table = tree.other(TABLE).unwrap_or_default();
    let tests = tree.files.iter().filter(|f| f.is_test());
    tests.flat_map(|f| unknown(&f.path, &f.text, &table)).collect()
}

fn unknown(path: &str, text: &str, table: &str) -> Vec<String> {
    let started = text.match_indices(CALL).filter_map(|(at, _)| text[at + CALL.len()..].split('"').next());
    let installed = |program: &str| {
        table
            .lines()
            .any(|line| line.split_whitespace().next().is_some_and(|first| first == program) && line.starts_with(' '))
    };
    let unknown = started
        .map(|program| program.strip_prefix("/usr/bin/").unwrap_or(program))
        .filter(|program| !EVERYWHERE.contains(program) && !OPTIONAL.contains(program) && !installed(program));
    unknown.map(|program| format!("{path}: starts {program}, which {TABLE} does not install")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_needs_a_package() {
        let table = "needed() {\n        curl curl\n        etcdctl etcd-client\n";
        let text = "Command::new(\"curl\"); Command::new(\"sh\"); tokio::process::Command::new(\"/usr/bin/etcdctl\"); Command::new(binary)";
        assert_eq!(unknown("a.rs", text, table), Vec::<String>::new());
        assert_eq!(
            unknown("a.rs", "Command::new(\"jq\")", table),
            ["a.rs: starts jq, which scripts/deps does not install"]
        );
    }
}
