//! Files as kwok reads them with `--config`: documents one after the other, stages among them, and `KwokConfiguration`, which sets
//! what flags do not. Documents of other kinds are for others.
use kelson_codec::yaml;
use serde::Deserialize;

use crate::document::{API_VERSION, Document};
use crate::error::StageError;

/// What a file says.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// Its stages, in order.
    pub stages: Vec<Document>,
    /// `options` of its `KwokConfiguration`, if it has one.
    pub settings: Option<Settings>,
}

/// `options` of a `KwokConfiguration`, as far as they have an effect here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// Where addresses of pods come from whose node has no range.
    pub cidr: Option<String>,
    /// Address of nodes that have none.
    #[serde(rename = "nodeIP")]
    pub node_ip: Option<String>,
    /// Name that nodes are reached by.
    pub node_name: Option<String>,
    /// Port of the kubelets that nobody runs.
    pub node_port: Option<u16>,
    /// Whether all nodes are driven.
    pub manage_all_nodes: Option<bool>,
    /// The one node that is driven.
    pub manage_single_node: Option<String>,
    /// Nodes with these annotations are.
    pub manage_nodes_with_annotation_selector: Option<String>,
    /// Nodes with these labels are.
    pub manage_nodes_with_label_selector: Option<String>,
    /// How long others believe the lease of a node; 0: nodes have none.
    pub node_lease_duration_seconds: Option<u32>,
    /// Kinds that are read from the API instead of a file.
    #[serde(rename = "enableCRDs")]
    pub enable_crds: Option<Vec<String>>,
    /// Where health is told.
    pub server_address: Option<String>,
}

/// Reads a file of YAML documents.
///
/// # Errors
/// Where a document is no YAML, or a stage has fields of the wrong type.
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

/// The documents of a text, each with its lines.
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
