//! The control plane supports Linux, macOS and Windows, a node only Linux: crates of a node are dependencies only on
//! Linux, and system-specific names are only used in `crates/platform`. This needs no other system's compiler; `make
//! portable` uses those.
use super::manifests;
use super::tree::{File, Tree};

/// Crates that need Linux, or that only a node uses.
const NODE: &[&str] = &["announce", "check", "credentials", "cri", "dns", "kubelet", "net", "network-policy", "proxy"];
/// Crates and folders that only run on Linux: tests of nodes, and tools for this repository.
const TOOLS: &[&str] = &["bench", "features", "simulation", "tests", "xtask", "fuzz"];
/// The places that may use system-specific names: the platform crate, the room with the end of a child process, the node
/// itself, and the place that chooses whether there is a node.
const PLACES: &[&str] = &[
    "crates/platform/src/",
    "crates/members/src/system/",
    "kelson/src/node/",
    "kelson/src/absent/",
    "kelson/src/main.rs",
];
/// Dependencies for one kind of system.
const SYSTEM: &[&str] = &["libc", "nix", "rtnetlink", "rustix"];
/// System-specific names, and checks of the current system.
const NAMES: &[&str] = &[
    "std::os::",
    "rustix::",
    "libc::",
    "nix::",
    "signal::unix",
    "signal::windows",
    "net::UnixListener",
    "net::UnixStream",
    "target_os",
    "cfg(unix",
    "cfg(windows",
];

/// Reports whether a file replaces others on systems other than Linux: both are never compiled into one program.
pub fn is_alternate(path: &str) -> bool {
    let places = ["crates/platform/src/windows/", "crates/members/src/system/windows.rs", "kelson/src/absent/"];
    places.iter().any(|place| path.starts_with(place))
}

/// Returns system-specific names and dependencies in code for several systems.
pub fn faults(tree: &Tree) -> Vec<String> {
    let mut found: Vec<String> = tree.code().filter(|f| is_portable(f)).flat_map(names).collect();
    for (path, text) in manifests::all(tree) {
        found.extend(dependencies(path, &text));
        found.extend(tree.code().filter_map(|file| without_runtime(path, &text, file)));
    }
    found
}

fn is_portable(file: &File) -> bool {
    let of_node = |krate: &&str| *krate == file.krate;
    !NODE.iter().chain(TOOLS).any(of_node) && !PLACES.iter().any(|place| file.path.starts_with(place))
}

fn names(file: &File) -> Vec<String> {
    let lines = file.own.lines().enumerate();
    let found = lines.filter_map(|(line, text)| Some((line + 1, NAMES.iter().find(|name| text.contains(**name))?)));
    found.map(|(line, name)| format!("{}:{line}: {name} belongs into crates/platform", file.path)).collect()
}

/// Returns an error for a file that uses a part of `kelson-platform` that needs its runtime feature, in a crate that
/// does not enable it: the workspace as a whole compiles, because another crate enables it, and a command for this
/// crate alone does not.
fn without_runtime(path: &str, text: &str, file: &File) -> Option<String> {
    let folder = path.strip_suffix("Cargo.toml")?;
    let names = ["sockets", "signals"].map(|part| format!("kelson_platform::{part}"));
    let wanted = names.iter().find(|name| file.own.contains(name.as_str()))?;
    let tables = manifests::tables(text);
    let mut lines = tables.iter().flat_map(|(_, lines)| lines.iter());
    let asked = lines.any(|line| manifests::name(line) == "kelson-platform" && line.contains("\"tokio\""));
    let inside = file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with("src/"));
    (inside && !asked)
        .then(|| format!("{path}: {} names {wanted}, which is a feature of kelson-platform: \"tokio\"", file.path))
}

/// Returns dependencies of a manifest that should not be used on every system.
fn dependencies(path: &str, text: &str) -> Vec<String> {
    let folder = path.strip_prefix("crates/").unwrap_or(path).split('/').next().unwrap_or_default();
    if NODE.contains(&folder) || TOOLS.contains(&folder) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (_, lines) in manifests::tables(text).iter().filter(|(table, _)| *table == "dependencies") {
        for name in lines.iter().map(|line| manifests::name(line)) {
            let of_node = name.strip_prefix("kelson-").is_some_and(|krate| NODE.contains(&krate));
            if of_node || SYSTEM.contains(&name) {
                found.push(format!("{path}: {name} is for one system: [target.'cfg(…)'.dependencies]"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, own: &str) -> File {
        let krate = super::super::tree::crate_of(path).to_owned();
        File { path: path.into(), krate, text: own.into(), code: own.into(), own: own.into() }
    }

    #[test]
    fn names_of_one_system_have_their_places() {
        let line = "use std::fs;\nuse std::os::unix::fs::PermissionsExt as _;\n";
        let found = names(&file("crates/store/src/a.rs", line));
        assert_eq!(found, ["crates/store/src/a.rs:2: std::os:: belongs into crates/platform"]);
        assert!(names(&file("crates/store/src/a.rs", "use kelson_platform::files;\n")).is_empty());
        let portable = ["crates/store/src/a.rs", "kelson/src/run.rs", "crates/testing/src/lib.rs"];
        assert!(portable.iter().all(|path| is_portable(&file(path, ""))));
        let others = ["crates/platform/src/unix/files.rs", "kelson/src/node/run.rs", "crates/kubelet/src/lib.rs"];
        assert!(!others.iter().any(|path| is_portable(&file(path, ""))));
    }

    #[test]
    fn what_needs_a_runtime_is_asked_for() {
        let user = file("crates/traces/src/export.rs", "use kelson_platform::sockets::UnixStream;\n");
        let without = "[dependencies]\nkelson-platform = { workspace = true }\n";
        let with = "[dependencies]\nkelson-platform = { workspace = true, features = [\"tokio\"] }\n";
        assert!(without_runtime("crates/traces/Cargo.toml", without, &user).is_some());
        assert_eq!(without_runtime("crates/traces/Cargo.toml", with, &user), None);
        assert_eq!(without_runtime("crates/pki/Cargo.toml", without, &user), None, "the file of another crate");
    }

    #[test]
    fn crates_of_a_node_are_taken_on_linux_alone() {
        let text = "[dependencies]\nkelson-net = { workspace = true }\nrustix = { workspace = true }\nserde = \"1\"\n\
                    [target.'cfg(target_os = \"linux\")'.dependencies]\nkelson-cri = { workspace = true }\n\
                    [dev-dependencies]\nrustix = { workspace = true }\n";
        let found = dependencies("kelson/Cargo.toml", text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("kelson/Cargo.toml: kelson-net") && found[1].contains("rustix"));
        assert!(dependencies("crates/kubelet/Cargo.toml", text).is_empty());
    }
}
