//! Joins the three published sources into one list of types: declarations (shape, JSON, emission), `.proto` files
//! (numbers, checked against the declarations) and OpenAPI (required fields, and list and map semantics if it has the
//! type).
use crate::{
    goapi::{GoField, GoPackage, GoType},
    proto::ProtoFile,
};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

/// The type of a field. `Struct` and the JSON schema unions have a type's index.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ty {
    Scalar(&'static str),
    Struct(usize),
    /// JSON schema unions of custom resource definitions, with the index of the schema type.
    Union(&'static str, usize),
    List(Box<Ty>),
    Map(Box<Ty>),
    /// A named list which protobuf wraps in a message with one field `items`.
    Wrapped(Box<Ty>),
}

/// A field. See `kelson_schema::Field` for the meaning.
#[derive(Debug, Clone)]
pub struct Field {
    pub json: String,
    pub number: u32,
    pub ty: Ty,
    pub pointer: bool,
    pub omitempty: bool,
    pub omitzero: bool,
    pub inline: bool,
    pub required: bool,
    pub list_type: String,
    pub map_keys: Vec<String>,
    pub map_type: String,
    pub patch_strategy: String,
    pub patch_merge_key: String,
    pub default: String,
    /// The allowed values of the field or of each of its elements; empty when there is no such list.
    pub values: Vec<String>,
    /// The position in the declaration, which is the order of JSON.
    pub declared: usize,
}

/// A struct of whose members one must be set (`x-kubernetes-unions`).
#[derive(Debug, Default, PartialEq)]
pub struct Union {
    /// The member that names the one which is set; empty when there is none.
    pub discriminator: String,
    /// The members by JSON name, with their discriminator values.
    pub members: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct Type {
    pub package: String,
    pub name: String,
    pub proto: bool,
    pub atomic: bool,
    pub fields: Vec<Field>,
    pub union: Option<Union>,
}

/// Everything that was read of the definitions.
#[derive(Debug, Default)]
pub struct Model {
    pub types: Vec<Type>,
    /// The type of each (group, version, kind).
    pub kinds: BTreeMap<(String, String, String), usize>,
}

const META: &str = "k8s.io/apimachinery/pkg/apis/meta/v1";
const SPECIAL: &[(&str, &str)] = &[
    ("k8s.io/apimachinery/pkg/apis/meta/v1.Time", "Time"),
    ("k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime", "MicroTime"),
    ("k8s.io/apimachinery/pkg/apis/meta/v1.Duration", "Duration"),
    ("k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1", "FieldsV1"),
    ("k8s.io/apimachinery/pkg/api/resource.Quantity", "Quantity"),
    ("k8s.io/apimachinery/pkg/util/intstr.IntOrString", "IntOrString"),
    ("k8s.io/apimachinery/pkg/runtime.RawExtension", "RawExtension"),
    ("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON", "Json"),
    ("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1.JSON", "Json"),
    ("k8s.io/apimachinery/pkg/types.UID", "String"),
    ("k8s.io/apimachinery/pkg/types.NodeName", "String"),
    ("k8s.io/apimachinery/pkg/types.PatchType", "String"),
    ("string", "String"),
    ("bool", "Bool"),
    ("int", "Int64"),
    ("int32", "Int32"),
    ("int64", "Int64"),
    ("uint8", "Int32"),
    ("float64", "Double"),
    ("interface{}", "Any"),
    ("any", "Any"),
];
const UNIONS: &[&str] = &["JSONSchemaPropsOrBool", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrStringArray"];
/// Helper types of the packages that are not part of the API.
const NOT_API: &[&str] = &[
    "InternalEvent",
    "Timestamp",
    "Time",
    "MicroTime",
    "Duration",
    "FieldsV1",
    "Quantity",
    "QuantityValue",
    "IntOrString",
    "RawExtension",
    "JSON",
    "Unknown",
    "ExtraValue",
    "Verbs",
    "JSONSchemaPropsOrBool",
    "JSONSchemaPropsOrArray",
    "JSONSchemaPropsOrStringArray",
];

struct Builder<'a> {
    packages: &'a BTreeMap<String, GoPackage>,
    protos: &'a BTreeMap<String, ProtoFile>,
    index: BTreeMap<String, usize>,
    queue: Vec<(String, String)>,
    openapi: &'a Value,
}

/// Builds the model; fails when the sources contradict each other.
pub fn build(
    packages: &BTreeMap<String, GoPackage>,
    protos: &BTreeMap<String, ProtoFile>,
    openapi: &Value,
) -> Result<Model> {
    let mut b = Builder { packages, protos, index: BTreeMap::new(), queue: Vec::new(), openapi };
    for (path, package) in packages {
        for (name, ty) in &package.types {
            let named_struct = b.struct_of(path, name).is_some();
            let in_proto = protos[path].messages.contains_key(name);
            let kind = matches!(ty, GoType::Struct { fields, .. } if has_type_meta(fields));
            if named_struct && (in_proto || kind) && !NOT_API.contains(&name.as_str()) {
                b.id(path, name);
            }
        }
    }
    let mut model = Model::default();
    let mut next = 0;
    while next < b.queue.len() {
        let (path, name) = b.queue[next].clone();
        let ty = b.build(&path, &name).with_context(|| format!("{path}.{name}"))?;
        model.types.push(ty);
        next += 1;
    }
    for (id, ty) in model.types.iter().enumerate() {
        let (fields, _) = b.struct_of(&ty.package, &ty.name).context("struct")?;
        if has_type_meta(fields)
            && let Some((group, version)) = b.group_version(&ty.package)
        {
            model.kinds.insert((group, version, ty.name.clone()), id);
        }
    }
    // Registered in every group version although it has no separate type there.
    let event = model.types.iter().position(|t| t.package == META && t.name == "WatchEvent").context("WatchEvent")?;
    model.kinds.insert(("meta.k8s.io".into(), "v1".into(), "WatchEvent".into()), event);
    Ok(model)
}

fn has_type_meta(fields: &[GoField]) -> bool {
    fields.iter().any(|f| f.inline && f.ty.ends_with("/meta/v1.TypeMeta"))
}

impl Builder<'_> {
    fn group_version(&self, path: &str) -> Option<(String, String)> {
        let package = self.packages.get(path)?;
        let version = path.rsplit('/').next()?.to_owned();
        if path == META {
            return Some(("meta.k8s.io".into(), version));
        }
        Some((package.group.clone()?, version))
    }

    fn id(&mut self, path: &str, name: &str) -> usize {
        let key = format!("{path}.{name}");
        if let Some(id) = self.index.get(&key) {
            return *id;
        }
        let id = self.queue.len();
        self.index.insert(key, id);
        self.queue.push((path.to_owned(), name.to_owned()));
        id
    }

    #[expect(clippy::type_complexity, reason = "a pair of borrowed lists, used in this file only")]
    fn struct_of(&self, path: &str, name: &str) -> Option<(&[GoField], &[(String, String)])> {
        match self.packages.get(path)?.types.get(name)? {
            GoType::Struct { fields, markers } => Some((fields, markers)),
            GoType::Named(target) => {
                let (path, name) = target.rsplit_once('.')?;
                self.struct_of(path, name)
            }
        }
    }

    fn build(&mut self, path: &str, name: &str) -> Result<Type> {
        let (fields, markers) = self.struct_of(path, name).context("no such struct")?;
        let (fields, markers) = (fields.to_vec(), markers.to_vec());
        let definition = self.definition(path, name);
        let message = self.protos.get(path).and_then(|p| p.messages.get(name)).cloned();
        let mut out = Vec::new();
        for (declared, field) in fields.iter().enumerate() {
            let property = definition.as_ref().and_then(|d| d["properties"].get(&field.json)).cloned();
            let mut built = self.field(path, field, property.as_ref()).with_context(|| field.json.clone())?;
            built.declared = declared;
            if let (Some(message), true) = (&message, field.number.is_some()) {
                let short = field.ty.rsplit('.').next().unwrap_or("");
                let candidates = [field.proto_name.clone(), field.json.clone(), lower_first(short)];
                let (number, _) =
                    candidates.iter().find_map(|n| message.fields.get(n)).context("not in the .proto file")?;
                ensure!(*number == built.number, "number {} but {number} in the .proto file", built.number);
            }
            if let Some(d) = &definition {
                built.required = d["required"].as_array().is_some_and(|r| r.iter().any(|n| n == field.json.as_str()));
            }
            out.push(built);
        }
        if let Some(message) = &message {
            let with_number = out.iter().filter(|f| f.number > 0).count();
            ensure!(
                with_number == message.fields.len(),
                "{with_number} numbered fields, {} in the .proto",
                message.fields.len()
            );
        }
        out.sort_by_key(|f| f.number);
        let atomic = match &definition {
            Some(d) => d["x-kubernetes-map-type"] == "atomic",
            None => markers.iter().any(|(k, v)| k == "structType" && v == "atomic"),
        };
        let (package, name, proto, union) =
            (path.to_owned(), name.to_owned(), message.is_some(), union(&fields, &markers));
        Ok(Type { package, name, proto, atomic, fields: out, union })
    }

    /// Returns the published definition; for a struct that is not published otherwise, that of the struct which embeds
    /// it.
    fn definition(&self, path: &str, name: &str) -> Option<Value> {
        let rest = path.strip_prefix("k8s.io/")?;
        let of = |name: &str| self.openapi["definitions"].get(format!("io.k8s.{}.{name}", rest.replace('/', ".")));
        let embedded = format!("{path}.{name}");
        let embeds = |ty: &GoType| matches!(ty, GoType::Struct { fields, .. } if fields.iter().any(|f| f.inline && f.ty == embedded));
        let outer =
            || self.packages.get(path)?.types.iter().filter(|(_, ty)| embeds(ty)).find_map(|(name, _)| of(name));
        of(name).or_else(outer).cloned()
    }

    /// Returns the values of a declared type, or of the elements of a list or map of it.
    fn values(&self, declared: &str) -> Vec<String> {
        let element = declared.rsplit(['*', ']']).next().unwrap_or("");
        let Some((path, name)) = element.rsplit_once('.') else { return Vec::new() };
        self.packages.get(path).map(|package| package.values(name)).unwrap_or_default()
    }

    /// Returns a marker's default as JSON; a constant's name is replaced by its value.
    fn default(&self, path: &str, marker: String) -> String {
        let Some(name) = marker.strip_prefix("ref(").and_then(|rest| rest.strip_suffix(')')) else { return marker };
        let (path, name) = name.rsplit_once('.').unwrap_or((path, name));
        let value = self.packages.get(path).and_then(|package| package.constant(name));
        value.map(|value| format!("{value:?}")).unwrap_or_default()
    }

    fn field(&mut self, path: &str, f: &GoField, property: Option<&Value>) -> Result<Field> {
        let (pointer, declared) = match f.ty.strip_prefix('*') {
            Some(rest) => (true, rest),
            None => (false, f.ty.as_str()),
        };
        let marker =
            |key: &str| f.markers.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.clone()).unwrap_or_default();
        let ty = self.ty(declared)?;
        let mut built = Field {
            json: f.json.clone(),
            number: f.number.unwrap_or(0),
            pointer,
            omitempty: f.omitempty,
            omitzero: f.omitzero,
            inline: f.inline,
            required: false,
            list_type: marker("listType"),
            map_keys: f
                .markers
                .iter()
                .filter(|(k, _)| k == "listMapKey")
                .map(|(_, v)| v.trim_matches('"').to_owned())
                .collect(),
            map_type: [marker("mapType"), marker("structType")].into_iter().find(|m| !m.is_empty()).unwrap_or_default(),
            patch_strategy: f.patch_strategy.clone(),
            patch_merge_key: f.patch_merge_key.clone(),
            default: self.default(path, marker("default")),
            values: self.values(declared),
            declared: 0,
            ty,
        };
        if let Some(p) = property {
            let text = |key: &str| p[key].as_str().unwrap_or("").to_owned();
            built.list_type = text("x-kubernetes-list-type");
            built.map_keys = p["x-kubernetes-list-map-keys"]
                .as_array()
                .map_or(Vec::new(), |keys| keys.iter().filter_map(|k| k.as_str().map(str::to_owned)).collect());
            let published = text("x-kubernetes-patch-strategy");
            ensure!(
                published == built.patch_strategy,
                "patch strategy {published:?} but {:?} declared",
                built.patch_strategy
            );
        }
        Ok(built)
    }

    fn ty(&mut self, declared: &str) -> Result<Ty> {
        if let Some((_, scalar)) = SPECIAL.iter().find(|(n, _)| *n == declared) {
            return Ok(Ty::Scalar(scalar));
        }
        if declared == "[]byte" || declared == "[]uint8" {
            return Ok(Ty::Scalar("Bytes"));
        }
        if let Some(elem) = declared.strip_prefix("[]") {
            return Ok(Ty::List(Box::new(self.ty(elem.trim_start_matches('*'))?)));
        }
        if let Some(rest) = declared.strip_prefix("map[") {
            let (key, value) = rest.split_once(']').context("map")?;
            ensure!(self.ty(key)? == Ty::Scalar("String"), "map key {key}");
            return Ok(Ty::Map(Box::new(self.ty(value)?)));
        }
        let (path, name) = declared.rsplit_once('.').with_context(|| format!("type {declared}"))?;
        if let Some(union) = UNIONS.iter().find(|u| **u == name) {
            return Ok(Ty::Union(&union["JSONSchemaProps".len()..], self.id(path, "JSONSchemaProps")));
        }
        let package = self.packages.get(path).with_context(|| format!("package of {declared}"))?;
        match package.types.get(name).with_context(|| format!("type {declared}"))?.clone() {
            GoType::Struct { .. } => Ok(Ty::Struct(self.id(path, name))),
            GoType::Named(target) if self.struct_of(path, name).is_some() => {
                let _ = target;
                Ok(Ty::Struct(self.id(path, name)))
            }
            GoType::Named(target) => {
                let inner = self.ty(&target)?;
                let wrapped = self.protos[path].messages.contains_key(name);
                match inner {
                    Ty::List(elem) if wrapped => Ok(Ty::Wrapped(elem)),
                    other if wrapped => bail!("message for {other:?}"),
                    other => Ok(other),
                }
            }
        }
    }
}

/// Returns the union that a struct's markers define, if there is one.
fn union(fields: &[GoField], markers: &[(String, String)]) -> Option<Union> {
    let has = |markers: &[(String, String)], key: &str| markers.iter().any(|(k, _)| k == key);
    if !has(markers, "union") {
        return None;
    }
    let (by, members): (Vec<_>, Vec<_>) = fields.iter().partition(|f| has(&f.markers, "unionDiscriminator"));
    let members = members.iter().map(|f| (f.json.clone(), f.name.clone())).collect();
    Some(Union { discriminator: by.first().map(|f| f.json.clone()).unwrap_or_default(), members })
}

fn lower_first(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map_or_else(String::new, |c| c.to_lowercase().chain(chars).collect())
}
