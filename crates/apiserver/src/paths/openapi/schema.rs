//! Schemas of the types that a document refers to.
use std::collections::{BTreeMap, BTreeSet, HashMap};

use kelson_meta::Gvk;
use kelson_schema::{Descriptions, Field, FieldType, Kind, ListType, MapType, Schema, TypeId};
use kelson_structural::publish::openapi::{self, Dialect};
use serde_json::{Map, Value, json};

use super::parameters::Shared;
use super::version::OpenApiVersion;
use crate::catalog::{ObjectSchema, Served};

/// Collects the schemas and common parameters of one document. Each `refer_*` method returns a reference and adds what it refers to;
/// [`Collector::finish`] then writes the definitions of built-in types, including those that they refer to.
pub struct Collector {
    version: OpenApiVersion,
    done: BTreeMap<String, Value>,
    pending: Vec<TypeId>,
    kinds: HashMap<TypeId, Vec<Value>>,
    /// The group versions of the document.
    about: Vec<(String, String)>,
    texts: Descriptions,
    shared: Shared,
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// Kinds that every group version has besides its own.
const EVERYWHERE: [&str; 2] = ["DeleteOptions", "WatchEvent"];

impl Collector {
    /// Starts a document of this version of OpenAPI.
    pub fn new(version: OpenApiVersion) -> Self {
        let mut kinds: HashMap<TypeId, Vec<Value>> = HashMap::new();
        for (group, version, kind, ty) in Schema::builtin().kinds() {
            let group = if group == "meta.k8s.io" { "" } else { group };
            kinds.entry(ty).or_default().push(json!({"group": group, "version": version, "kind": kind}));
        }
        Self {
            version,
            done: BTreeMap::new(),
            pending: Vec::new(),
            kinds,
            about: Vec::new(),
            texts: Descriptions::load(),
            shared: Shared::default(),
        }
    }
    /// Adds a group version to the document's.
    pub fn add_group_version(&mut self, group: &str, version: &str) {
        self.about.push((group.to_owned(), version.to_owned()));
    }
    /// Adds all built-in group versions, including those that are not served, except groups that every server has.
    pub fn add_all_group_versions(&mut self) {
        let kinds =
            Schema::builtin().kinds().filter(|(group, ..)| !["meta.k8s.io", "apidiscovery.k8s.io"].contains(group));
        let all: BTreeSet<_> = kinds.map(|(group, version, ..)| (group.to_owned(), version.to_owned())).collect();
        self.about.extend(all);
    }
    /// The version of OpenAPI.
    pub fn version(&self) -> OpenApiVersion {
        self.version
    }
    /// The descriptions of types and fields.
    pub fn texts(&self) -> &Descriptions {
        &self.texts
    }
    /// The common parameters of operations.
    pub fn shared(&mut self) -> &mut Shared {
        &mut self.shared
    }
    /// A reference to the type of patches, which is not a kind.
    pub fn refer_patch(&mut self) -> Option<Value> {
        Schema::builtin().by_name("k8s.io/apimachinery/pkg/apis/meta/v1", "Patch").map(|ty| self.refer(ty))
    }
    /// A reference to the type of `/version`, which is not a kind.
    pub fn refer_version_info(&mut self) -> Value {
        const NAME: &str = "io.k8s.apimachinery.pkg.version.Info";
        if !self.done.contains_key(NAME) {
            self.done.insert(NAME.to_owned(), version_info(self.version));
        }
        self.reference(NAME)
    }
    /// A reference to a type.
    pub fn refer(&mut self, ty: TypeId) -> Value {
        let name = ty.openapi_name();
        if !self.done.contains_key(&name) {
            self.done.insert(name.clone(), Value::Null);
            self.pending.push(ty);
        }
        self.reference(&name)
    }
    /// A reference to a kind's definition; `None` without a schema.
    pub fn refer_kind(&mut self, schema: &ObjectSchema, gvk: &Gvk) -> Option<Value> {
        match schema {
            ObjectSchema::Builtin(ty) => Some(self.refer(*ty)),
            ObjectSchema::Open => None,
            ObjectSchema::Dynamic(schema) => {
                let name = definition_name(gvk, &gvk.kind);
                if !self.done.contains_key(&name) {
                    let mut definition = schema.openapi(self.dialect(), &self.texts);
                    definition["x-kubernetes-group-version-kind"] = kind_value(gvk, &gvk.kind);
                    self.done.insert(name.clone(), definition);
                    self.refer_meta("ObjectMeta");
                }
                Some(self.reference(&name))
            }
        }
    }
    /// A reference to the list of a custom resource.
    pub fn refer_list(&mut self, served: &Served) -> Option<Value> {
        let (gvk, list_kind) = (&served.gvk, served.list_kind.as_str());
        self.refer_kind(&served.schema, gvk)?;
        let name = definition_name(gvk, list_kind);
        if !self.done.contains_key(&name) {
            let item = definition_name(gvk, &gvk.kind);
            let plural = &served.gvr.resource;
            let mut definition =
                openapi::list_definition(&gvk.kind, list_kind, plural, &item, self.dialect(), &self.texts);
            definition["x-kubernetes-group-version-kind"] = kind_value(gvk, list_kind);
            self.done.insert(name.clone(), definition);
            self.refer_meta("ListMeta");
        }
        Some(self.reference(&name))
    }
    /// Adds a type of `meta.k8s.io`, to which definitions of custom resources refer.
    fn refer_meta(&mut self, name: &str) {
        let holder = if name == "ListMeta" { "PartialObjectMetadataList" } else { "PartialObjectMetadata" };
        let metadata = ObjectSchema::meta(holder).type_id().and_then(|ty| ty.field_by_json("metadata"));
        if let Some(Kind::Struct(ty)) = metadata.map(|field| field.ty().kind()) {
            self.refer(ty);
        }
    }
    fn dialect(&self) -> Dialect {
        match self.version {
            OpenApiVersion::V2 => Dialect::V2,
            OpenApiVersion::V3 => Dialect::V3,
        }
    }
    /// The schemas, and the common parameters of operations.
    pub fn finish(mut self) -> (Map<String, Value>, Map<String, Value>) {
        while let Some(ty) = self.pending.pop() {
            let schema = self.definition(ty);
            self.done.insert(ty.openapi_name(), schema);
        }
        (self.done.into_iter().collect(), self.shared.finish())
    }

