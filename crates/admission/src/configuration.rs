//! `--admission-control-config-file`: an `AdmissionConfiguration` with a section for each plugin, inline or in a
//! separate file (upstream `apiserver/pkg/admission/config.go`). Anything that cannot be read is an error at startup.
#![allow(clippy::disallowed_methods, reason = "blocking: at the start alone")]

use std::collections::BTreeMap;
use std::path::Path;

use kelson_codec::strict::{self, Fields, Shape};
use kelson_meta::tree::path::{at, list, text};
use serde_json::Value;

/// Sections by the name of their plugin.
pub type Parts = BTreeMap<String, Value>;

const FILE: Part =
    Part { group: "apiserver.config.k8s.io", versions: &["v1", "v1alpha1"], kinds: &["AdmissionConfiguration"] };
/// The API version of the file from before its group had versions.
const OLD_API_VERSION: &str = "apiserver.k8s.io/v1alpha1";
/// The configuration of one plugin given in place of an `AdmissionConfiguration`, by a field that only it has.
const WHOLE_FILES: [(&str, &str); 2] =
    [("imagePolicy", "ImagePolicyWebhook"), ("podNodeSelectorPluginConfig", "PodNodeSelector")];

/// The expected form of a plugin's section.
pub struct Part<'a> {
    /// Its API group.
    pub group: &'a str,
    /// The supported versions of the group, which all have the same fields.
    pub versions: &'a [&'a str],
    /// Its kind, and earlier names of the kind.
    pub kinds: &'a [&'a str],
}

impl Part<'_> {
    /// Checks that a section is of this kind and has no unknown fields at any level. An absent section is valid.
    ///
    /// # Errors
    /// The first problem, in one line.
    pub fn check(&self, part: &Value, fields: Fields) -> Result<(), String> {
        if part.is_null() {
            return Ok(());
        }
        let (api_version, kind) = (text(part, &["apiVersion"]), text(part, &["kind"]));
        if !kind.is_empty() && !self.kinds.contains(&kind) {
            return Err(format!("unexpected kind {kind:?}, want {}", self.kinds.join(" or ")));
        }
        let version = api_version.strip_prefix(self.group).and_then(|v| v.strip_prefix('/'));
        if !api_version.is_empty() && !version.is_some_and(|v| self.versions.contains(&v)) {
            let known: Vec<String> = self.versions.iter().map(|v| format!("{}/{v}", self.group)).collect();
            return Err(format!("unexpected apiVersion {api_version:?}, want {}", known.join(" or ")));
        }
        let mut own = part.clone();
        if let Some(object) = own.as_object_mut() {
            object.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
        }
        strict::check(&own, fields)
    }
}

/// The fields of the file itself.
const FILE_FIELDS: Fields = &[(
    "plugins",
    Shape::List(&Shape::Object(&[("name", Shape::Text), ("path", Shape::Text), ("configuration", Shape::Any)])),
)];

/// Checks that an object has no other fields than these.
///
/// # Errors
/// The message of strict decoding.
pub fn only(object: &Value, path: &str, fields: &[&str]) -> Result<(), String> {
    let Some(map) = object.as_object() else { return Err(format!("{path}: expected an object")) };
    match map.keys().find(|k| !fields.contains(&k.as_str())) {
        Some(unknown) => Err(format!("strict decoding error: unknown field \"{path}{unknown}\"")),
        None => Ok(()),
    }
}

/// Reads the file and the files it references; relative paths are relative to its directory. Blocks, so only for
/// startup.
///
/// # Errors
/// The first problem, in one line with the file's path.
pub fn read(path: &Path) -> Result<Parts, String> {
    let unreadable = |e| format!("unable to read admission control configuration from {path:?} [{e}]");
    let file = document(&std::fs::read(path).map_err(unreadable)?).map_err(|e| format!("{}: {e}", path.display()))?;
    parts(&file, path.parent().unwrap_or(Path::new("."))).map_err(|e| format!("{}: {e}", path.display()))
}

fn document(bytes: &[u8]) -> Result<Value, String> {
    let (value, duplicates) = kelson_codec::yaml::to_value(bytes).map_err(|e| e.to_string())?;
    match duplicates.first() {
        Some(duplicate) => Err(format!("strict decoding error: {duplicate}")),
        None => Ok(value),
    }
}

