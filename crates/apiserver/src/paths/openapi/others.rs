//! OpenAPI of paths that are not resources: discovery, version, and the token issuer's documents. Each has its own version 3 document
//! with the path's name.
use serde_json::{Map, Value, json};

use super::operation::{Operation, capital, group_word, transfer};
use super::paths::item;
use super::schema::Collector;
use crate::catalog::{Catalog, ObjectSchema};

const JSON: &str = "application/json";
/// Media types of discovery.
const DISCOVERY: [&str; 3] = [JSON, "application/yaml", "application/vnd.kubernetes.protobuf"];
const NO_SUCH_FORM: &[&str] = &[];

/// A path that is not a resource.
struct Other {
    text: String,
    id: String,
    tag: String,
    consumes: &'static [&'static str],
    produces: &'static [&'static str],
    /// A kind of `meta.k8s.io`, `Info`, or empty for a string.
    answer: &'static str,
}

impl Other {
    fn discovery(text: &str, id: String, tag: String, answer: &'static str) -> Self {
        Self { text: text.into(), id, tag, consumes: &DISCOVERY, produces: &DISCOVERY, answer }
    }
    fn document(text: &str, id: &str, tag: &str, produces: &'static [&'static str]) -> Self {
        Self { text: text.into(), id: id.into(), tag: tag.into(), consumes: NO_SUCH_FORM, produces, answer: "" }
    }
    fn write(self, collector: &mut Collector) -> Value {
        let schema = match self.answer {
            "" => json!({"type": "string"}),
            "Info" => collector.refer_version_info(),
            kind => {
                let gvk = kelson_meta::Gvk::new("", "v1", kind);
                collector.refer_kind(&ObjectSchema::meta(kind), &gvk).unwrap_or_default()
            }
        };
        let mut facts = Map::new();
        facts.insert("description".into(), self.text.into());
        facts.insert("operationId".into(), self.id.into());
        facts.insert("tags".into(), json!([self.tag]));
        let answers = [("200", "OK", schema)].into_iter();
        transfer(&mut facts, self.consumes, self.produces, None, answers, collector);
        item(vec![Operation { method: "get", facts, parameters: Vec::new(), body: None }], collector)
    }
}

/// Names of documents that are not groups; also their paths.
const FIXED: [&str; 5] = [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"];

/// Whether the group is built in; others have no document of the group.
fn is_builtin(group: &str) -> bool {
    kelson_schema::resource::group_versions().iter().any(|gv| gv.group == group)
}

/// The path item of a document; `None` for a document that is not in this file.
pub fn of(name: &str, collector: &mut Collector) -> Option<Map<String, Value>> {
    let other = match name {
        "api" => {
            Other::discovery("get available API versions", "getCoreAPIVersions".into(), "core".into(), "APIVersions")
        }
        "apis" => {
            Other::discovery("get available API versions", "getAPIVersions".into(), "apis".into(), "APIGroupList")
        }
        "version" => Other {
            consumes: &[JSON],
            answer: "Info",
            ..Other::document("get the version information for this server", "getCodeVersion", "version", &[JSON])
        },
        ".well-known/openid-configuration" => Other::document(
            "get the OpenID configuration of the service account issuer",
            "getServiceAccountIssuerOpenIDConfiguration",
            "WellKnown",
            &[JSON],
        ),
        "openid/v1/jwks" => Other::document(
            "get the keys that verify tokens of the service account issuer",
            "getServiceAccountIssuerOpenIDKeyset",
            "openid",
            &["application/jwk-set+json"],
        ),
        _ => {
            let group = name.strip_prefix("apis/").filter(|g| !g.contains('/') && is_builtin(g))?;
            let word = group_word(group);
            let id = format!("get{}APIGroup", capital(&word));
            Other::discovery("get information of a group", id, word, "APIGroup")
        }
    };
    let mut paths = Map::new();
    paths.insert(format!("/{name}/"), other.write(collector));
    Some(paths)
}

/// The path of a built-in group version, which lists its resources.
pub fn group_version(group: &str, version: &str, collector: &mut Collector) -> (String, Value) {
    let word = group_word(group);
    let id = format!("get{}{}APIResources", capital(&word), capital(version));
    let root = if group.is_empty() { format!("/api/{version}/") } else { format!("/apis/{group}/{version}/") };
    let other = Other::discovery("get available resources", id, format!("{word}_{version}"), "APIResourceList");
    (root, other.write(collector))
}

/// The names of the current documents.
pub fn served_names(catalog: &Catalog) -> Vec<String> {
    let groups = catalog.groups().into_iter().map(|(group, _)| group).filter(|g| !g.is_empty() && is_builtin(g));
    FIXED.iter().map(|name| (*name).to_owned()).chain(groups.map(|g| format!("apis/{g}"))).collect()
}
