//! Validates `openAPIV3Schema` of a definition by node: forbidden keywords, requirements of extensions, and rules. The
//! order of errors is upstream's (`ValidateCustomResourceDefinitionOpenAPISchema`), with fields sorted.
use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{entries, flag, items, len, present, text};
use kelson_meta::{FieldError, FieldErrorKind, FieldErrors};
use kelson_schema::shape::SCHEMA_DEPTH_MAX;
use serde_json::Value;

use super::keywords::is_set;
use super::options::Options;
use super::schema_lists;
use super::schema_rules::{self, RuleCheck, RuleScope};
use super::{defaults, structural};
use crate::Structural;

/// The types of a schema, sorted as in messages.
pub(super) const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];

/// The position of a schema, and its consequences.
pub(super) struct DefinitionPlace {
    /// Whether it must be structural.
    pub structural: bool,
    /// Whether the kind has a `status` subresource, whose schema is separate.
    pub status: bool,
    /// Whether it is the old definition's schema.
    pub unchanged: bool,
}

/// Keywords allowed at the root of a kind with a `status` subresource, as upstream lists them.
const AT_ROOT: &[(&str, &str)] = &[
    ("Description", "description"),
    ("Type", "type"),
    ("Format", "format"),
    ("Title", "title"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Required", "required"),
    ("Items", "items"),
    ("Properties", "properties"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
    ("XValidations", "x-kubernetes-validations"),
];

/// Validates a schema. `path` is that of its parent; null is not a schema and has no errors.
pub(super) fn check(tree: &Value, place: &DefinitionPlace, options: &Options, path: &Path<'_>, e: &mut Errors) {
    if !present(tree) {
        return;
    }
    let root = path.child("openAPIV3Schema");
    let before = e.len();
    if place.status {
        status_root(tree, &root, e);
    }
    if flag(&tree["nullable"]) {
        e.forbidden(&root.child("nullable"), "nullable cannot be true at the root");
    }
    let parsed = Structural::parse(tree);
    let mut schema = None;
    if let (true, Ok(parsed)) = (place.structural, &parsed) {
        let found = e.len();
        structural::check(tree, &root, e);
        if e.len() == found {
            defaults::check(parsed, options.pruned_defaults, &root, e);
        }
        schema = (e.len() == found).then_some(parsed);
    }
    let mut walk = Walk::new(options, place.unchanged);
    let scope = schema.map(|s| RuleScope::root(s.declared(), !s.declared().rules().is_empty()));
    let context = Context { defaults_forbidden: None, in_metadata: false, uncorrelatable: None, root: true, depth: 0 };
    walk.place(tree, &root, &context, scope.as_ref());
    e.extend(walk.faults.finish());
    e.extend(walk.rules.faults);
    if let (true, true, Err(why)) = (e.len() == before, place.structural, &parsed) {
        e.invalid(&root, "", why.to_string());
    }
    if schema.is_some() {
        walk.rules.costs.check(&root, e);
    }
}

fn status_root(tree: &Value, root: &Path<'_>, e: &mut Errors) {
    let ty = text(&tree["type"]);
    if !ty.is_empty() && ty != "object" {
        let why =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return e.invalid(&root.child("type"), ty, why);
    }
    let set =
        |(key, value): (&String, &Value)| is_set(key, value) && !AT_ROOT.iter().any(|(_, allowed)| allowed == key);
    if entries(tree).any(set) {
        let names: Vec<&str> = AT_ROOT.iter().map(|(name, _)| *name).collect();
        let why = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        e.invalid(root, tree, why);
    }
}

/// The properties that a position inherits from its parents.
#[derive(Clone)]
struct Context<'p> {
    /// Why defaults may not be set.
    defaults_forbidden: Option<String>,
    /// Whether this is inside the fields of every object.
    in_metadata: bool,
    /// The outermost position whose parts cannot be correlated with an old object.
    uncorrelatable: Option<&'p Path<'p>>,
    root: bool,
    depth: usize,
}

impl<'p> Context<'p> {
    fn below(&self) -> Self {
        Self { root: false, depth: self.depth + 1, ..self.clone() }
    }
    fn uncorrelatable_below(&self, path: &'p Path<'p>) -> Self {
        Self { uncorrelatable: self.uncorrelatable.or(Some(path)), ..self.below() }
    }
}

struct Walk<'a> {
    options: &'a Options,
    faults: Errors,
    rules: RuleCheck,
}

impl<'a> Walk<'a> {
    fn new(options: &'a Options, unchanged: bool) -> Self {
        Self { options, faults: Errors::new(), rules: RuleCheck::new(unchanged) }
    }

    fn place(&mut self, tree: &Value, path: &Path<'_>, cx: &Context<'_>, scope: Option<&RuleScope>) {
        // Deeper schemas were rejected by the parser.
        if !tree.is_object() || cx.depth > SCHEMA_DEPTH_MAX {
            return;
        }
        let before = self.faults.len();
        self.forbidden(tree, path, cx);
        if flag(&tree["uniqueItems"]) {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.faults.forbidden(&path.child("uniqueItems"), why);
        }
        self.maps(tree, path, cx, scope);
        self.clauses(tree, path, cx);
        self.elements(tree, path, cx, scope);
        for (key, dependency) in entries(&tree["dependencies"]).filter(|(_, d)| d.is_object()) {
            self.place(dependency, &path.child("dependencies").key(key), &cx.below(), None);
        }
        if tree["x-kubernetes-preserve-unknown-fields"] == false {
            self.faults.invalid(
                &path.child("x-kubernetes-preserve-unknown-fields"),
                false,
                "must be true or undefined",
            );
        }
        schema_lists::check(tree, self.options, path, &mut self.faults);
        if len(&tree["x-kubernetes-validations"]) > 0 {
            schema_rules::check_texts(tree, path, &mut self.faults);
            // For an invalid schema, errors of expressions would be misleading.
            if let (true, Some(scope)) = (self.faults.len() == before, scope) {
                self.rules.check(tree, path, cx.uncorrelatable, scope);
            }
        }
    }

