//! The objects of a manifest file: YAML or JSON documents, with lists expanded. Pure.
use std::sync::Arc;

use kelson_codec::yaml;
use kelson_controllers::{DocumentError, ManifestError, MissingField};
use serde_json::Value;

/// The maximum size of a manifest file in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// Reads the objects of a file in their order.
///
/// # Errors
/// What is wrong with the first document that is no object, with its line.
pub fn objects(text: &str) -> Result<Vec<Arc<Value>>, ManifestError> {
    let mut all = Vec::new();
    for (line, document) in documents(text) {
        let decoded = yaml::to_value(document.as_bytes());
        let (value, duplicates) = decoded.map_err(|e| ManifestError::Syntax(e.to_string()))?;
        if let Some(first) = duplicates.first() {
            return Err(ManifestError::DuplicateKey(first.clone()));
        }
        let added = match value {
            Value::Null => Ok(()),
            Value::Object(_) => add(value, &mut all).map_err(DocumentError::from),
            _ => Err(DocumentError::NoObject),
        };
        added.map_err(|fault| ManifestError::Document { line, fault })?;
    }
    Ok(all)
}

fn add(mut value: Value, all: &mut Vec<Arc<Value>>) -> Result<(), MissingField> {
    let Some(kind) = value["kind"].as_str() else { return Err(MissingField("kind")) };
    if !value["apiVersion"].is_string() {
        return Err(MissingField("apiVersion"));
    }
    if kind.ends_with("List") && value["items"].is_array() {
        let items = value["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        return items.into_iter().try_for_each(|item| add(item, all));
    }
    all.push(Arc::new(value));
    Ok(())
}

/// Splits a file into documents with the line of each. Each is preceded by empty lines for those before it, so that
/// errors have line numbers of the file.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut all = vec![(1, String::new())];
    for (at, line) in text.lines().enumerate() {
        let rest = line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if rest.is_some() {
            all.push((at + 1, "\n".repeat(at)));
        }
        if let Some((_, document)) = all.last_mut() {
            document.push_str(rest.unwrap_or(line));
            document.push('\n');
        }
    }
    all.retain(|(_, document)| !document.trim().is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, ManifestError> {
        let name = |object: &Arc<Value>| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Ok(objects(text)?.iter().map(name).collect())
    }

    fn map(name: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
    }

    #[test]
    fn documents_lists_and_json() {
        let several = format!("# first\n---\n{}---\n\n--- # third\n{}---\n# nothing\n", map("a"), map("b"));
        assert_eq!(names(&several).unwrap(), ["a", "b"]);
        let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: c}}\n- {apiVersion: v1, kind: Pod, metadata: {name: d}}\n";
        assert_eq!(names(list).unwrap(), ["c", "d"]);
        let json = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "e"}}"#;
        assert_eq!(names(json).unwrap(), ["e"]);
        assert_eq!(names("").unwrap(), [""; 0]);
    }

    #[test]
    fn errors_name_the_line_of_the_file() {
        for (text, want) in [
            (format!("{}---\na: [1\n", map("a")), "line"),
            (format!("{}---\nkind: Pod\n", map("a")), "document at line 4: apiVersion: expected a string"),
            (format!("{}---\n- 1\n", map("a")), "document at line 4: expected an object"),
            (format!("{}---\na: 1\na: 2\n", map("a")), "line 6: key \"a\" already set in map"),
        ] {
            let why = names(&text).unwrap_err().to_string();
            assert!(why.contains(want), "{text:?}: {why}");
        }
    }
}
