//! All findings, as text and as JSON.
use std::fmt::Write as _;

use serde::Serialize;

use crate::finding::{Finding, Level, worst};

/// The report of `kelson check`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The findings in the order of the probes.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether something is found that stops the server or node from working.
    pub fn has_errors(&self) -> bool {
        worst(&self.findings) == Level::Error
    }

    /// Returns what stops the server or node from working, in one line; empty if nothing does.
    pub fn errors(&self) -> String {
        self.line(|level| level == Level::Error, |finding| finding.found.clone())
    }

    /// Returns what was found otherwise, in one line: the state of the machine, and what works worse than it could.
    pub fn summary(&self) -> String {
        self.line(|level| level < Level::Error, |finding| format!("{}: {}", finding.probe, finding.found))
    }

    fn line(&self, is_shown: impl Fn(Level) -> bool, text: impl Fn(&Finding) -> String) -> String {
        let shown: Vec<String> = self.findings.iter().filter(|finding| is_shown(finding.level)).map(text).collect();
        shown.join("; ")
    }

    /// Returns the report as a JSON document.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// As lines: what was found, and below it what it means and what to do. `quiet` leaves out what is as it should be.
    pub fn text(&self, quiet: bool) -> String {
        let mut text = String::new();
        let shown = |finding: &&Finding| !quiet || finding.level > Level::Info;
        for finding in self.findings.iter().filter(shown) {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Info => "info",
                Level::Warning => "warning",
                Level::Error => "ERROR",
            };
            let _ = writeln!(text, "{level:<8} {:<13} {}", finding.probe, finding.found);
            for line in [&finding.meaning, &finding.action].into_iter().flat_map(|text| text.lines()) {
                let _ = writeln!(text, "{:22} {line}", "");
            }
        }
        let count = |level: Level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (errors, warnings) = (count(Level::Error), count(Level::Warning));
        if !quiet || errors + warnings > 0 {
            let _ = writeln!(text, "{errors} errors, {warnings} warnings");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Findings;

    fn report(error: bool) -> Report {
        let mut findings = Findings::of("memory");
        findings.ok("512 MiB");
        findings.add(Level::Warning, "no swap", "Pods are ended.", "Nothing.\nOr add some.");
        if error {
            findings.add(Level::Error, "none", "It fails.", "Buy some.");
        }
        Report { findings: findings.done() }
    }

    #[test]
    fn text_has_meaning_and_action_below_what_was_found() {
        let text = report(true).text(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ok       memory        512 MiB");
        assert_eq!(lines[1], "warning  memory        no swap");
        assert_eq!(lines[3], format!("{:22} Nothing.", ""));
        assert_eq!(lines[5], "ERROR    memory        none");
        assert_eq!(lines.last(), Some(&"1 errors, 1 warnings"));
        let quiet = report(false).text(true);
        assert!(quiet.starts_with("warning") && !quiet.contains("512"), "{quiet}");
        assert_eq!(Report { findings: Vec::new() }.text(true), "");
    }

    #[test]
    fn errors_decide_the_exit() {
        assert!(report(true).has_errors() && !report(false).has_errors());
        assert_eq!((report(true).errors(), report(false).errors()), ("none".to_owned(), String::new()));
        assert_eq!(report(true).summary(), "memory: 512 MiB; memory: no swap");
        let json: serde_json::Value = serde_json::from_str(&report(true).json()).unwrap();
        assert_eq!(json["findings"][2]["level"], "error");
        assert_eq!(json["findings"][0].as_object().unwrap().len(), 3, "nothing to do: {json}");
    }
}