    fn reference(&self, name: &str) -> Value {
        let place = if self.version == OpenApiVersion::V3 { "#/components/schemas" } else { "#/definitions" };
        json!({"$ref": format!("{place}/{name}")})
    }

    /// A reference to a scalar type with its own definition.
    fn named(&mut self, name: &str, kind: Kind, mut schema: Value) -> Value {
        if !self.done.contains_key(name) {
            if let Some(text) = self.texts.of_value(kind) {
                schema["description"] = text.into();
            }
            self.done.insert(name.to_owned(), schema);
        }
        self.reference(name)
    }

    fn definition(&mut self, ty: TypeId) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in ty.json_fields() {
            if field.is_required() {
                required.push(field.json());
            }
            properties.insert(field.json().to_owned(), self.property(ty, field));
        }
        let mut schema = Map::new();
        if let Some(text) = self.texts.of(ty, None) {
            schema.insert("description".into(), text.into());
        }
        schema.insert("type".into(), "object".into());
        if !properties.is_empty() {
            schema.insert("properties".into(), properties.into());
        }
        if !required.is_empty() {
            required.sort_unstable();
            schema.insert("required".into(), json!(required));
        }
        if ty.atomic() {
            schema.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if let Some((by, members)) = ty.union() {
            let mut union = Map::from_iter([("fields-to-discriminateBy".to_owned(), members.collect())]);
            if !by.is_empty() {
                union.insert("discriminator".into(), by.into());
            }
            schema.insert("x-kubernetes-unions".into(), json!([union]));
        }
        if let Some(kinds) = self.kinds.get(&ty) {
            // The group of resource usage is not in this list of kube-apiserver: there, another server serves it.
            let is_listed = |group: &str| !group.is_empty() && group != crate::usage::GROUP;
            let everywhere = self.about.iter().filter(|(group, _)| EVERYWHERE.contains(&ty.name()) && is_listed(group));
            let others =
                everywhere.map(|(group, version)| json!({"group": group, "version": version, "kind": ty.name()}));
            let kinds: Vec<Value> = kinds.iter().cloned().chain(others).collect();
            schema.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        schema.into()
    }

    fn property(&mut self, ty: TypeId, field: Field) -> Value {
        let mut schema = self.ty(field.ty());
        if let Some(values) = field.values() {
            let place = match field.ty().kind() {
                Kind::List(_) | Kind::WrappedList(_) => &mut schema["items"],
                Kind::Map(_) => &mut schema["additionalProperties"],
                _ => &mut schema,
            };
            place["enum"] = values.collect();
        }
        let mut beside = Map::new();
        if let Some(text) = self.texts.of(ty, Some(field)) {
            beside.insert("description".into(), text.into());
        }
        if let Some(list) = field.list_type() {
            let word = match list {
                ListType::Atomic => "atomic",
                ListType::Set => "set",
                ListType::Map => "map",
            };
            beside.insert("x-kubernetes-list-type".into(), word.into());
            let keys: Vec<&str> = field.map_keys().collect();
            if !keys.is_empty() {
                beside.insert("x-kubernetes-list-map-keys".into(), json!(keys));
            }
        }
        if let Some(map) = field.map_type() {
            let word = if map == MapType::Atomic { "atomic" } else { "granular" };
            beside.insert("x-kubernetes-map-type".into(), word.into());
        }
        let strategy = field.patch_strategy();
        let words: Vec<&str> =
            [(strategy.merge, "merge"), (strategy.replace, "replace"), (strategy.retain_keys, "retainKeys")]
                .into_iter()
                .filter_map(|(on, word)| on.then_some(word))
                .collect();
        if !words.is_empty() {
            beside.insert("x-kubernetes-patch-strategy".into(), words.join(",").into());
        }
        if !field.patch_merge_key().is_empty() {
            beside.insert("x-kubernetes-patch-merge-key".into(), field.patch_merge_key().into());
        }
        if self.version == OpenApiVersion::V3
            && let Some(default) = default(field)
        {
            beside.insert("default".into(), default);
        }
        if beside.is_empty() {
            return schema;
        }
        // In v3, a reference must be alone.
        if self.version == OpenApiVersion::V3 && schema.get("$ref").is_some() {
            schema = json!({"allOf": [schema]});
        }
        if let Some(map) = schema.as_object_mut() {
            map.extend(beside);
        }
        schema
    }

    fn ty(&mut self, ty: FieldType) -> Value {
        let v3 = self.version == OpenApiVersion::V3;
        match ty.kind() {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::Int32 => json!({"type": "integer", "format": "int32"}),
            Kind::Int64 => json!({"type": "integer", "format": "int64"}),
            Kind::Double => json!({"type": "number", "format": "double"}),
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => json!({"type": "string", "format": "byte"}),
            Kind::Time => {
                self.named(&format!("{META}.Time"), ty.kind(), json!({"type": "string", "format": "date-time"}))
            }
            Kind::MicroTime => {
                self.named(&format!("{META}.MicroTime"), ty.kind(), json!({"type": "string", "format": "date-time"}))
            }
            Kind::Duration => self.named(&format!("{META}.Duration"), ty.kind(), json!({"type": "string"})),
            Kind::Quantity => {
                let either = json!({"oneOf": [{"type": "string"}, {"type": "number"}]});
                let schema = if v3 { either } else { json!({"type": "string"}) };
                self.named("io.k8s.apimachinery.pkg.api.resource.Quantity", ty.kind(), schema)
            }
            Kind::IntOrString => {
                let either = json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]});
                let schema = if v3 { either } else { json!({"type": "string", "format": "int-or-string"}) };
                self.named("io.k8s.apimachinery.pkg.util.intstr.IntOrString", ty.kind(), schema)
            }
            Kind::RawExtension => {
                self.named("io.k8s.apimachinery.pkg.runtime.RawExtension", ty.kind(), json!({"type": "object"}))
            }
            Kind::FieldsV1 => self.named(&format!("{META}.FieldsV1"), ty.kind(), json!({"type": "object"})),
            Kind::Json => {
                self.named("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", ty.kind(), json!({}))
            }
            Kind::Any => json!({}),
            Kind::Struct(ty) => self.refer(ty),
            Kind::SchemaOrBool(_) => self.union("JSONSchemaPropsOrBool", ty.kind()),
            Kind::SchemaOrArray(_) => self.union("JSONSchemaPropsOrArray", ty.kind()),
            Kind::SchemaOrStringArray(_) => self.union("JSONSchemaPropsOrStringArray", ty.kind()),
            Kind::List(element) | Kind::WrappedList(element) => json!({"type": "array", "items": self.ty(element)}),
            Kind::Map(value) => json!({"type": "object", "additionalProperties": self.ty(value)}),
        }
    }

    fn union(&mut self, name: &str, kind: Kind) -> Value {
        self.named(&format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.{name}"), kind, json!({}))
    }
}

