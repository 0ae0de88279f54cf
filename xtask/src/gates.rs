//! Generates the table of feature gates of Kubernetes 1.N: names, stages, defaults and dependencies.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::sources::Sources;

/// The files in which the published modules declare gates. A later file overrides an earlier one.
pub const MODULES: [&str; 7] = [
    "staging/src/k8s.io/component-base/logs/api/v1/kube_features.go",
    "staging/src/k8s.io/component-base/metrics/features/kube_features.go",
    "staging/src/k8s.io/component-base/zpages/features/kube_features.go",
    "staging/src/k8s.io/client-go/features/known_features.go",
    "staging/src/k8s.io/controller-manager/pkg/features/kube_features.go",
    "staging/src/k8s.io/apiserver/pkg/features/kube_features.go",
    "staging/src/k8s.io/apiextensions-apiserver/pkg/features/kube_features.go",
];
/// The file in which the main repository declares the others, and overrides some.
pub const MAIN: &str = "pkg/features/kube_features.go";

/// The specification of a gate for one version.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Spec {
    stage: &'static str,
    default: bool,
    locked: bool,
}

/// Gates by name, and their dependencies.
#[derive(Default)]
struct Gates<'a> {
    specs: BTreeMap<&'a str, Spec>,
    needs: BTreeMap<&'a str, Vec<&'a str>>,
}

/// A line of `facts/gates.jsonl` after the first, which has the release.
#[derive(serde::Deserialize, serde::Serialize)]
struct GateLine<'a> {
    default: bool,
    gate: &'a str,
    locked: bool,
    needs: Vec<&'a str>,
    stage: &'a str,
}

/// Returns the generated file; `facts` is the content of `facts/gates.jsonl`.
pub fn render(sources: &Sources, facts: &str) -> Result<String> {
    let minor = sources.release.minor;
    let texts: Vec<String> = MODULES.iter().map(|file| sources.read(file)).collect::<Result<_>>()?;
    let mut gates = Gates::parse(&texts.iter().map(String::as_str).collect::<Vec<_>>(), minor)?;
    gates.add_facts(facts, minor)?;
    gates.render(minor)
}

/// Returns `facts/gates.jsonl` for a source tree: the gates that the modules do not declare, or declare differently.
pub fn facts(sources: &Sources) -> Result<String> {
    let minor = sources.release.minor;
    let texts: Vec<String> = MODULES.iter().chain([&MAIN]).map(|file| sources.read(file)).collect::<Result<_>>()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (published, all) = (Gates::parse(&texts[..MODULES.len()], minor)?, Gates::parse(&texts, minor)?);
    let mut out = format!("{}\n", json!({"release": format!("1.{minor}")}));
    for (gate, spec) in &all.specs {
        if published.specs.get(gate) == Some(spec) && published.needs.get(gate) == all.needs.get(gate) {
            continue;
        }
        let needs = all.needs.get(gate).cloned().unwrap_or_default();
        let line = GateLine { default: spec.default, gate, locked: spec.locked, needs, stage: spec.stage };
        writeln!(out, "{}", serde_json::to_string(&line)?)?;
    }
    Ok(out)
}

