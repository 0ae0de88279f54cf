//! The paths of a group version and their operations.
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::operation::{Operation, OperationTarget, Verb};
use super::parameters::{Location, Parameter};
use super::schema::Collector;
use super::version::OpenApiVersion;
use crate::catalog::{ObjectSchema, Served, Sub};

/// Subresources whose requests are forwarded, with their methods.
const CONNECTED: [(&str, &[&str]); 4] = [
    ("attach", &["get", "post"]),
    ("exec", &["get", "post"]),
    ("portforward", &["get", "post"]),
    ("proxy", &["delete", "get", "head", "options", "patch", "post", "put"]),
];

/// The paths of a group version's resources.
pub fn of(resources: &[Arc<Served>], collector: &mut Collector) -> Map<String, Value> {
    let mut paths = Map::new();
    for served in resources {
        let mut writer = Writer { served, paths: &mut paths, collector };
        writer.resource();
        for sub in &served.subresources {
            writer.subresource(sub);
        }
    }
    paths
}

struct Writer<'a> {
    served: &'a Served,
    paths: &'a mut Map<String, Value>,
    collector: &'a mut Collector,
}

impl Writer<'_> {
    fn root(&self) -> String {
        let (group, version) = (&self.served.gvr.group, &self.served.gvr.version);
        if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
    }
    /// The path between version and resource.
    fn scope(&self) -> &'static str {
        if self.served.namespaced { "namespaces/{namespace}/" } else { "" }
    }

    fn resource(&mut self) {
        let (root, scope, plural) = (self.root(), self.scope(), self.served.gvr.resource.clone());
        let namespaced = self.served.namespaced;
        let builtin = matches!(self.served.schema, ObjectSchema::Builtin(_));
        let own = OperationTarget { served: self.served, sub: None, in_namespace: namespaced, suffix: "" };
        let all = OperationTarget { in_namespace: false, suffix: "ForAllNamespaces", ..own };
        self.add(format!("{root}/{scope}{plural}"), &own, &[Verb::List, Verb::Create, Verb::DeleteCollection]);
        let one = [Verb::Get, Verb::Update, Verb::Patch, Verb::Delete];
        self.add(format!("{root}/{scope}{plural}/{{name}}"), &own, &one);
        if namespaced {
            self.add(format!("{root}/{plural}"), &all, &[Verb::List]);
        }
        if builtin {
            self.add(format!("{root}/watch/{scope}{plural}"), &own, &[Verb::WatchList]);
            self.add(format!("{root}/watch/{scope}{plural}/{{name}}"), &own, &[Verb::Watch]);
            if namespaced {
                self.add(format!("{root}/watch/{plural}"), &all, &[Verb::WatchList]);
            }
        }
    }

    fn subresource(&mut self, sub: &Sub) {
        let path = format!("{}/{}{}/{{name}}/{}", self.root(), self.scope(), self.served.gvr.resource, sub.name);
        let target =
            OperationTarget { served: self.served, sub: Some(sub), in_namespace: self.served.namespaced, suffix: "" };
        let Some((_, methods)) = CONNECTED.iter().find(|(name, _)| *name == sub.name) else {
            self.add(path, &target, &[Verb::Get, Verb::Create, Verb::Update, Verb::Patch, Verb::Delete]);
            return;
        };
        let verbs: Vec<Verb> = methods.iter().map(|method| Verb::Connect(method)).collect();
        self.add(path.clone(), &target, &verbs);
        if sub.name == "proxy" {
            let below = OperationTarget { suffix: "WithPath", ..target };
            self.add(format!("{path}/{{path}}"), &below, &verbs);
        }
    }

    fn add(&mut self, path: String, target: &OperationTarget<'_>, verbs: &[Verb]) {
        let listed = target.sub.map_or(&self.served.verbs, |s| &s.verbs);
        let served = |verb: &&Verb| matches!(verb, Verb::Connect(_)) || listed.iter().any(|l| l == verb.listed());
        let operations: Vec<Operation> = verbs
            .iter()
            .filter(served)
            .map(|verb| {
                let mut operation = target.operation(*verb, self.collector);
                if path.contains("{name}") {
                    let kind = match verb {
                        Verb::Connect(_) => operation.facts["x-kubernetes-group-version-kind"]["kind"].as_str(),
                        _ => None,
                    };
                    let kind = described_kind(target, kind);
                    operation.parameters.push(Parameter::path("name", format!("name of the {kind}")));
                }
                if path.ends_with("{path}") {
                    operation.parameters.push(Parameter::path("path", "Path of the request to the backend."));
                }
                operation
            })
            .collect();
        if !operations.is_empty() {
            self.paths.insert(path, item(operations, self.collector));
        }
    }
}

/// The kind in the description of `{name}`.
fn described_kind(target: &OperationTarget<'_>, connected: Option<&str>) -> String {
    match (connected, target.sub) {
        (Some(kind), _) => kind.to_owned(),
        (None, Some(sub)) if matches!(target.served.schema, ObjectSchema::Builtin(_)) => sub.gvk.kind.clone(),
        _ => target.served.gvk.kind.clone(),
    }
}

/// The item of a path. Parameters that all operations have are moved to the path.
pub fn item(operations: Vec<Operation>, collector: &mut Collector) -> Value {
    let key = |p: &Parameter| (p.name.clone(), p.place);
    let everywhere: BTreeSet<(String, Location)> = operations
        .iter()
        .map(|o| o.parameters.iter().map(key).collect::<BTreeSet<_>>())
        .reduce(|a, b| &a & &b)
        .unwrap_or_default();
    let version = collector.version();
    let mut item = Map::new();
    let mut common: Vec<Parameter> = Vec::new();
    for mut operation in operations {
        operation.parameters.sort();
        let (shared, own): (Vec<_>, Vec<_>) =
            operation.parameters.into_iter().partition(|p| everywhere.contains(&key(p)));
        common = shared;
        let body = operation.body.filter(|_| version == OpenApiVersion::V2);
        let own = own.iter().map(|p| collector.shared().place(p, version));
        let parameters: Vec<Value> = body.into_iter().chain(own).collect();
        if !parameters.is_empty() {
            operation.facts.insert("parameters".into(), parameters.into());
        }
        item.insert(operation.method.to_owned(), operation.facts.into());
    }
    if !common.is_empty() {
        let common: Vec<Value> = common.iter().map(|p| collector.shared().place(p, version)).collect();
        item.insert("parameters".into(), common.into());
    }
    item.into()
}
