//! Writes the table of feature gates that components of Kubernetes 1.N know: names, stages, defaults and what each depends on.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use crate::sources::Sources;

/// Where gates are declared, below the sources. A later file says what an earlier one said of the same gate.
pub const FILES: [&str; 8] = [
    "staging/src/k8s.io/component-base/logs/api/v1/kube_features.go",
    "staging/src/k8s.io/component-base/metrics/features/kube_features.go",
    "staging/src/k8s.io/component-base/zpages/features/kube_features.go",
    "staging/src/k8s.io/client-go/features/known_features.go",
    "staging/src/k8s.io/controller-manager/pkg/features/kube_features.go",
    "staging/src/k8s.io/apiserver/pkg/features/kube_features.go",
    "staging/src/k8s.io/apiextensions-apiserver/pkg/features/kube_features.go",
    "pkg/features/kube_features.go",
];

/// What one version says of a gate.
struct Spec {
    stage: &'static str,
    default: bool,
    locked: bool,
}

/// The text of the generated file.
pub fn render(sources: &Sources) -> Result<String> {
    let texts: Vec<String> = FILES.iter().map(|file| sources.read(file)).collect::<Result<_>>()?;
    table(&texts.iter().map(String::as_str).collect::<Vec<_>>(), sources.release.minor)
}

fn table(texts: &[&str], minor: u16) -> Result<String> {
    // The names of constants, as flags know them.
    let mut names = BTreeMap::new();
    for line in texts.iter().flat_map(|t| t.lines()) {
        if let Some((constant, name)) = constant(line) {
            names.insert(constant, name);
        }
    }
    let mut gates: BTreeMap<&str, Spec> = BTreeMap::new();
    let mut needs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let named = |constant: &str| names.get(constant).copied().with_context(|| format!("{constant} is no gate"));
    for text in texts {
        for (constant, body) in entries(text) {
            if body.contains("Version:") {
                if let Some(spec) = spec(body, minor)? {
                    gates.insert(named(constant)?, spec);
                }
            } else {
                let all: Vec<&str> =
                    body.split(',').map(|d| last(d.trim().trim_end_matches(')'))).filter(|d| !d.is_empty()).collect();
                let all: Vec<&str> = all.into_iter().map(named).collect::<Result<_>>()?;
                if !all.is_empty() {
                    needs.insert(named(constant)?, all);
                }
            }
        }
    }
    ensure!(!gates.is_empty(), "no gate was found");
    needs.retain(|name, _| gates.contains_key(name));
    let mut out = format!(
        "//! The feature gates of Kubernetes 1.{minor}. Written by `cargo xtask definitions`.\n\
         use super::{{Gate, Stage::*}};\n\n\
         #[rustfmt::skip]\npub(super) const GATES: &[Gate] = &[\n"
    );
    for (name, Spec { stage, default, locked }) in &gates {
        let needs = needs.get(name).map(|n| n.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>()).unwrap_or_default();
        writeln!(out, "    Gate({name:?}, {stage}, {default}, {locked}, &[{}]),", needs.join(", "))?;
    }
    Ok(out + "];\n")
}

/// `Constant featuregate.Feature = "Name"`; some have no type, or have it around the name.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (left, right) = line.trim().split_once(" = ")?;
    let right = right.strip_prefix("featuregate.Feature(").unwrap_or(right).strip_prefix('"')?;
    let name = right.trim_end_matches(')').strip_suffix('"')?;
    let (constant, ty) = left.split_once(char::is_whitespace).unwrap_or((left, "Feature"));
    (last(ty.trim()) == "Feature" && constant.starts_with(|c: char| c.is_ascii_uppercase())).then_some((constant, name))
}

/// What stands behind the last point of a qualified name.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// `Constant: { … },`, each with what is between the braces, comments left out by whoever reads it.
fn entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let open = rest.find(": {")?;
            // Gates of other packages are converted: `Feature(package.Name)`.
            let name = rest[..open]
                .trim_end_matches(')')
                .rsplit(|c: char| !(c.is_alphanumeric() || c == '.'))
                .next()
                .unwrap_or("");
            let body = &rest[open + 3..];
            let mut depth = 1;
            let close = body.find(|c: char| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0
            })?;
            rest = &body[close..];
            let constant = last(name);
            if constant.starts_with(|c: char| c.is_ascii_uppercase()) {
                return Some((constant, &body[..close]));
            }
        }
    })
}

/// The newest that is not newer than the minor; `None` for a gate of later versions.
fn spec(body: &str, minor: u16) -> Result<Option<Spec>> {
    let mut newest: Option<(u16, Spec)> = None;
    for line in body.lines().map(|l| l.split("//").next().unwrap_or("")) {
        let Some(at) = line.find("MustParse(\"1.") else { continue };
        let digits = &line[at + "MustParse(\"1.".len()..];
        let since: u16 = digits.split('"').next().unwrap_or("").parse().with_context(|| line.to_owned())?;
        ensure!(!line.contains("MinCompatibilityVersion"), "a second condition is not known: {line}");
        let stage =
            match line.split("PreRelease:").nth(1).map(|s| last(s.split([',', '}']).next().unwrap_or("").trim())) {
                Some("Alpha") => "Alpha",
                Some("Beta") => "Beta",
                Some("GA") => "Stable",
                Some("Deprecated") => "Deprecated",
                other => bail!("stage {other:?} is not known: {line}"),
            };
        let spec =
            Spec { stage, default: line.contains("Default: true"), locked: line.contains("LockToDefault: true") };
        if since <= minor && newest.as_ref().is_none_or(|(known, _)| *known <= since) {
            newest = Some((since, spec));
        }
    }
    Ok(newest.map(|(_, spec)| spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_the_minor_counts() {
        let text = r#"
    AlphaThing featuregate.Feature = "AlphaThing"
    Renamed featuregate.Feature = "ReNamed"
    Later featuregate.Feature = "Later"
var defaults = map[featuregate.Feature]featuregate.VersionedSpecs{
    AlphaThing: {
        {Version: version.MustParse("1.30"), Default: false, PreRelease: featuregate.Alpha},
        {Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
    },
    other.Renamed: {
        {Version: version.MustParse("1.30"), Default: false, PreRelease: featuregate.Beta},
        {Version: version.MustParse("1.36"), Default: true, PreRelease: featuregate.GA, LockToDefault: true}, // gone in 1.38
    },
    Later: {
        {Version: version.MustParse("1.37"), Default: false, PreRelease: featuregate.Alpha},
    },
}
var needs = map[featuregate.Feature][]featuregate.Feature{
    AlphaThing: {featuregate.Feature(other.Renamed)},
    Renamed: {},
}"#;
        let lines = |minor: u16| -> Vec<String> {
            let table = table(&[text], minor).expect("a table");
            table.lines().filter_map(|l| l.trim().strip_prefix("Gate(").map(str::to_owned)).collect()
        };
        assert_eq!(
            lines(36),
            [r#""AlphaThing", Alpha, false, false, &["ReNamed"]),"#, r#""ReNamed", Stable, true, true, &[]),"#,]
        );
        assert_eq!(lines(37).len(), 3);
        assert_eq!(lines(37)[0], r#""AlphaThing", Beta, true, false, &["ReNamed"]),"#);
    }
}
