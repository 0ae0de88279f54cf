//! The file as it is written: `apiserver.config.k8s.io/v1` `EncryptionConfiguration`, and the older `v1` `EncryptionConfig`.

use serde::Deserialize;
use serde_json::Value;
use zeroize::{Zeroize as _, Zeroizing};

/// The whole file; either version has these members and no others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Document {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    pub resources: Option<Vec<ResourceEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourceEntry {
    pub resources: Option<Vec<String>>,
    pub providers: Option<Vec<ProviderEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderEntry {
    pub aesgcm: Option<Keys>,
    pub aescbc: Option<Keys>,
    pub secretbox: Option<Keys>,
    pub identity: Option<Identity>,
    pub kms: Option<KmsEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    pub keys: Option<Vec<KeyEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyEntry {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub secret: String,
}

impl Drop for KeyEntry {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KmsEntry {
    #[serde(default, rename = "apiVersion")]
    pub api_version: String,
    #[serde(default)]
    pub name: String,
    pub cachesize: Option<i64>,
    #[serde(default)]
    pub endpoint: String,
    pub timeout: Option<String>,
}

/// Decodes the file; strict, as the reference is. What is read on the way is wiped.
pub(super) fn decode(bytes: &[u8]) -> Result<Document, String> {
    let read = kelson_codec::yaml::to_value(bytes);
    let (mut tree, duplicates) = read.map_err(|_| "the file must be YAML or JSON".to_owned())?;
    // Serde repeats values in its words where it wanted another type, and a value may be a key.
    let document = match duplicates.first() {
        None => Document::deserialize(&tree).map_err(|e| without_values(Zeroizing::new(e.to_string()))),
        Some(_) => Err("duplicate key".to_owned()),
    };
    wipe(&mut tree);
    let document = document?;
    match (document.api_version.as_str(), document.kind.as_str()) {
        ("apiserver.config.k8s.io/v1", "EncryptionConfiguration") | ("v1", "EncryptionConfig") => Ok(document),
        (version, kind) => Err(format!("no kind {kind:?} is registered for version {version:?}")),
    }
}

/// Returns a message of serde without the strings that it quotes.
fn without_values(message: Zeroizing<String>) -> String {
    let odd = message.split('"').enumerate().filter(|(i, _)| i % 2 == 0).map(|(_, part)| part);
    odd.collect::<Vec<_>>().join("...")
}

fn wipe(tree: &mut Value) {
    match tree {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(members) => members.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
