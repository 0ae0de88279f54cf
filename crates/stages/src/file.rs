//! Files in the format of kwok's `--config`: YAML documents with stages and a `KwokConfiguration`, which sets defaults
//! for flags. Documents of other kinds are ignored.
use kelson_codec::yaml;
use serde::Deserialize;

use crate::document::{API_VERSION, Document};
use crate::error::StageError;

/// The content of a file.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// The stages in the order of the file.
    pub stages: Vec<Document>,
    /// The `options` of the `KwokConfiguration`, if the file has one.
    pub settings: Option<Settings>,
}

/// The supported `options` of a `KwokConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// The range for addresses of pods on nodes without a pod CIDR.
    pub cidr: Option<String>,
    /// The address of nodes that have none.
    #[serde(rename = "nodeIP")]
    pub node_ip: Option<String>,
    /// The host name of nodes.
    pub node_name: Option<String>,
    /// The port of the simulated kubelets.
    pub node_port: Option<u16>,
    /// Whether all nodes are managed.
    pub manage_all_nodes: Option<bool>,
    /// The name of the only managed node.
    pub manage_single_node: Option<String>,
    /// A selector for the annotations of managed nodes.
    pub manage_nodes_with_annotation_selector: Option<String>,
    /// A selector for the labels of managed nodes.
    pub manage_nodes_with_label_selector: Option<String>,
    /// The duration of a node's lease in seconds. With 0, nodes have no lease.
    pub node_lease_duration_seconds: Option<u32>,
    /// The kinds whose stages are read from the API instead of a file.
    #[serde(rename = "enableCRDs")]
    pub enable_crds: Option<Vec<String>>,
    /// The address of the health endpoint.
    pub server_address: Option<String>,
}

/// Parses a file of YAML documents.
///
/// # Errors
/// Fails when a document is not valid YAML, or when a field of a stage has the wrong type.
pub fn read(text: &str) -> Result<File, StageError> {
    let mut file = File::default();
    for (number, part) in parts(text).into_iter().enumerate() {
        let place = format!("document {}", number + 1);
        let (value, _) = yaml::to_value(part.as_bytes()).map_err(|e| StageError::new(&place, e))?;
        let wrong = |e: serde_json::Error| StageError::new(&place, e);
        let kind = value["kind"].as_str().unwrap_or_default();
        match (value["apiVersion"].as_str().unwrap_or_default(), kind) {
            (API_VERSION, "Stage") => file.stages.push(Document::deserialize(&value).map_err(wrong)?),
            (_, "KwokConfiguration") => {
                let options = value.get("options").filter(|o| !o.is_null());
                file.settings = Some(options.map_or(Ok(Settings::default()), Settings::deserialize).map_err(wrong)?);
            }
            _ => {}
        }
    }
    Ok(file)
}

/// Splits a string into YAML documents.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line == "---" || line.starts_with("--- ") {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    let said = |part: &String| part.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#'));
    parts.retain(said);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        let text = "# head\n---\napiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\noptions:\n  cidr: 10.0.0.1/24\n  \
            manageAllNodes: true\n  enableCRDs: [Stage]\n---\napiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata:\n  name: a\n\
            spec:\n  resourceRef:\n    kind: Pod\n---\nkind: KwokctlConfiguration\n---\n";
        let file = read(text).unwrap();
        assert_eq!(file.stages.len(), 1);
        assert_eq!(file.stages[0].metadata.name, "a");
        assert_eq!(file.stages[0].spec.resource_ref.api_version, "v1");
        let settings = file.settings.unwrap();
        assert_eq!((settings.cidr.as_deref(), settings.manage_all_nodes), (Some("10.0.0.1/24"), Some(true)));
        assert_eq!(settings.enable_crds, Some(vec!["Stage".to_owned()]));
        let wrong = "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nspec:\n  weight: heavy\n";
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.starts_with("document 1: invalid type: string \"heavy\""), "{error}");
        assert!(read("a: [").unwrap_err().to_string().starts_with("document 1: "), "no YAML");
        assert!(read("").unwrap().stages.is_empty());
    }
}
