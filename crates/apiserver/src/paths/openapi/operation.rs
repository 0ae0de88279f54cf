//! One operation: its description, ID, parameters, body and responses. Names follow upstream's `endpoints/installer.go` and, for custom
//! resources, `pkg/controller/openapi/builder`, because generated clients are named after them.
use kelson_meta::Gvk;
use serde_json::{Map, Value, json};

use super::parameters::Parameter;
use super::schema::Collector;
use super::version::OpenApiVersion;
use crate::catalog::{ObjectSchema, Served, Sub};

/// The kind of request that an operation describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// GET of one object.
    Get,
    /// GET of a collection.
    List,
    /// POST of one object to its collection.
    Create,
    /// PUT of one object.
    Update,
    /// PATCH of one object, in any of the patch types.
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// GET of the deprecated path that watches one object.
    Watch,
    /// GET of the deprecated path that watches a collection.
    WatchList,
    /// Any method, forwarded to a backend.
    Connect(&'static str),
}

impl Verb {
    /// The verb in discovery.
    pub fn listed(self) -> &'static str {
        match self {
            Self::Get | Self::Connect(_) => "get",
            Self::List => "list",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Watch | Self::WatchList => "watch",
        }
    }
    /// The method in lower case.
    pub fn method(self) -> &'static str {
        match self {
            Self::Get | Self::List | Self::Watch | Self::WatchList => "get",
            Self::Create => "post",
            Self::Update => "put",
            Self::Patch => "patch",
            Self::Delete | Self::DeleteCollection => "delete",
            Self::Connect(method) => method,
        }
    }
    fn action(self) -> &'static str {
        match self {
            Self::Create => "post",
            Self::Update => "put",
            Self::Watch => "watch",
            Self::WatchList => "watchlist",
            Self::Connect(_) => "connect",
            other => other.listed(),
        }
    }
}

/// The resource or subresource of an operation.
pub struct OperationTarget<'a> {
    /// The resource in the path.
    pub served: &'a Served,
    /// The subresource at the end of the path.
    pub sub: Option<&'a Sub>,
    /// Whether the path contains a namespace.
    pub in_namespace: bool,
    /// `ForAllNamespaces` or `WithPath`, the end of the operation's ID.
    pub suffix: &'static str,
}

/// An operation and its parameters. Parameters that all operations of a path have are moved to the path.
pub struct Operation {
    /// The method in lower case.
    pub method: &'static str,
    /// All other members.
    pub facts: Map<String, Value>,
    /// Path and query parameters.
    pub parameters: Vec<Parameter>,
    /// The body, which version 2 documents describe as a parameter.
    pub body: Option<Value>,
}

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const STREAMS: [&str; 2] = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Custom resources have no strategic merge patch.
const PATCHES_OF_CUSTOM: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