    /// Reports keywords that are forbidden, everywhere or here.
    fn forbidden(&mut self, tree: &Value, path: &Path<'_>, cx: &Context<'_>) {
        let ty = text(&tree["type"]);
        let e = &mut self.faults;
        if self.options.valid_types && !ty.is_empty() && !TYPES.contains(&ty) {
            e.not_supported(&path.child("type"), ty, TYPES);
            if present(&tree["default"]) && cx.defaults_forbidden.is_none() {
                // No value has such a type.
                let detail = format!("must be of type {ty}");
                let at = path.child("default").field().to_string();
                let value = Some(tree["default"].to_string());
                e.extend(FieldErrors(vec![FieldError { kind: FieldErrorKind::TypeInvalid, path: at, value, detail }]));
            }
        }
        if let (true, Some(reason)) = (present(&tree["default"]), &cx.defaults_forbidden) {
            e.forbidden(&path.child("default"), format!("must not be set {reason}"));
        }
        for (key, set) in [
            ("id", !text(&tree["id"]).is_empty()),
            ("additionalItems", present(&tree["additionalItems"])),
            ("patternProperties", len(&tree["patternProperties"]) > 0),
            ("definitions", len(&tree["definitions"]) > 0),
            ("dependencies", present(&tree["dependencies"])),
            ("$ref", present(&tree["$ref"])),
        ] {
            if set {
                e.forbidden(&path.child(key), format!("{key} is not supported"));
            }
        }
        if ty == "null" {
            e.forbidden(&path.child("type"), "type cannot be set to null, use nullable as an alternative");
        }
        if !items(&tree["items"]).is_empty() {
            e.forbidden(&path.child("items"), "items must be a schema object and not an array");
        }
        if cx.in_metadata && flag(&tree["x-kubernetes-embedded-resource"]) {
            e.forbidden(&path.child("x-kubernetes-embedded-resource"), "must not be used inside of resource meta");
        }
    }

    fn maps(&mut self, tree: &Value, path: &Path<'_>, cx: &Context<'_>, scope: Option<&RuleScope>) {
        let additional = &tree["additionalProperties"];
        if present(additional) {
            let at = path.child("additionalProperties");
            if len(&tree["properties"]) > 0 && *additional != true {
                self.faults.forbidden(&at, "additionalProperties and properties are mutual exclusive");
            }
            let mut below = cx.below();
            if cx.in_metadata {
                // The pruned parts of a default there depend on the value.
                below.defaults_forbidden = Some("inside additionalProperties applying to object metadata".to_owned());
            }
            let scope = scope.and_then(|s| s.below(tree, s.node.values_of_map()?.arc()));
            self.place(additional, &at, &below, scope.as_ref());
        }
        let embedded = cx.root || flag(&tree["x-kubernetes-embedded-resource"]);
        let list = path.child("properties");
        for (name, property) in entries(&tree["properties"]) {
            let map_type = &tree["x-kubernetes-map-type"];
            let correlatable = !present(map_type) || matches!(text(map_type), "granular" | "atomic");
            let mut below = if correlatable { cx.below() } else { cx.uncorrelatable_below(path) };
            if embedded && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
                below.in_metadata = true;
                if cx.root {
                    below.defaults_forbidden = Some(format!("in top-level {name}"));
                }
            }
            let scope = scope.and_then(|s| s.below(tree, s.node.property(name)?.arc()));
            self.place(property, &list.key(name), &below, scope.as_ref());
        }
    }

    fn clauses(&mut self, tree: &Value, path: &Path<'_>, cx: &Context<'_>) {
        self.place(&tree["not"], &path.child("not"), &cx.below(), None);
        for key in ["allOf", "oneOf", "anyOf"] {
            for (i, clause) in items(&tree[key]).iter().enumerate() {
                self.place(clause, &path.child(key).index(i), &cx.below(), None);
            }
        }
        for (name, definition) in entries(&tree["definitions"]) {
            self.place(definition, &path.child("definitions").key(name), &cx.below(), None);
        }
    }

    fn elements(&mut self, tree: &Value, path: &Path<'_>, cx: &Context<'_>, scope: Option<&RuleScope>) {
        let by_keys = tree["x-kubernetes-list-type"] == "map";
        let below = if by_keys { cx.below() } else { cx.uncorrelatable_below(path) };
        let at = path.child("items");
        match &tree["items"] {
            Value::Array(list) => {
                for (i, element) in list.iter().enumerate() {
                    self.place(element, &at.index(i), &below, None);
                }
            }
            element => {
                let scope = scope.and_then(|s| s.below(tree, s.node.items()?.arc()));
                self.place(element, &at, &below, scope.as_ref());
            }
        }
    }
}