impl<'a> Gates<'a> {
    fn parse(texts: &[&'a str], minor: u16) -> Result<Self> {
        // The names behind the constants, as in flags.
        let mut names = BTreeMap::new();
        for line in texts.iter().flat_map(|t| t.lines()) {
            if let Some((constant, name)) = constant(line) {
                names.insert(constant, name);
            }
        }
        let mut gates = Self::default();
        let named = |constant: &str| names.get(constant).copied().with_context(|| format!("{constant} is no gate"));
        for text in texts {
            for (constant, body) in entries(text) {
                if body.contains("Version:") {
                    if let Some(spec) = spec(body, minor)? {
                        gates.specs.insert(named(constant)?, spec);
                    }
                } else {
                    let all = body.split(',').map(|d| last(d.trim().trim_end_matches(')'))).filter(|d| !d.is_empty());
                    let all: Vec<&str> = all.map(named).collect::<Result<_>>()?;
                    if !all.is_empty() {
                        gates.needs.insert(named(constant)?, all);
                    }
                }
            }
        }
        gates.needs.retain(|name, _| gates.specs.contains_key(name));
        Ok(gates)
    }

    /// Adds the gates of the main repository from the lines of `facts/gates.jsonl`.
    fn add_facts(&mut self, facts: &'a str, minor: u16) -> Result<()> {
        let mut lines = facts.lines();
        let first: Value =
            serde_json::from_str(lines.next().unwrap_or_default()).context("the release of the facts")?;
        ensure!(
            first["release"] == format!("1.{minor}"),
            "facts/gates.jsonl is of {}, not of 1.{minor}: give a source tree as --sources, or edit it",
            first["release"]
        );
        for line in lines {
            let GateLine { default, gate, locked, needs, stage } =
                serde_json::from_str(line).with_context(|| line.to_owned())?;
            let stage =
                STAGES.iter().find(|known| **known == stage).with_context(|| format!("{gate}: stage {stage}"))?;
            self.specs.insert(gate, Spec { stage, default, locked });
            self.needs.remove(gate);
            if !needs.is_empty() {
                self.needs.insert(gate, needs);
            }
        }
        Ok(())
    }

    fn render(&self, minor: u16) -> Result<String> {
        ensure!(!self.specs.is_empty(), "no gate was found");
        let mut out = format!(
            "//! The feature gates of Kubernetes 1.{minor}. Written by `cargo xtask definitions`.\n\
             use super::{{Gate, Stage::*}};\n\n\
             #[rustfmt::skip]\npub(super) const GATES: &[Gate] = &[\n"
        );
        for (name, Spec { stage, default, locked }) in &self.specs {
            let needs: Vec<String> = self.needs.get(name).into_iter().flatten().map(|n| format!("{n:?}")).collect();
            writeln!(out, "    Gate({name:?}, {stage}, {default}, {locked}, &[{}]),", needs.join(", "))?;
        }
        Ok(out + "];\n")
    }
}

/// The stages of a gate, with their names in the generated table.
const STAGES: [&str; 4] = ["Alpha", "Beta", "Stable", "Deprecated"];

/// Parses `Constant featuregate.Feature = "Name"`; some have no type, or have it around the name.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (left, right) = line.trim().split_once(" = ")?;
    let right = right.strip_prefix("featuregate.Feature(").unwrap_or(right).strip_prefix('"')?;
    let name = right.trim_end_matches(')').strip_suffix('"')?;
    let (constant, ty) = left.split_once(char::is_whitespace).unwrap_or((left, "Feature"));
    (last(ty.trim()) == "Feature" && constant.starts_with(|c: char| c.is_ascii_uppercase())).then_some((constant, name))
}

/// Returns the part after the last dot of a qualified name.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Returns each `Constant: { … },` with the text between the braces, without comments.
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

/// Returns the newest specification up to the minor version; `None` for a gate of later versions.
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
            let table = Gates::parse(&[text], minor).and_then(|gates| gates.render(minor)).expect("a table");
            table.lines().filter_map(|l| l.trim().strip_prefix("Gate(").map(str::to_owned)).collect()
        };
        assert_eq!(
            lines(36),
            [r#""AlphaThing", Alpha, false, false, &["ReNamed"]),"#, r#""ReNamed", Stable, true, true, &[]),"#,]
        );
        assert_eq!(lines(37).len(), 3);
        assert_eq!(lines(37)[0], r#""AlphaThing", Beta, true, false, &["ReNamed"]),"#);
    }

    #[test]
    fn facts_say_what_modules_do_not() {
        let text = "A featuregate.Feature = \"A\"\nvar x = y{\n\tA: {\n\t\t{Version: version.MustParse(\"1.30\"), Default: false, PreRelease: featuregate.Alpha},\n\t},\n}\n";
        let mut gates = Gates::parse(&[text], 36).expect("gates");
        let facts = "{\"release\":\"1.36\"}\n{\"default\":true,\"gate\":\"A\",\"locked\":false,\"needs\":[\"B\"],\"stage\":\"Beta\"}\n\
                     {\"default\":false,\"gate\":\"B\",\"locked\":false,\"needs\":[],\"stage\":\"Alpha\"}\n";
        gates.add_facts(facts, 36).expect("facts");
        let table = gates.render(36).expect("a table");
        assert!(table.contains("Gate(\"A\", Beta, true, false, &[\"B\"]),"), "{table}");
        assert!(table.contains("Gate(\"B\", Alpha, false, false, &[]),"), "{table}");
        let error = Gates::default().add_facts(facts, 37).expect_err("of another release").to_string();
        assert!(error.contains("is of \"1.36\", not of 1.37"), "{error}");
    }
}