fn parts(file: &Value, base: &Path) -> Result<Parts, String> {
    if text(file, &["apiVersion"]).is_empty() || text(file, &["kind"]).is_empty() {
        let of = WHOLE_FILES.iter().find(|(field, _)| file.get(field).is_some());
        let (_, plugin) = of.ok_or("kind and apiVersion must be set: want an AdmissionConfiguration")?;
        return Ok(Parts::from([((*plugin).to_owned(), file.clone())]));
    }
    if text(file, &["apiVersion"]) == OLD_API_VERSION {
        Part { group: "apiserver.k8s.io", versions: &["v1alpha1"], ..FILE }.check(file, FILE_FIELDS)?;
    } else {
        FILE.check(file, FILE_FIELDS)?;
    }
    let mut parts = Parts::new();
    for (i, plugin) in list(file, &["plugins"]).iter().enumerate() {
        let name = text(plugin, &["name"]);
        if name.is_empty() {
            return Err(format!("plugins[{i}].name: Required value"));
        }
        let part = part(plugin, base).map_err(|e| format!("plugin {name:?}: {e}"))?;
        if parts.insert(name.to_owned(), part).is_some() {
            return Err(format!("plugins[{i}].name: Duplicate value: {name:?}"));
        }
    }
    Ok(parts)
}

/// A section written inline takes precedence over the file it references.
fn part(plugin: &Value, base: &Path) -> Result<Value, String> {
    let inline = at(plugin, &["configuration"]);
    match text(plugin, &["path"]) {
        _ if !inline.is_null() => Ok(inline.clone()),
        "" => Ok(Value::Null),
        path => {
            let path = base.join(path);
            let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            document(&bytes).map_err(|e| format!("{}: {e}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";

    fn read_text(text: &str) -> Result<Parts, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("quota.yaml"), "limitedResources: []\n").unwrap();
        let file = dir.path().join("admission.yaml");
        std::fs::write(&file, text).unwrap();
        read(&file)
    }

    #[test]
    fn parts_are_inline_or_in_files() {
        let text = format!(
            "{HEAD}plugins:\n- name: ResourceQuota\n  path: quota.yaml\n- {{name: A, configuration: {{x: 1}}}}\n- {{name: B}}\n"
        );
        let want = json!({"A": {"x": 1}, "B": null, "ResourceQuota": {"limitedResources": []}});
        assert_eq!(serde_json::to_value(read_text(&text).unwrap()).unwrap(), want);
        assert_eq!(
            read_text("apiVersion: apiserver.k8s.io/v1alpha1\nkind: AdmissionConfiguration\n").unwrap(),
            Parts::new()
        );
        let legacy = read_text("podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b}\n").unwrap();
        assert_eq!(legacy.keys().collect::<Vec<_>>(), ["PodNodeSelector"]);
        assert!(read_text("imagePolicy: {}\n").unwrap().contains_key("ImagePolicyWebhook"));
    }

    #[test]
    fn faults_are_one_clear_line() {
        for (text, want) in [
            ("{}".to_owned(), "kind and apiVersion must be set"),
            ("a: [".to_owned(), "admission.yaml: "),
            (format!("{HEAD}plugin: []"), "unknown field \"plugin\""),
            (format!("{HEAD}plugins: [{{name: A, config: {{}}}}]"), "unknown field \"plugins[0].config\""),
            (format!("{HEAD}plugins: [{{path: x}}]"), "plugins[0].name: Required value"),
            (format!("{HEAD}plugins: [{{name: A}}, {{name: A}}]"), "plugins[1].name: Duplicate value: \"A\""),
            (format!("{HEAD}plugins: [{{name: A, path: none.yaml}}]"), "plugin \"A\": "),
            (format!("{HEAD}plugins: []\nplugins: []"), "strict decoding error"),
            (
                "apiVersion: apiserver.config.k8s.io/v2\nkind: AdmissionConfiguration".to_owned(),
                "unexpected apiVersion",
            ),
            ("apiVersion: v1\nkind: Pod".to_owned(), "unexpected kind \"Pod\""),
        ] {
            let why = read_text(&text).unwrap_err();
            assert!(why.contains(want) && !why.contains('\n'), "{why}");
        }
        let why = read(Path::new("/nowhere/x")).unwrap_err();
        assert!(why.starts_with("unable to read admission control configuration from \"/nowhere/x\""), "{why}");
    }
}
