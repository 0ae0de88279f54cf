//! Levels and versions of the Pod Security Standards, and the policy that a namespace's labels set
//! (`pod-security-admission/api`).
use std::borrow::Cow;

use kelson_meta::tree::path::{at, text};
use kelson_meta::{FieldErrors, FieldPath};
use serde_json::Value;

/// The prefix of the labels and of the audit annotations.
pub(super) const PREFIX: &str = "pod-security.kubernetes.io/";

/// The labels of namespaces by mode: level and version.
const LABELS: [[&str; 2]; 3] = [
    ["pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/enforce-version"],
    ["pod-security.kubernetes.io/audit", "pod-security.kubernetes.io/audit-version"],
    ["pod-security.kubernetes.io/warn", "pod-security.kubernetes.io/warn-version"],
];

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Pods are not restricted (`privileged`).
    Privileged,
    /// Known privilege escalations are prevented (`baseline`).
    Baseline,
    /// Current hardening practice (`restricted`).
    Restricted,
}

impl Level {
    /// Parses the value of a label.
    pub fn parse(s: &str) -> Option<Self> {
        match s {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
    /// Returns the value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// The Kubernetes version (1.x) whose checks apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The checks of this minor version.
    Minor(u32),
    /// The newest checks that this server has.
    Latest,
}

impl Version {
    /// Parses the value of a label: `latest` or `v1.x`.
    pub fn parse(s: &str) -> Option<Self> {
        if s == "latest" {
            return Some(Self::Latest);
        }
        let minor = s.strip_prefix("v1.")?;
        let plain = minor == "0" || !minor.starts_with('0');
        let digits = !minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit());
        minor.parse().ok().filter(|_| plain && digits).map(Self::Minor)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Minor(minor) => write!(f, "v1.{minor}"),
            Self::Latest => f.write_str("latest"),
        }
    }
}

/// The level and version of one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The Pod Security Standard to enforce, audit or warn about.
    pub level: Level,
    /// The version whose checks apply.
    pub version: Version,
}

impl std::fmt::Display for Demand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.level.as_str(), self.version)
    }
}

impl Demand {
    /// The policy of a namespace without labels.
    pub const NONE: Self = Self { level: Level::Privileged, version: Version::Latest };

    /// Returns level and version as label values of metrics, in which the set of versions is bounded.
    pub fn labels(&self) -> (&'static str, Cow<'static, str>) {
        let newest = |minor: u32| minor <= kelson_meta::version::MINOR_NUMBER.into();
        let version = match self.version {
            // The privileged level has no checks in any version.
            _ if self.level == Level::Privileged => "latest".into(),
            Version::Latest => "latest".into(),
            Version::Minor(minor) if !newest(minor) => "future".into(),
            version => version.to_string().into(),
        };
        (self.level.as_str(), version)
    }

    fn same_as(&self, other: &Self) -> bool {
        self == other || (self.level == Level::Privileged && other.level == Level::Privileged)
    }
}

/// The levels of all modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demands {
    /// Pods that violate it are rejected.
    pub enforce: Demand,
    /// Violations are recorded in the audit log.
    pub audit: Demand,
    /// Clients are warned of violations.
    pub warn: Demand,
}

const LEVEL: &str = "must be one of privileged, baseline, restricted";
const VERSION: &str = "must be \"latest\" or \"v1.x\"";

impl Demands {
    /// Reads `defaults` of a `PodSecurityConfiguration`.
    pub fn of_defaults(defaults: &Value, faults: &mut FieldErrors) -> Self {
        let path = FieldPath::new("defaults");
        let mut demand = |mode: &str| {
            let mut demand = Demand::NONE;
            match (text(defaults, &[mode]), Level::parse(text(defaults, &[mode]))) {
                ("", _) => {}
                (_, Some(level)) => demand.level = level,
                (given, None) => faults.invalid(&path.child(mode), given, LEVEL),
            }
            let key = format!("{mode}-version");
            match (text(defaults, &[&key]), Version::parse(text(defaults, &[&key]))) {
                ("", _) => {}
                (_, Some(version)) => demand.version = version,
                (given, None) => faults.invalid(&path.child(&key), given, VERSION),
            }
            demand
        };
        Self { enforce: demand("enforce"), audit: demand("audit"), warn: demand("warn") }
    }

