//! The validation of an object by its schema, in the order of upstream's strategy for custom resources
//! (`pkg/registry/customresource/strategy.go`). The caller validates what is common to all kinds (metadata, type).
use std::sync::OnceLock;

use kelson_meta::path::{Errors, Path};
use kelson_meta::{FieldError, FieldErrorKind, FieldErrors};
use serde_json::Value;

use crate::Structural;
use crate::object::{Old, check_embedded, check_lists, validate};
use crate::rules::Rules;
use crate::schema::Flags;

/// Validates the objects of one version of a kind. Its rules are compiled for the first object, so that kinds without
/// objects cost nothing.
#[derive(Debug)]
pub struct Validator {
    schema: Structural,
    rules: OnceLock<Rules>,
}

impl Validator {
    /// Makes a validator for an accepted schema.
    pub fn new(schema: Structural) -> Self {
        Self { schema, rules: OnceLock::new() }
    }
    /// Returns the schema.
    pub fn schema(&self) -> &Structural {
        &self.schema
    }

    /// Reports whether there are rules. Their cost is bounded by the limits of expressions.
    pub fn has_rules(&self) -> bool {
        self.schema.declared().is(Flags::BELOW_RULES)
    }

    /// Returns the errors of a new object. `errors` are those of the caller: rules are evaluated only when there are no
    /// errors that could break them. `counted` are errors of the numbers of its scale, reported after those of the
    /// schema.
    pub fn check_create(&self, object: &Value, counted: FieldErrors, errors: &mut FieldErrors) {
        let node = self.schema.declared();
        errors.extend(validate(object, node, None, &Path::new("")));
        errors.extend(counted);
        let mut e = Errors::new();
        check_embedded(object, node, &Path::new(""), &mut e);
        check_lists(object, node, &Path::new(""), &mut e);
        errors.extend(e.finish());
        self.ask(object, None, errors);
    }

    /// Returns the errors of a change in `errors`. The result is warnings for users: rules that fail for unchanged
    /// parts.
    pub fn check_update(
        &self,
        new: &Value,
        old: &Value,
        counted: FieldErrors,
        errors: &mut FieldErrors,
    ) -> Vec<String> {
        let node = self.schema.declared();
        errors.extend(validate(new, node, Some(Old { value: old, node }), &Path::new("")));
        errors.extend(counted);
        let mut e = Errors::new();
        check_embedded(new, node, &Path::new(""), &mut e);
        errors.extend(e.finish());
        self.check_lists_of_update(new, old, errors);
        self.ask(new, Some(old), errors)
    }

    /// Validates a change of only `status`. Warnings are as for other changes.
    pub fn check_status_update(
        &self,
        new: &Value,
        old: &Value,
        counted: FieldErrors,
        errors: &mut FieldErrors,
    ) -> Vec<String> {
        let node = self.schema.declared();
        if let (Some(status), Some(schema)) = (new.get("status"), node.property("status")) {
            let old = Old { value: old, node }.key("status");
            errors.extend(validate(status, schema, old, &Path::new("status")));
        }
        errors.extend(counted);
        self.check_lists_of_update(new, old, errors);
        self.ask(new, Some(old), errors)
    }

    /// Validates lists. Lists that were not unique before may stay so.
    fn check_lists_of_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let faults = |object: &Value| {
            let mut e = Errors::new();
            check_lists(object, self.schema.declared(), &Path::new(""), &mut e);
            e.finish()
        };
        let found = faults(new);
        if !found.is_empty() && faults(old).is_empty() {
            errors.extend(found);
        }
    }

    fn ask(&self, object: &Value, old: Option<&Value>, errors: &mut FieldErrors) -> Vec<String> {
        let node = self.schema.declared();
        if !self.has_rules() {
            return Vec::new();
        }
        if errors.0.iter().any(|e| is_blocking(e.kind)) {
            errors.0.push(FieldError {
                kind: FieldErrorKind::Invalid,
                path: "<nil>".to_owned(),
                value: Some("null".to_owned()),
                detail: UNCHECKED.to_owned(),
            });
            return Vec::new();
        }
        let rules = self.rules.get_or_init(|| Rules::of(node, true));
        let matched = old.map(|value| Old { value, node });
        let verdict = rules.ask(&Path::new(""), object, old, matched);
        errors.0.extend(verdict.errors);
        verdict.warnings
    }
}

const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

/// Whether a fault is one that expressions would stumble over: of type, size or presence.
fn is_blocking(kind: FieldErrorKind) -> bool {
    matches!(
        kind,
        FieldErrorKind::NotSupported
            | FieldErrorKind::Required
            | FieldErrorKind::TooLong
            | FieldErrorKind::TooMany
            | FieldErrorKind::TypeInvalid
    )
}
