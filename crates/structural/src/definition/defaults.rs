//! Validates that the defaults of a schema are valid by it, and have no fields that would be pruned (upstream
//! `pkg/apiserver/schema/defaulting/validation.go`).
use std::sync::Arc;

use kelson_cel::REQUEST_BUDGET;
use kelson_meta::FieldErrors;
use kelson_meta::path::{Errors, Path};
use serde_json::{Value, json};

use crate::Structural;
use crate::object::{Unknown, check_embedded, coerce_at, prune, validate};
use crate::rules::Rules;
use crate::schema::{Flags, Node};

pub(super) fn check(schema: &Structural, pruned: bool, path: &Path<'_>, e: &mut Errors) {
    let mut checker = Checker { pruned, left: REQUEST_BUDGET, e };
    let around = Around { root: schema.resource(), way: &Way::Root, in_metadata: false };
    checker.place(schema.resource(), around, path);
}

/// Whether a default of a schema has fields that are pruned.
pub(super) fn has_unpruned(tree: &Value) -> bool {
    fn below(node: &Node) -> bool {
        let own = node.default_value().is_some_and(|default| !is_pruned(default, node));
        let children = node.properties().iter().map(|(_, c)| c).chain(node.items()).chain(node.values_of_map());
        own || node.is(Flags::BELOW_DEFAULTS) && children.into_iter().any(|c| below(c))
    }
    Structural::parse(tree).is_ok_and(|s| below(s.resource()))
}

fn is_pruned(default: &Value, node: &Node) -> bool {
    let mut copy = default.clone();
    prune(&mut copy, node, &mut Unknown::new(false));
    copy == *default
}

/// The path from an object's root to a node in it.
enum Way<'a> {
    Root,
    Field(&'a Way<'a>, &'a str),
    Element(&'a Way<'a>),
}

impl Way<'_> {
    /// Makes an object that contains only this value at the end of the path.
    fn object(&self, value: Value) -> Value {
        match self {
            Way::Root => value,
            Way::Field(before, name) => before.object(json!({ *name: value })),
            Way::Element(before) => before.object(json!([value])),
        }
    }
}

/// The object that a node is part of.
#[derive(Clone, Copy)]
struct Around<'a> {
    root: &'a Arc<Node>,
    way: &'a Way<'a>,
    /// Whether it is inside the fields of every object.
    in_metadata: bool,
}

struct Checker<'a> {
    pruned: bool,
    /// The remaining cost budget of rules.
    left: u64,
    e: &'a mut Errors,
}

impl Checker<'_> {
    fn place(&mut self, node: &Arc<Node>, around: Around<'_>, path: &Path<'_>) {
        let around = match node.is(Flags::EMBEDDED) {
            true => Around { root: node, way: &Way::Root, in_metadata: false },
            false => around,
        };
        if let Some(default) = node.default_value() {
            let at = path.child("default");
            if around.in_metadata {
                self.in_metadata(default, node, around, &at);
            } else {
                self.plain(default, node, around, &at);
            }
        }
        if !node.is(Flags::BELOW_DEFAULTS) || self.left == 0 {
            return;
        }
        if let Some(items) = node.items() {
            let way = Way::Element(around.way);
            self.place(items.arc(), Around { way: &way, ..around }, &path.child("items"));
        }
        for (name, property) in node.properties() {
            let way = Way::Field(around.way, name);
            let own = node.is(Flags::EMBEDDED) && matches!(name.as_ref(), "metadata" | "apiVersion" | "kind");
            let around = Around { way: &way, in_metadata: around.in_metadata || own, ..around };
            self.place(property.arc(), around, &path.child("properties").key(name));
        }
    }

    fn plain(&mut self, default: &Value, node: &Arc<Node>, around: Around<'_>, at: &Path<'_>) {
        if self.pruned && !is_pruned(default, node) {
            self.e.invalid(at, default, "must not have unknown fields");
        }
        let mut copy = default.clone();
        if let Err(fault) = coerce_at(&mut copy, node, at) {
            return self.e.extend(FieldErrors(vec![fault]));
        }
        let mut found = Errors::new();
        check_embedded(&copy, node, at, &mut found);
        if !found.is_empty() {
            return self.e.extend(found.finish());
        }
        self.values(default, node, around, at);
    }

    /// Validates a default of metadata, a kind or a version: it must result in a valid object.
    fn in_metadata(&mut self, default: &Value, node: &Arc<Node>, around: Around<'_>, at: &Path<'_>) {
        let mut object = around.way.object(default.clone());
        for (key, word) in [("kind", "Validation"), ("apiVersion", "validation/v1")] {
            if let Some(fields) = object.as_object_mut() {
                fields.entry(key).or_insert_with(|| word.into());
            }
        }
        let whole = Path::new("");
        let refused = match coerce_at(&mut object, around.root, &whole) {
            Err(fault) => Some(fault.to_string()),
            Ok(()) => {
                let mut found = Errors::new();
                check_embedded(&object, around.root, &whole, &mut found);
                let found = found.finish();
                (!found.is_empty()).then(|| found.to_string())
            }
        };
        match refused {
            Some(why) => self.e.invalid(at, default, format!("must result in valid metadata: {why}")),
            None => self.values(default, node, around, at),
        }
    }

    /// Validates keywords and rules. Transition rules are evaluated with the default as the old value, and without an
    /// old value.
    fn values(&mut self, default: &Value, node: &Arc<Node>, around: Around<'_>, at: &Path<'_>) {
        let found = validate(default, node, None, at);
        if !found.is_empty() {
            return self.e.extend(found);
        }
        if !node.is(Flags::BELOW_RULES) {
            return;
        }
        let rules = Rules::of(node, Arc::ptr_eq(node, around.root));
        let before = rules.ask_within(at, default, Some(default), None, self.left);
        let mut left = before.left;
        let clean = before.errors.is_empty();
        self.e.extend(FieldErrors(before.errors));
        if clean {
            let alone = rules.ask_within(at, default, None, None, self.left);
            left = left.min(alone.left);
            self.e.extend(FieldErrors(alone.errors));
        }
        self.left = left;
    }
}
