//! What a probe says of one thing.
use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The probe found no problem.
    Ok,
    /// Worth knowing; everything works.
    Info,
    /// Something works worse, or fails later.
    Warning,
    /// The server or node does not work.
    Error,
}

/// A finding of a probe, with its meaning and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The probe that found it: `cgroups`, `ports`.
    pub probe: &'static str,
    /// The severity of the problem, or that there is none.
    pub level: Level,
    /// The finding, with names and numbers.
    pub found: String,
    /// Its consequence; empty when there is no problem.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub meaning: String,
    /// The remedy. Empty if none is needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
}

/// Findings of one probe, as they are made.
#[derive(Debug)]
pub struct Findings {
    probe: &'static str,
    all: Vec<Finding>,
}

impl Findings {
    /// None yet, of the probe with this name.
    pub fn of(probe: &'static str) -> Self {
        Self { probe, all: Vec::new() }
    }

    /// Something that is as it should be.
    pub fn ok(&mut self, found: impl Into<String>) {
        self.add(Level::Ok, found, "", "");
    }

    /// A finding with its meaning and what to do.
    pub fn add(
        &mut self,
        level: Level,
        found: impl Into<String>,
        meaning: impl Into<String>,
        action: impl Into<String>,
    ) {
        let (found, meaning, action) = (found.into(), meaning.into(), action.into());
        self.all.push(Finding { probe: self.probe, level, found, meaning, action });
    }

    /// All of them; `found` says what is as it should be where there is none.
    pub fn or_ok(mut self, found: impl FnOnce() -> String) -> Vec<Finding> {
        if self.all.is_empty() {
            self.ok(found());
        }
        self.all
    }

    /// All of them.
    pub fn done(self) -> Vec<Finding> {
        self.all
    }
}

/// The highest level among findings; `Ok` where there are none.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}