    /// Reads a namespace's labels, with the defaults for missing ones. An invalid level enforces the restricted level
    /// in the newest version, and neither audits nor warns.
    pub fn of_namespace(namespace: &Value, defaults: &Self, faults: &mut FieldErrors) -> Self {
        let labels = at(namespace, &["metadata", "labels"]);
        let path = |key: &str| FieldPath::new("metadata").child("labels").key(key);
        let mut policy = *defaults;
        let mut readable = [false; 3];
        let modes = [
            (&mut policy.enforce, Level::Restricted),
            (&mut policy.audit, Level::Privileged),
            (&mut policy.warn, Level::Privileged),
        ];
        for ((readable, (demand, unreadable)), [key, version_key]) in readable.iter_mut().zip(modes).zip(LABELS) {
            if let Some(value) = labels.get(key).and_then(Value::as_str) {
                let level = Level::parse(value);
                *readable = level.is_some();
                demand.level = level.unwrap_or(unreadable);
                if level.is_none() {
                    faults.invalid(&path(key), value, LEVEL);
                }
            }
            if let Some(value) = labels.get(version_key).and_then(Value::as_str) {
                let version = Version::parse(value);
                demand.version = version.unwrap_or(Version::Latest);
                if version.is_none() {
                    faults.invalid(&path(version_key), value, VERSION);
                }
            }
        }
        // A namespace that enforces a higher level than the default warning level also warns about the enforced one.
        let ([enforces, ..], [.., [warn, warn_version]]) = (readable, LABELS);
        if labels.get(warn).is_none() && enforces && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if labels.get(warn_version).is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        policy
    }

    /// Reports whether no mode restricts pods.
    pub fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|d| d.level == Level::Privileged)
    }

    /// Reports whether both are equal.
    pub fn same_as(&self, other: &Self) -> bool {
        self.enforce.same_as(&other.enforce) && self.audit.same_as(&other.audit) && self.warn.same_as(&other.warn)
    }

    /// Returns the restricting modes that labels set, as messages list them.
    pub fn words(&self, namespace: &Value) -> String {
        let labels = at(namespace, &["metadata", "labels"]);
        let set = |mode: &str| {
            labels.get(format!("{PREFIX}{mode}")).is_some() || labels.get(format!("{PREFIX}{mode}-version")).is_some()
        };
        [("enforce", self.enforce), ("audit", self.audit), ("warn", self.warn)]
            .into_iter()
            .filter(|(mode, demand)| demand.level != Level::Privileged && set(mode))
            .map(|(mode, demand)| format!("{mode}={demand}"))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions() {
        for (text, version) in [
            ("latest", Some(Version::Latest)),
            ("v1.0", Some(Version::Minor(0))),
            ("v1.25", Some(Version::Minor(25))),
            ("v1.025", None),
            ("v1.", None),
            ("v1.+5", None),
            ("1.25", None),
            ("v2.0", None),
            ("v1.99999999999", None),
        ] {
            assert_eq!(Version::parse(text), version, "{text}");
        }
        assert!(Version::Minor(u32::MAX) < Version::Latest);
    }

    /// Returns the policy that labels (without their prefix) set, as `enforce audit warn`.
    fn demanded(labels: &[(&str, &str)]) -> (String, usize) {
        let labels: serde_json::Map<_, _> = labels.iter().map(|(k, v)| (format!("{PREFIX}{k}"), json!(v))).collect();
        let mut faults = FieldErrors::new();
        let defaults = Demands { enforce: Demand::NONE, audit: Demand::NONE, warn: Demand::NONE };
        let policy = Demands::of_namespace(&json!({"metadata": {"labels": labels}}), &defaults, &mut faults);
        (format!("{} {} {}", policy.enforce, policy.audit, policy.warn), faults.0.len())
    }

    #[test]
    fn labels() {
        for (labels, want, faults) in [
            (&[][..], "privileged:latest privileged:latest privileged:latest", 0),
            (&[("enforce", "baseline")][..], "baseline:latest privileged:latest baseline:latest", 0),
            (
                &[("enforce", "baseline"), ("enforce-version", "v1.20")],
                "baseline:v1.20 privileged:latest baseline:v1.20",
                0,
            ),
            (
                &[("enforce", "baseline"), ("enforce-version", "v1.20"), ("warn-version", "v1.30")],
                "baseline:v1.20 privileged:latest baseline:v1.30",
                0,
            ),
            (
                &[("enforce", "baseline"), ("warn", "privileged")],
                "baseline:latest privileged:latest privileged:latest",
                0,
            ),
            (&[("enforce", "x")], "restricted:latest privileged:latest privileged:latest", 1),
            (&[("audit", "x"), ("warn", "x")], "privileged:latest privileged:latest privileged:latest", 2),
            (&[("enforce-version", "x")], "privileged:latest privileged:latest privileged:latest", 1),
            (&[("audit", "restricted")], "privileged:latest restricted:latest privileged:latest", 0),
        ] {
            assert_eq!(demanded(labels), (want.to_owned(), faults), "{labels:?}");
        }
    }
}
