//! The cost limits of rules: for each rule, and for all rules of a schema.
use kelson_meta::path::{Errors, Path};
use kelson_meta::{FieldError, FieldErrorKind};

/// The cost limit of one rule: its estimate multiplied by the number of times that its node can occur in an object.
pub(super) const RULE_COST_MAX: u64 = 10_000_000;
/// The cost limit of all rules of a schema together.
const SCHEMA_COST_MAX: u64 = 100_000_000;
/// The number of rules that are named if the total cost is too high, and the part of the limit that a named rule must
/// have.
const NAMED_MAX: usize = 4;
const NAMED_COST_MIN: u64 = SCHEMA_COST_MAX / 100;

/// The costs of a schema's rules so far.
#[derive(Default)]
pub(super) struct Costs {
    total: u64,
    /// The most expensive rules, the most expensive first.
    named: Vec<(u64, String)>,
}

impl Costs {
    pub fn add(&mut self, path: &Path<'_>, cost: u64) {
        self.total = self.total.saturating_add(cost);
        if cost < NAMED_COST_MIN {
            return;
        }
        let at = self.named.partition_point(|(other, _)| *other >= cost);
        if at < NAMED_MAX {
            self.named.insert(at, (cost, path.field().to_string()));
            self.named.truncate(NAMED_MAX);
        }
    }
    /// Reports that the total cost is too high, and the rules that cause it.
    pub fn check(&self, root: &Path<'_>, e: &mut Errors) {
        if self.total <= SCHEMA_COST_MAX {
            return;
        }
        let mut found = kelson_meta::FieldErrors::new();
        for (_, path) in &self.named {
            found.0.push(FieldError {
                kind: FieldErrorKind::Forbidden,
                path: path.clone(),
                value: None,
                detail: "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
                    .to_owned(),
            });
        }
        e.extend(found);
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        e.forbidden(root, too_dear(what, self.total, SCHEMA_COST_MAX));
    }
}

/// Formats the error that a cost exceeds its limit, and by how much.
pub(super) fn too_dear(what: &str, cost: u64, max: u64) -> String {
    let times = cost as f64 / max as f64;
    let factor = match () {
        () if times > 100.0 => "more than 100x".to_owned(),
        () if times < 1.5 => format!("{times:.6}x"),
        () => format!("{times:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