/// The schema of `version.Info`. The members about compatibility are optional.
fn version_info(version: OpenApiVersion) -> Value {
    const ALWAYS: [(&str, &str); 9] = [
        ("major", "Major version of the program."),
        ("minor", "Minor version of the program."),
        ("gitVersion", "Full version, with the program's own part after a plus sign."),
        ("gitCommit", "Commit from which the program was built."),
        ("gitTreeState", "State of the source tree: clean or dirty."),
        ("buildDate", "Date of the build."),
        ("goVersion", "Version of Go; none if the program does not contain Go."),
        ("compiler", "Compiler of the program."),
        ("platform", "Operating system and CPU architecture."),
    ];
    const MAYBE: [(&str, &str); 4] = [
        ("emulationMajor", "Major version of the emulated behaviour."),
        ("emulationMinor", "Minor version of the emulated behaviour."),
        ("minCompatibilityMajor", "Major version of the oldest compatible server."),
        ("minCompatibilityMinor", "Minor version of the oldest compatible server."),
    ];
    let mut properties = Map::new();
    for (name, text) in ALWAYS {
        let mut field = json!({"description": text, "type": "string"});
        if version == OpenApiVersion::V3 {
            field["default"] = "".into();
        }
        properties.insert(name.to_owned(), field);
    }
    for (name, text) in MAYBE {
        properties.insert(name.to_owned(), json!({"description": text, "type": "string"}));
    }
    json!({
        "description": "The Kubernetes version of the server.",
        "properties": properties,
        "required": ALWAYS.map(|(name, _)| name),
        "type": "object",
    })
}

/// `com.example.v1.Kind` for group `example.com`.
fn definition_name(gvk: &Gvk, kind: &str) -> String {
    let mut parts: Vec<&str> = gvk.group.split('.').rev().collect();
    parts.extend([gvk.version.as_str(), kind]);
    parts.join(".")
}

fn kind_value(gvk: &Gvk, kind: &str) -> Value {
    json!([{"group": gvk.group, "version": gvk.version, "kind": kind}])
}

/// The published default in v3 documents: the declared one, or the zero value of a field that is always present. v2 documents have
/// none.
fn default(field: Field) -> Option<Value> {
    if let Some(declared) = field.default().and_then(|d| serde_json::from_str(d).ok()) {
        return Some(declared);
    }
    match field.ty().kind() {
        _ if field.is_pointer() => None,
        Kind::Struct(_) => Some(json!({})),
        _ if field.omit_empty() => None,
        Kind::String => Some("".into()),
        Kind::Bool => Some(false.into()),
        Kind::Int32 | Kind::Int64 | Kind::Double => Some(0.into()),
        _ => None,
    }
}
