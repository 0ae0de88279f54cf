//! `PodSecurityConfiguration`: the default levels and the exemptions.
use kelson_codec::strict::{Fields, Shape};
use kelson_meta::tree::path::{at, list};
use kelson_meta::{FieldErrors, FieldPath, is_dns1123_label, is_dns1123_subdomain};
use serde_json::Value;

use super::level::Demands;
use crate::configuration::Part;

/// The plugin's section of the configuration, decoded.
pub(super) struct SecurityConfiguration {
    pub defaults: Demands,
    users: Vec<String>,
    namespaces: Vec<String>,
    classes: Vec<String>,
}

const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const FIELDS: Fields = &[
    (
        "defaults",
        Shape::Object(&[
            ("enforce", Shape::Text),
            ("enforce-version", Shape::Text),
            ("audit", Shape::Text),
            ("audit-version", Shape::Text),
            ("warn", Shape::Text),
            ("warn-version", Shape::Text),
        ]),
    ),
    (
        "exemptions",
        Shape::Object(&[
            ("usernames", Shape::List(&Shape::Text)),
            ("namespaces", Shape::List(&Shape::Text)),
            ("runtimeClasses", Shape::List(&Shape::Text)),
        ]),
    ),
];

impl SecurityConfiguration {
    pub fn read(configuration: &Value) -> Result<Self, String> {
        Part {
            group: "pod-security.admission.config.k8s.io",
            versions: &VERSIONS,
            kinds: &["PodSecurityConfiguration"],
        }
        .check(configuration, FIELDS)?;
        let mut faults = FieldErrors::new();
        let defaults = Demands::of_defaults(at(configuration, &["defaults"]), &mut faults);
        let mut names = |field: &str, check: &dyn Fn(&str) -> Result<(), String>| {
            let path = FieldPath::new("exemptions").child(field);
            let mut names: Vec<String> = Vec::new();
            for (i, name) in list(configuration, &["exemptions", field]).iter().enumerate() {
                let name = name.as_str().unwrap_or_default();
                match check(name) {
                    Err(why) => faults.invalid(&path.index(i), name, why),
                    Ok(()) if names.iter().any(|n| n == name) => faults.duplicate(&path.index(i), name),
                    Ok(()) => names.push(name.to_owned()),
                }
            }
            names
        };
        let label = |n: &str| is_dns1123_label(n).map_err(|e| e.join(", "));
        let subdomain = |n: &str| is_dns1123_subdomain(n).map_err(|e| e.join(", "));
        let given = |n: &str| if n.is_empty() { Err("username must not be empty".to_owned()) } else { Ok(()) };
        let read = Self {
            defaults,
            namespaces: names("namespaces", &label),
            classes: names("runtimeClasses", &subdomain),
            users: names("usernames", &given),
        };
        if faults.is_empty() { Ok(read) } else { Err(faults.to_string()) }
    }

    pub fn exempts_namespace(&self, name: &str) -> bool {
        self.namespaces.iter().any(|n| n == name)
    }
    pub fn exempts_user(&self, name: &str) -> bool {
        self.users.iter().any(|n| n == name)
    }
    pub fn exempts_class(&self, name: &str) -> bool {
        self.classes.iter().any(|n| n == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn faults_are_named_by_their_fields() {
        for (configuration, want) in [
            (json!({"defaults": {"enforce": "x"}}), "defaults.enforce: Invalid value: \"x\""),
            (json!({"defaults": {"warn-version": "1.3"}}), "defaults.warn-version: Invalid value: \"1.3\""),
            (json!({"exemptions": {"namespaces": ["a", "a"]}}), "exemptions.namespaces[1]: Duplicate value: \"a\""),
            (json!({"exemptions": {"namespaces": ["A"]}}), "exemptions.namespaces[0]: Invalid value: \"A\""),
            (json!({"exemptions": {"usernames": [""]}}), "username must not be empty"),
            (json!({"exemptions": {"runtimeClasses": ["x_y"]}}), "exemptions.runtimeClasses[0]: Invalid value"),
            (json!({"kind": "Other"}), "Other"),
            (json!({"default": {}}), "unknown field \"default\""),
            (json!({"defaults": {"Enforce": "baseline"}}), "unknown field \"defaults.Enforce\""),
            (json!({"defaults": {"enforceVersion": "v1.30"}}), "unknown field \"defaults.enforceVersion\""),
            (json!({"defaults": {"enforce": ["baseline"]}}), "defaults.enforce of type string"),
            (json!({"exemptions": {"namespace": ["x"]}}), "unknown field \"exemptions.namespace\""),
            (json!({"exemptions": {"namespaces": "x"}}), "exemptions.namespaces of type slice"),
        ] {
            let why = SecurityConfiguration::read(&configuration).err().unwrap();
            assert!(why.contains(want), "{why}");
        }
    }
}
