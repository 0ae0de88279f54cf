//! The audit policy file (`--audit-policy-file`, `audit.k8s.io/v1` Policy), read and validated.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: read at start; written by a thread of its own, or in the lane for files"
)]

use std::path::Path;

use kelson_meta::{FieldErrors, FieldPath, null_default};
use serde::Deserialize;
use serde_json::Value;

use crate::event::{Level, Stage};

const API_VERSION: &str = "audit.k8s.io/v1";

/// An audit policy: which requests are logged, and at which level. The first rule that matches a request decides.
/// Policies are read from a file at startup (`--audit-policy-file`), in the versioned form of `audit.k8s.io/v1`, and
/// do not change afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    /// The stages that are omitted for all requests.
    pub(crate) omit_stages: Stages,
    pub(crate) omit_managed_fields: bool,
    /// Unknown fields, which a newer version may define.
    pub unknown_fields: Vec<String>,
}

/// A set of stages of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// Returns whether the set contains a stage.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }
    /// Returns the union of both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        Self(stages.into_iter().fold(0, |all, stage| all | 1 << stage as u8))
    }
}

/// One rule. An empty field matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub level: Level,
    pub users: Vec<String>,
    pub user_groups: Vec<String>,
    pub verbs: Vec<String>,
    pub resources: Vec<Resources>,
    pub namespaces: Vec<String>,
    pub non_resource_urls: Vec<String>,
    pub omit_stages: Stages,
    pub omit_managed_fields: bool,
}

/// Resources of one API group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Resources {
    #[serde(deserialize_with = "null_default")]
    pub group: String,
    #[serde(deserialize_with = "null_default")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub resource_names: Vec<String>,
}

/// Why a policy file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("failed to read file path {path:?}: {source}")]
    Read {
        /// The path of the policy file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file does not contain a policy.
    #[error("failed decoding: {0}")]
    Decode(String),
    /// The file has another version or kind.
    #[error("unknown group version field {0:?} in policy")]
    Version(String),
    /// The policy has invalid fields.
    #[error("{0}")]
    Invalid(FieldErrors),
    /// The policy has no rules, so it would log nothing.
    #[error("loaded illegal policy with 0 rules")]
    Empty,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct File {
    #[serde(deserialize_with = "null_default")]
    rules: Vec<FileRule>,
    #[serde(deserialize_with = "null_default")]
    omit_stages: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    omit_managed_fields: bool,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct FileRule {
    #[serde(deserialize_with = "null_default")]
    level: String,
    #[serde(deserialize_with = "null_default")]
    users: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    user_groups: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    resources: Vec<Resources>,
    #[serde(deserialize_with = "null_default")]
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_default")]
    non_resource_urls: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

const POLICY_FIELDS: [&str; 6] = ["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
const RULE_FIELDS: [&str; 9] = [
    "level",
    "users",
    "userGroups",
    "verbs",
    "resources",
    "namespaces",
    "nonResourceURLs",
    "omitStages",
    "omitManagedFields",
];
const RESOURCES_FIELDS: [&str; 3] = ["group", "resources", "resourceNames"];

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let text =
            std::fs::read(path).map_err(|source| PolicyError::Read { path: path.display().to_string(), source })?;
        Self::parse(&text)
    }

    /// Parses a policy in YAML or JSON.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        let decode = |e: &dyn std::fmt::Display| PolicyError::Decode(e.to_string());
        let (tree, mut unknown_fields) = kelson_codec::yaml::to_value(text).map_err(|e| decode(&e))?;
        let said = |field: &str| tree[field].as_str().unwrap_or("");
        if said("apiVersion") != API_VERSION || said("kind") != "Policy" {
            return Err(PolicyError::Version(format!("{}, Kind={}", said("apiVersion"), said("kind"))));
        }
        unknown(&tree, &mut unknown_fields);
        let file: File = serde_json::from_value(tree).map_err(|e| decode(&e))?;
        let mut errors = FieldErrors::new();
        let omit_stages = stages(&file.omit_stages, &FieldPath::new("omitStages"), &mut errors);
        let path = FieldPath::new("rules");
        let all = file.omit_managed_fields;
        let rules: Vec<Rule> =
            file.rules.into_iter().enumerate().map(|(i, r)| rule(r, all, &path.index(i), &mut errors)).collect();
        match (errors.is_empty(), rules.is_empty()) {
            (false, _) => Err(PolicyError::Invalid(errors)),
            (true, true) => Err(PolicyError::Empty),
            (true, false) => Ok(Self { rules, omit_stages, omit_managed_fields: all, unknown_fields }),
        }
    }
}

/// Collects the paths of fields that a policy does not define.
fn unknown(tree: &Value, found: &mut Vec<String>) {
    let mut look = |at: &str, value: &Value, known: &[&str]| {
        let names = value.as_object().into_iter().flat_map(|o| o.keys());
        found.extend(names.filter(|n| !known.contains(&n.as_str())).map(|n| format!("unknown field \"{at}{n}\"")));
    };
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    look("", tree, &POLICY_FIELDS);
    for (i, rule) in items(&tree["rules"]).iter().enumerate() {
        look(&format!("rules[{i}]."), rule, &RULE_FIELDS);
        for (k, resources) in items(&rule["resources"]).iter().enumerate() {
            look(&format!("rules[{i}].resources[{k}]."), resources, &RESOURCES_FIELDS);
        }
    }
}

fn rule(file: FileRule, omit_managed_fields: bool, path: &FieldPath, errors: &mut FieldErrors) -> Rule {
    let level = Level::ALL.into_iter().find(|l| l.as_str() == file.level);
    if file.level.is_empty() {
        errors.required(&path.child("level"), "");
    } else if level.is_none() {
        errors.not_supported(&path.child("level"), &file.level, &Level::ALL.map(Level::as_str));
    }
    let urls = path.child("nonResourceURLs");
    for (i, url) in file.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        if !url.starts_with('/') {
            errors.invalid(&urls.index(i), url, "non-resource URL rules must begin with a '/' character");
        }
        if url.find('*').is_some_and(|at| at + 1 < url.len()) {
            let why = "non-resource URL wildcards '*' must be the final character of the rule";
            errors.invalid(&urls.index(i), url, why);
        }
    }
    for resources in &file.resources {
        judge_resources(resources, &path.child("resources"), errors);
    }
    let omit_stages = stages(&file.omit_stages, &path.child("omitStages"), errors);
    if !file.non_resource_urls.is_empty() && !(file.resources.is_empty() && file.namespaces.is_empty()) {
        let why = "rules cannot apply to both regular resources and non-resource URLs";
        errors.invalid(&urls, &file.non_resource_urls, why);
    }
    Rule {
        level: level.unwrap_or(Level::None),
        users: file.users,
        user_groups: file.user_groups,
        verbs: file.verbs,
        resources: file.resources,
        namespaces: file.namespaces,
        non_resource_urls: file.non_resource_urls,
        omit_stages,
        omit_managed_fields: file.omit_managed_fields.unwrap_or(omit_managed_fields),
    }
}