impl OperationTarget<'_> {
    fn custom(&self) -> bool {
        !matches!(self.served.schema, ObjectSchema::Builtin(_))
    }
    fn kind(&self) -> &str {
        &self.served.gvk.kind
    }
    fn is_log(&self) -> bool {
        self.sub.is_some_and(|s| s.name == "log")
    }
    /// The type with the query parameters of a connection.
    fn connect_options(&self) -> Option<String> {
        let sub = self.sub?;
        let word = match sub.name.as_str() {
            "portforward" => "PortForward".to_owned(),
            other => capital(other),
        };
        Some(format!("{}{word}Options", self.kind()))
    }
    fn gvk(&self, verb: Verb) -> Gvk {
        match (verb, self.sub) {
            (Verb::Connect(_), Some(_)) => {
                Gvk::new(&self.served.gvk.group, &self.served.gvk.version, self.connect_options().unwrap_or_default())
            }
            (_, Some(_)) if self.custom() => self.served.gvk.clone(),
            (_, Some(sub)) => sub.gvk.clone(),
            _ => self.served.gvk.clone(),
        }
    }
    fn watches(&self) -> bool {
        self.served.has_verb("watch")
    }

    /// The description of the operation.
    fn sentence(&self, verb: Verb) -> String {
        let kind = self.kind();
        let of = self.sub.map(|s| format!("{} of ", s.name)).unwrap_or_default();
        let article = article(kind);
        match verb {
            Verb::Get => format!("read {of}the specified {kind}"),
            Verb::List if self.watches() && !self.custom() => format!("list or watch objects of kind {kind}"),
            Verb::List => format!("list objects of kind {kind}"),
            Verb::Create => format!("create {of}{article}{kind}"),
            Verb::Update => format!("replace {of}the specified {kind}"),
            Verb::Patch => format!("partially update {of}the specified {kind}"),
            Verb::Delete => format!("delete {of}{article}{kind}"),
            Verb::DeleteCollection => format!("delete collection of {kind}"),
            Verb::Watch => format!(
                "watch changes to an object of kind {kind}. deprecated: use the 'watch' parameter with a list operation \
                 instead, filtered to a single item with the 'fieldSelector' parameter."
            ),
            Verb::WatchList => format!(
                "watch individual changes to a list of {kind}. deprecated: use the 'watch' parameter with a list operation \
                 instead."
            ),
            Verb::Connect(method) => format!("connect {} requests to {of}{kind}", method.to_uppercase()),
        }
    }

    /// The operation's ID: action, group version and target.
    fn id(&self, verb: Verb) -> String {
        let (action, method) = match verb {
            Verb::Get => ("read", String::new()),
            Verb::List => ("list", String::new()),
            Verb::Create => ("create", String::new()),
            Verb::Update => ("replace", String::new()),
            Verb::Patch => ("patch", String::new()),
            Verb::Delete => ("delete", String::new()),
            Verb::DeleteCollection => ("delete", "Collection".to_owned()),
            Verb::Watch | Verb::WatchList => ("watch", String::new()),
            Verb::Connect(method) => ("connect", capital(method)),
        };
        let scope = if self.in_namespace { "Namespaced" } else { "" };
        let sub = self.sub.map(|s| capital(&s.name)).unwrap_or_default();
        let list = if verb == Verb::WatchList { "List" } else { "" };
        let (group, version) = (group_word(&self.served.gvr.group), capital(&self.served.gvr.version));
        format!("{action}{}{version}{method}{scope}{}{sub}{list}{}", capital(&group), self.kind(), self.suffix)
    }

    fn parameters(&self, verb: Verb, collector: &Collector) -> Vec<Parameter> {
        let texts = collector.texts();
        let of = |kind: &str, without: &[&str]| Parameter::of_options(kind, without, texts);
        let mut all = match verb {
            Verb::Get if self.is_log() => of("PodLogOptions", &[]),
            Verb::Get if self.custom() => of("GetOptions", &[]),
            Verb::Get => Vec::new(),
            Verb::List | Verb::Watch | Verb::WatchList => of("ListOptions", &[]),
            Verb::Create => of("CreateOptions", &[]),
            Verb::Update => of("UpdateOptions", &[]),
            Verb::Patch => of("PatchOptions", &[]),
            Verb::Delete => of("DeleteOptions", &[]),
            Verb::DeleteCollection if self.custom() => of("ListOptions", &[]),
            Verb::DeleteCollection => {
                let mut all = of("DeleteOptions", &[]);
                all.extend(of("ListOptions", &["watch", "allowWatchBookmarks"]));
                all
            }
            Verb::Connect(_) => self.connect_options().map(|kind| of(&kind, &[])).unwrap_or_default(),
        };
        if !matches!(verb, Verb::Connect(_)) {
            all.push(Parameter::query("pretty", "string", PRETTY));
        }
        if self.in_namespace {
            all.push(Parameter::path("namespace", "Namespace of the object."));
        }
        all
    }

    fn produces(&self, verb: Verb) -> Vec<&'static str> {
        match verb {
            _ if self.custom() => vec![JSON, YAML],
            Verb::Connect(_) => vec!["*/*"],
            Verb::List | Verb::Watch | Verb::WatchList => vec![JSON, YAML, PROTOBUF, STREAMS[0], STREAMS[1]],
            _ if self.is_log() => vec!["text/plain", JSON, YAML, PROTOBUF],
            _ => vec![JSON, YAML, PROTOBUF],
        }
    }

    fn consumes(&self, verb: Verb) -> &'static [&'static str] {
        match (verb, self.custom()) {
            (Verb::Patch, true) => &PATCHES_OF_CUSTOM,
            (Verb::Patch, false) => &PATCHES,
            (_, true) => &[JSON, YAML],
            (_, false) => &["*/*"],
        }
    }

    /// The schema in requests and responses of the resource or subresource.
    fn own_schema(&self) -> (ObjectSchema, &Gvk) {
        match self.sub {
            None => (self.served.schema.clone(), &self.served.gvk),
            Some(s) if s.gvk == self.served.gvk => (self.served.schema.clone(), &self.served.gvk),
            Some(s) => (ObjectSchema::builtin(&s.gvk.group, &s.gvk.version, &s.gvk.kind), &s.gvk),
        }
    }

    fn request(&self, verb: Verb, collector: &mut Collector) -> Option<(Value, bool)> {
        let (own, gvk) = self.own_schema();
        let any = || json!({"type": "object"});
        match verb {
            Verb::Create | Verb::Update => Some((collector.refer_kind(&own, gvk).unwrap_or_else(any), true)),
            Verb::Patch => Some((collector.refer_patch().unwrap_or_else(any), true)),
            Verb::DeleteCollection if self.custom() => None,
            Verb::Delete | Verb::DeleteCollection => {
                collector.refer_kind(&ObjectSchema::meta("DeleteOptions"), gvk).map(|body| (body, false))
            }
            _ => None,
        }
    }

    fn answer(&self, verb: Verb, collector: &mut Collector) -> Value {
        let (own, gvk) = self.own_schema();
        let found = match (verb, &own) {
            (Verb::Connect(_), _) => None,
            (Verb::Get, _) if self.is_log() => None,
            (Verb::Watch | Verb::WatchList, _) => collector.refer_kind(&ObjectSchema::meta("WatchEvent"), gvk),
            (Verb::List, ObjectSchema::Dynamic(_)) => collector.refer_list(self.served),
            (Verb::List, _) => collector.refer_kind(&self.served.list_schema, gvk),
            (Verb::Delete, _) if self.served.options().delete_returns_object && !self.custom() => {
                collector.refer_kind(&own, gvk)
            }
            (Verb::Delete | Verb::DeleteCollection, _) => collector.refer_kind(&ObjectSchema::meta("Status"), gvk),
            _ => collector.refer_kind(&own, gvk),
        };
        found.unwrap_or_else(|| json!({"type": "string"}))
    }

    /// The status codes of success.
    fn codes(&self, verb: Verb) -> &'static [(&'static str, &'static str)] {
        const OK: (&str, &str) = ("200", "OK");
        const CREATED: (&str, &str) = ("201", "Created");
        const ACCEPTED: (&str, &str) = ("202", "Accepted");
        match verb {
            Verb::Create => &[OK, CREATED, ACCEPTED],
            Verb::Update => &[OK, CREATED],
            Verb::Patch if !self.custom() => &[OK, CREATED],
            Verb::Delete => &[OK, ACCEPTED],
            _ => &[OK],
        }
    }

    /// The operation of a verb at this path. Schemas that it refers to are added to `collector`.
    pub fn operation(&self, verb: Verb, collector: &mut Collector) -> Operation {
        let gvk = self.gvk(verb);
        let kind = json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
        let tag = format!("{}_{}", group_word(&self.served.gvr.group), identifier(&self.served.gvr.version));
        let mut facts = Map::new();
        facts.insert("description".into(), self.sentence(verb).into());
        facts.insert("operationId".into(), self.id(verb).into());
        facts.insert("tags".into(), json!([tag]));
        facts.insert("x-kubernetes-action".into(), verb.action().into());
        facts.insert("x-kubernetes-group-version-kind".into(), kind);
        let request = self.request(verb, collector);
        let answer = self.answer(verb, collector);
        let answers = self.codes(verb).iter().map(|(code, text)| (*code, *text, answer.clone()));
        let body = transfer(&mut facts, self.consumes(verb), &self.produces(verb), request, answers, collector);
        Operation { method: verb.method(), facts, parameters: self.parameters(verb, collector), body }
    }
}

