//! Lines of etcd's log in ours. etcd writes an object of JSON per line; at `info` it writes about a hundred at a start, which are
//! `debug` here. Its last errors are kept for the message about its end.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};

/// Errors that are kept.
const KEPT: usize = 5;
/// Longer messages are cut in what is kept.
const KEPT_BYTES: usize = 500;

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    Debug,
    Info,
    Warning,
    Error,
    /// etcd ends after this line.
    Fatal,
}

/// Warnings of etcd about its own choice of options and the order of its end, which nothing can be done about: `debug` here.
const HARMLESS: &[&str] = &[
    "Running http and grpc server on single port",
    "simple token is not cryptographically signed",
    "stopping secure grpc server due to error",
    "stopped secure grpc server due to error",
];

/// One line of etcd's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub severity: Severity,
    pub message: String,
    /// The error in the line, if it has one.
    pub error: String,
    /// All other fields, as JSON; empty without any.
    pub fields: String,
}

impl Line {
    /// Parses a line. What is not JSON, such as a Go panic, is an error as it is.
    pub fn parse(text: &str) -> Self {
        let Ok(Value::Object(mut object)) = serde_json::from_str(text) else {
            let error = String::new();
            return Self { severity: Severity::Error, message: text.to_owned(), error, fields: String::new() };
        };
        let mut take = |name: &str| object.remove(name).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        let (level, message, error) = (take("level"), take("msg"), take("error"));
        for name in ["ts", "caller", "stacktrace"] {
            take(name);
        }
        let severity = match level.as_str() {
            "debug" => Severity::Debug,
            "info" => Severity::Info,
            "warn" if HARMLESS.iter().any(|start| message.starts_with(*start)) => Severity::Info,
            "warn" => Severity::Warning,
            "panic" | "fatal" | "dpanic" => Severity::Fatal,
            _ => Severity::Error,
        };
        Self { severity, message, error, fields: shown(object) }
    }

    /// Writes the line to our log.
    pub fn relay(&self) {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (message, error, fields) = (&self.message, given(&self.error), given(&self.fields));
        match self.severity {
            Severity::Debug => tracing::trace!(target: "etcd", error, fields, "{message}"),
            Severity::Info => tracing::debug!(target: "etcd", error, fields, "{message}"),
            Severity::Warning => tracing::warn!(target: "etcd", error, fields, "{message}"),
            Severity::Error | Severity::Fatal => tracing::error!(target: "etcd", error, fields, "{message}"),
        }
    }
}

fn shown(object: Map<String, Value>) -> String {
    if object.is_empty() { String::new() } else { Value::Object(object).to_string() }
}

/// The meaning of a line for the supervision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The member was removed from its cluster: it cannot start again.
    Removed,
    /// The list of members that it was started with is not the cluster's.
    StaleCluster,
}

impl Sign {
    /// Reads the sign of a line, if it has one.
    pub fn of(line: &Line) -> Option<Self> {
        let has = |text: &str| line.message.contains(text) || line.error.contains(text);
        if has("the member has been permanently removed from the cluster") {
            return Some(Self::Removed);
        }
        let is_stale = line.severity >= Severity::Error
            && (has("member count is unequal") || has("unmatched member while checking PeerURLs"));
        is_stale.then_some(Self::StaleCluster)
    }
}

/// The last errors of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    /// Keeps the line if it is an error.
    pub fn note(&self, line: &Line) {
        if line.severity < Severity::Error {
            return;
        }
        let mut text =
            if line.error.is_empty() { line.message.clone() } else { format!("{}: {}", line.message, line.error) };
        let end = (0..=KEPT_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(text);
    }

    /// Returns the errors, the newest last.
    pub fn text(&self) -> String {
        self.0.lock().iter().cloned().collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_level_a_message_and_fields() {
        let line =
            Line::parse(r#"{"level":"warn","ts":"2026","caller":"x.go:1","msg":"slow","took":"1s","error":"late"}"#);
        assert_eq!((line.severity, line.message.as_str(), line.error.as_str()), (Severity::Warning, "slow", "late"));
        assert_eq!(line.fields, r#"{"took":"1s"}"#);
        let info = Line::parse(r#"{"level":"info","msg":"m"}"#);
        assert_eq!((info.severity, info.fields.as_str()), (Severity::Info, ""));
        assert_eq!(Line::parse(r#"{"level":"fatal","msg":"m"}"#).severity, Severity::Fatal);
        let harmless = r#"{"level":"warn","msg":"simple token is not cryptographically signed"}"#;
        assert_eq!(Line::parse(harmless).severity, Severity::Info);
        let panic = Line::parse("goroutine 1 [running]:");
        assert_eq!((panic.severity, panic.message.as_str()), (Severity::Error, "goroutine 1 [running]:"));
    }

    #[test]
    fn ends_that_no_restart_changes_are_recognized() {
        let sign = |text: &str| Sign::of(&Line::parse(text));
        let removed = r#"{"level":"warn","msg":"server error","error":"the member has been permanently removed from the cluster"}"#;
        assert_eq!(sign(removed), Some(Sign::Removed));
        let stale = r#"{"level":"fatal","msg":"discovery failed","error":"error validating peerURLs {…}: member count is unequal"}"#;
        assert_eq!(sign(stale), Some(Sign::StaleCluster));
        assert_eq!(sign(r#"{"level":"error","msg":"disk full"}"#), None);
    }

    #[test]
    fn the_last_errors_are_kept() {
        let tail = Tail::default();
        tail.note(&Line::parse(r#"{"level":"info","msg":"fine"}"#));
        for n in 0..KEPT + 2 {
            tail.note(&Line::parse(&format!(r#"{{"level":"error","msg":"e{n}"}}"#)));
        }
        assert_eq!(tail.text(), "e2; e3; e4; e5; e6");
        tail.note(&Line::parse(&"ö".repeat(KEPT_BYTES)));
        assert!(tail.text().ends_with('ö'));
    }
}