fn judge_resources(resources: &Resources, path: &FieldPath, errors: &mut FieldErrors) {
    if !matches!(resources.group.as_str(), "" | "*")
        && let Err(why) = kelson_meta::is_dns1123_subdomain(&resources.group)
    {
        errors.invalid(&path.child("group"), &resources.group, why.join(","));
    }
    if !resources.resource_names.is_empty() && resources.resources.is_empty() {
        let why = "using resourceNames requires at least one resource";
        errors.invalid(&path.child("resourceNames"), &resources.resource_names, why);
    }
}

fn stages(names: &[String], path: &FieldPath, errors: &mut FieldErrors) -> Stages {
    let mut found = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        match Stage::ALL.into_iter().find(|s| s.as_str() == name) {
            Some(stage) => found.push(stage),
            None => {
                let allowed = Stage::ALL.map(Stage::as_str).join(",");
                errors.invalid(&path.index(i), name, format!("allowed stages are {allowed}"));
            }
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rest: &str) -> Result<Policy, PolicyError> {
        Policy::parse(format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rest}").as_bytes())
    }

    #[test]
    fn what_a_policy_says() {
        let policy = parse(
            "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n\
             - {level: None, users: ['system:kube-proxy'], nonResourceURLs: ['/healthz*', '*']}\n\
             - {level: Request, omitManagedFields: false, omitStages: [Panic], verbs: null,\n   \
                resources: [{group: '', resources: [pods/log], resourceNames: [a]}], namespaces: [x, '']}\n",
        )
        .unwrap();
        assert_eq!(policy.rules.len(), 2);
        assert!(policy.omit_stages.contains(Stage::RequestReceived) && !policy.omit_stages.contains(Stage::Panic));
        assert_eq!(policy.rules.iter().map(|r| r.omit_managed_fields).collect::<Vec<_>>(), [true, false]);
        assert_eq!(policy.rules[1].level, Level::Request);
        assert!(policy.rules[1].verbs.is_empty());
    }

    #[test]
    fn what_is_refused() {
        for (text, message) in [
            ("rules: []", "loaded illegal policy with 0 rules"),
            ("rules: [{}]", "rules[0].level: Required value"),
            (
                "rules: [{level: All}]",
                "rules[0].level: Unsupported value: \"All\": supported values: \"None\", \"Metadata\", \"Request\", \
                 \"RequestResponse\"",
            ),
            (
                "rules: [{level: None, nonResourceURLs: [healthz]}]",
                "rules[0].nonResourceURLs[0]: Invalid value: \"healthz\": non-resource URL rules must begin with a '/' \
                 character",
            ),
            (
                "rules: [{level: None, nonResourceURLs: ['/a*b']}]",
                "rules[0].nonResourceURLs[0]: Invalid value: \"/a*b\": non-resource URL wildcards '*' must be the \
                 final character of the rule",
            ),
            (
                "rules: [{level: None, nonResourceURLs: ['/a'], namespaces: [x]}]",
                "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: rules cannot apply to both regular resources and \
                 non-resource URLs",
            ),
            (
                "rules: [{level: None, resources: [{resourceNames: [x]}]}]",
                "rules[0].resources.resourceNames: Invalid value: [\"x\"]: using resourceNames requires at least one \
                 resource",
            ),
            (
                "rules: [{level: None, omitStages: [Done]}]",
                "rules[0].omitStages[0]: Invalid value: \"Done\": allowed stages are \
                 RequestReceived,ResponseStarted,ResponseComplete,Panic",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
        }
        let group = parse("rules: [{level: None, resources: [{group: apps/v1}]}]").unwrap_err().to_string();
        assert!(group.starts_with("rules[0].resources.group: Invalid value: \"apps/v1\": "), "{group}");
        let other = Policy::parse(b"apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]");
        let other = other.unwrap_err().to_string();
        assert_eq!(other, "unknown group version field \"audit.k8s.io/v1beta1, Kind=Policy\" in policy");
    }

    #[test]
    fn unknown_fields_are_reported_and_ignored() {
        let policy =
            parse("rules: [{level: None, users: [a], user: b, resources: [{groups: x}]}]\nlevel: None").unwrap();
        assert_eq!(policy.unknown_fields.len(), 3, "{:?}", policy.unknown_fields);
        assert!(policy.unknown_fields.contains(&"unknown field \"rules[0].resources[0].groups\"".to_owned()));
    }
}
