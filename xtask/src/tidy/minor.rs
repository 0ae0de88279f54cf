//! The minor version of Kubernetes is data: only generated sources may contain it.
use super::tree::Tree;

/// Returns every line of code that contains the current minor version.
pub fn faults(tree: &Tree) -> Vec<String> {
    let Some(file) = tree.files.iter().find(|f| f.path == crate::definitions::RELEASE) else {
        return vec![format!("{} is not there", crate::definitions::RELEASE)];
    };
    let Some(minor) = file.text.split("MINOR: &str = \"").nth(1).and_then(|rest| rest.split('"').next()) else {
        return vec![format!("{} has no MINOR", file.path)];
    };
    let ships = |path: &str| path.starts_with("crates/") || path.starts_with("kelson/");
    let mut faults = Vec::new();
    for file in tree.code().filter(|f| ships(&f.path)) {
        let lines = file.text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (at, line) in lines.filter(|(_, line)| says(line, minor)) {
            faults.push(format!(
                "{}:{}: {}: the minor version is kelson_meta::version's",
                file.path,
                at + 1,
                line.trim()
            ));
        }
    }
    faults
}

/// Reports whether a line contains `1.MINOR`, or `"MINOR"` alone.
fn says(line: &str, minor: &str) -> bool {
    let version = format!("1.{minor}");
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || c == '.');
    line.contains(&format!("\"{minor}\""))
        || line.contains(&format!("\\\"{minor}\\\""))
        || line.match_indices(&version).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + version.len()..]);
            !digit(before.chars().next_back()) && !after.starts_with(|c: char| c.is_ascii_digit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minor_version_is_seen() {
        for (line, said) in [
            ("let a = \"v1.36.2\";", true),
            ("let a = \"kube-probe/1.36\";", true),
            ("\"minor\": \"36\",", true),
            (r#"contains("minor=\"36\"")"#, true),
            ("\"1.365\"", false),
            ("\"10.1.36\"", false),
            ("a[36]", false),
        ] {
            assert_eq!(says(line, "36"), said, "{line}");
        }
    }
}
