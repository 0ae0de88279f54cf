//! Manifests: dependencies are sorted, declared once for the workspace, and used.
use super::tree::Tree;

/// Returns each `[…dependencies]` table of a manifest: its name and its lines.
pub fn tables(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut tables: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            tables.push((name, Vec::new()));
        } else if let Some((_, lines)) = tables.last_mut()
            && line.starts_with(|c: char| c.is_alphanumeric())
        {
            lines.push(line);
        }
    }
    tables.retain(|(name, _)| name.ends_with("dependencies"));
    tables
}

/// Returns the dependency that a line declares.
pub fn name(line: &str) -> &str {
    line.split([' ', '=', '.']).next().unwrap_or_default()
}

/// Returns every manifest with its text.
pub fn all(tree: &Tree) -> Vec<(&str, String)> {
    let all = tree.manifests().chain(["Cargo.toml"]);
    all.filter_map(|path| Some((path, tree.other(path).ok()?))).collect()
}

/// Returns tables whose names are not sorted.
pub fn unsorted(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in all(tree) {
        for (table, lines) in tables(&text) {
            if !lines.iter().map(|l| name(l)).is_sorted() {
                found.push(format!("{path}: [{table}] is not sorted"));
            }
        }
    }
    found
}

/// Returns dependencies with a version outside the workspace's list. Dependencies that only `xtask` uses may have one,
/// and those that are only listed for their features (`crates/features`).
pub fn declared_elsewhere(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in all(tree).iter().filter(|(path, _)| {
        !["Cargo.toml", "crates/features/Cargo.toml", "xtask/Cargo.toml", "fuzz/Cargo.toml", "tests/kube/Cargo.toml"]
            .contains(path)
    }) {
        for (table, lines) in tables(text) {
            let own = lines.iter().filter(|l| !l.contains("workspace = true") && !l.contains("workspace=true"));
            found.extend(own.map(|l| format!("{path}: [{table}]: {} belongs into [workspace.dependencies]", name(l))));
        }
    }
    found
}

/// Returns dependencies that no source file of their crate names, and those of the workspace that no crate uses.
pub fn unused(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let manifests = all(tree);
    for (path, text) in
        manifests.iter().filter(|(path, _)| !["Cargo.toml", "crates/features/Cargo.toml"].contains(path))
    {
        let folder = path.trim_end_matches("Cargo.toml");
        let sources: Vec<_> = tree.files.iter().filter(|f| f.path.starts_with(folder)).collect();
        for (table, lines) in tables(text) {
            for dependency in lines.iter().map(|l| name(l)).filter(|name| *name != "kelson-features") {
                let word = dependency.replace('-', "_");
                let used = sources.iter().any(|f| {
                    let in_scope = table != "dependencies"
                        || !f.is_test()
                        || ["bench/", "tests/"].iter().any(|tools| folder.starts_with(tools));
                    in_scope && (f.code.contains(&word) || f.is_generated() && f.text.contains(&word))
                });
                if !used {
                    found.push(format!("{path}: [{table}]: {dependency} is not used"));
                }
            }
        }
    }
    let Some((_, root)) = manifests.iter().find(|(path, _)| *path == "Cargo.toml") else { return found };
    for (_, lines) in tables(root).iter().filter(|(table, _)| *table == "workspace.dependencies") {
        for dependency in lines.iter().map(|l| name(l)) {
            let takes = |text: &str| tables(text).iter().any(|(_, lines)| lines.iter().any(|l| name(l) == dependency));
            if !manifests.iter().any(|(path, text)| *path != "Cargo.toml" && takes(text)) {
                found.push(format!("Cargo.toml: no crate takes {dependency}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_a_manifest() {
        let text = "[package]\nname = \"x\"\n[dependencies]\nb = \"1\"\na-c = { workspace = true }\n\n[dev-dependencies]\na.workspace = true\n";
        let found = tables(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].1.iter().map(|l| name(l)).collect::<Vec<_>>(), ["b", "a-c"]);
        assert_eq!(found[1].1.iter().map(|l| name(l)).collect::<Vec<_>>(), ["a"]);
    }
}