const PRETTY: &str =
    "\"true\" indents the response. By default, only responses to curl, wget and browsers are indented.";

/// Writes media types, body and responses. In version 2, the body is returned, because it is a parameter there.
pub fn transfer<'a>(
    facts: &mut Map<String, Value>,
    consumes: &[&str],
    produces: &[&str],
    request: Option<(Value, bool)>,
    answers: impl Iterator<Item = (&'a str, &'a str, Value)>,
    collector: &mut Collector,
) -> Option<Value> {
    let v3 = collector.version() == OpenApiVersion::V3;
    let content = |media: &[&str], schema: &Value| -> Value {
        media.iter().map(|m| ((*m).to_owned(), json!({"schema": schema}))).collect::<Map<_, _>>().into()
    };
    let mut responses = Map::new();
    for (code, text, schema) in answers {
        let response = if v3 {
            json!({"description": text, "content": content(produces, &schema)})
        } else {
            json!({"description": text, "schema": schema})
        };
        responses.insert(code.to_owned(), response);
    }
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    facts.insert("responses".into(), responses.into());
    if v3 {
        if let Some((schema, required)) = request {
            let mut body = json!({"content": content(consumes, &schema)});
            if required {
                body["required"] = true.into();
            }
            facts.insert("requestBody".into(), body);
        }
        return None;
    }
    if !consumes.is_empty() {
        facts.insert("consumes".into(), json!(consumes));
    }
    facts.insert("produces".into(), json!(produces));
    facts.insert("schemes".into(), json!(["https"]));
    request.map(|(schema, required)| {
        let common = schema["$ref"].as_str().is_some_and(|r| r.starts_with("#/definitions/io.k8s.apimachinery."));
        let mut body = json!({"in": "body", "name": "body", "schema": schema});
        if required {
            body["required"] = true.into();
        }
        if common { collector.shared().body(body) } else { body }
    })
}

/// A group in operation IDs and tags: `rbacAuthorization` for `rbac.authorization.k8s.io`.
pub fn group_word(group: &str) -> String {
    if group.is_empty() { "core".to_owned() } else { identifier(group.strip_suffix(".k8s.io").unwrap_or(group)) }
}

/// Removes characters other than letters, digits and underscores, and capitalizes the letter after them.
fn identifier(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut raise = false;
    for (i, c) in text.chars().enumerate() {
        if c.is_alphabetic() || c == '_' || (i != 0 && c.is_numeric()) {
            if raise {
                out.extend(c.to_uppercase())
            } else {
                out.push(c)
            }
            raise = false;
        } else {
            raise = true;
        }
    }
    out
}

/// Capitalizes the first letter.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

/// `a ` or `an `; empty for a plural.
fn article(noun: &str) -> &'static str {
    if noun.ends_with('s') && !noun.ends_with("ss") {
        ""
    } else if noun.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']) {
        "an "
    } else {
        "a "
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(group_word("rbac.authorization.k8s.io"), "rbacAuthorization");
        assert_eq!(group_word(""), "core");
        assert_eq!(group_word("stable.example-site.com"), "stableExampleSiteCom");
        assert_eq!([article("Endpoints"), article("Ingress"), article("Pod")], ["", "an ", "a "]);
    }
}
