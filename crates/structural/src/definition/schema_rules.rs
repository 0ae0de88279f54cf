//! Validates `x-kubernetes-validations` of a node: its fields, whether the rules compile, and their cost.
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use kelson_meta::path::{Errors, GoStruct, Path};
use kelson_meta::tree::{flag, items, present, text};
use kelson_meta::{FieldError, FieldErrorKind, FieldErrors};
use serde_json::Value;

use super::costs::{Costs, RULE_COST_MAX, too_dear};
use crate::Structural;
use crate::rules::{Brackets, CompiledRule, Decls, compile, field_path};
use crate::schema::{Flags, Node};

const RULES: &str = "x-kubernetes-validations";
const REASONS: &[&str] = &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// A node as its rules see it.
pub(super) struct RuleScope {
    pub node: Arc<Node>,
    /// The number of times that it can occur in an object. `None` if unbounded.
    cardinality: Option<u64>,
    /// Whether there are rules at this node or around it. Only then types matter.
    within: bool,
    root: bool,
}

impl RuleScope {
    pub fn root(node: &Arc<Node>, within: bool) -> Self {
        Self { node: Arc::clone(node), cardinality: Some(1), within, root: true }
    }
    /// Returns a position below this one, with its tree.
    pub fn below(&self, tree: &Value, child: &Arc<Node>) -> Option<Self> {
        let often = |key: &str| tree[key].as_i64().map(|n| u64::try_from(n).unwrap_or(0));
        let times = match text(&tree["type"]) {
            "object" if present(&tree["additionalProperties"]) => often("maxProperties"),
            "array" => often("maxItems"),
            _ => Some(1),
        };
        let cardinality = self.cardinality.zip(times).map(|(outer, times)| outer.saturating_mul(times));
        let within = self.within || !child.rules().is_empty();
        Some(Self { node: Arc::clone(child), cardinality, within, root: false })
    }
}

/// The rules that were compiled already. Equal nodes have equal rules.
#[derive(Default)]
struct Compiled {
    decls: Decls,
    made: HashMap<(*const Node, bool), Option<Rc<Vec<CompiledRule>>>>,
}

impl Compiled {
    fn of(&mut self, scope: &RuleScope) -> Option<Rc<Vec<CompiledRule>>> {
        let root = scope.root || scope.node.is(Flags::EMBEDDED);
        let key = (Arc::as_ptr(&scope.node), root);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let decl = self.decls.of(&scope.node, root);
        let made = decl.map(|decl| Rc::new(compile(&scope.node, &decl)));
        self.made.insert(key, made.clone());
        made
    }
}

fn has_line_breaks(text: &str) -> bool {
    text.contains(['\n', '\r'])
}

/// Validates the strings of rules, whether or not the rules compile.
pub(super) fn check_texts(tree: &Value, path: &Path<'_>, e: &mut Errors) {
    let rules = path.child(RULES);
    for (i, rule) in items(&tree[RULES]).iter().enumerate() {
        let at = rules.index(i);
        let of = |key: &str| text(&rule[key]);
        let (expression, message, reported) = (of("rule").trim(), of("message"), of("message").trim());
        let message_path = at.child("message");
        match () {
            () if expression.is_empty() => e.required(&at.child("rule"), "rule is not specified"),
            () if !message.is_empty() && reported.is_empty() => {
                e.invalid(&message_path, message, "must be non-empty if specified");
            }
            () if has_line_breaks(reported) => e.invalid(&message_path, message, "must not contain line breaks"),
            () if has_line_breaks(expression) && reported.is_empty() => {
                e.required(&message_path, "message must be specified if rule contains line breaks");
            }
            () => {}
        }
        if !of("messageExpression").is_empty() && of("messageExpression").trim().is_empty() {
            e.required(&at.child("messageExpression"), "messageExpression must be non-empty if specified");
        }
        if let Some(reason) = rule["reason"].as_str().filter(|r| !REASONS.contains(r)) {
            e.not_supported(&at.child("reason"), reason, REASONS);
        }
        check_field_path(of("fieldPath"), tree, &at.child("fieldPath"), e);
    }
}

fn check_field_path(written: &str, tree: &Value, path: &Path<'_>, e: &mut Errors) {
    if written.is_empty() {
        return;
    }
    if written.trim().is_empty() {
        e.invalid(path, written, "must be non-empty if specified");
    }
    if has_line_breaks(written) {
        e.invalid(path, written, "must not contain line breaks");
    }
    let schema = Structural::parse(tree);
    if schema.is_ok_and(|s| field_path(written, s.declared(), Brackets::Allowed).is_err()) {
        e.invalid(path, written, "must be a valid path");
    }
}

/// The result of checking the rules of one schema.
pub(super) struct RuleCheck {
    /// Whether single rules may exceed the cost limit.
    unchanged: bool,
    pub faults: FieldErrors,
    pub costs: Costs,
    compiled: Compiled,
}

impl RuleCheck {
    pub fn new(unchanged: bool) -> Self {
        Self { unchanged, faults: FieldErrors::new(), costs: Costs::default(), compiled: Compiled::default() }
    }

    /// Checks whether the rules of a node compile, and their cost.
    pub fn check(&mut self, tree: &Value, path: &Path<'_>, uncorrelatable: Option<&Path<'_>>, scope: &RuleScope) {
        let rules = path.child(RULES);
        if !scope.within {
            return;
        }
        let Some(compiled) = self.compiled.of(scope) else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            return self.internal(&rules, detail);
        };
        for (i, (rule, compiled)) in items(&tree[RULES]).iter().zip(compiled.iter()).enumerate() {
            let at = rules.index(i);
            self.one(rule, compiled, &at, uncorrelatable, scope);
        }
    }

    fn internal(&mut self, path: &Path<'_>, detail: &str) {
        let path = path.field().to_string();
        self.faults.0.push(FieldError { kind: FieldErrorKind::Internal, path, value: None, detail: detail.to_owned() });
    }

    fn one(
        &mut self,
        rule: &Value,
        compiled: &CompiledRule,
        at: &Path<'_>,
        uncorrelatable: Option<&Path<'_>>,
        scope: &RuleScope,
    ) {
        let rule_path = at.child("rule");
        let message_path = at.child("messageExpression");
        let mut e = Errors::new();
        let cost = compiled.cost_max.saturating_mul(scope.cardinality.unwrap_or(compiled.cardinality_max));
        if !self.unchanged && cost > RULE_COST_MAX {
            e.forbidden(&rule_path, too_dear("estimated rule cost", cost, RULE_COST_MAX));
        }
        self.costs.add(&rule_path, cost);
        if let Some(why) = &compiled.error {
            shown(&mut e, &rule_path, rule, why);
        }
        if let Some(why) = &compiled.message_error {
            shown(&mut e, &message_path, rule, why);
        } else if compiled.message.is_some() {
            let cost = compiled.message_cost_max;
            if !self.unchanged && cost > RULE_COST_MAX {
                e.forbidden(&message_path, too_dear("estimated messageExpression cost", cost, RULE_COST_MAX));
            }
            self.costs.add(&message_path, cost);
        }
        if compiled.uses_old_self {
            if let Some(outer) = uncorrelatable {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {}",
                    outer.field()
                );
                e.invalid(&rule_path, text(&rule["rule"]), why);
            }
        } else if present(&rule["optionalOldSelf"]) {
            let why = "may not be set if oldSelf is not used in rule";
            e.invalid(&at.child("optionalOldSelf"), flag(&rule["optionalOldSelf"]), why);
        }
        self.faults.extend(e.finish());
    }
}

/// Adds an error of a rule. The rule is shown with upstream's names of its parts.
fn shown(e: &mut Errors, path: &Path<'_>, rule: &Value, why: &str) {
    let [text_of_rule, message, expression, field] =
        ["rule", "message", "messageExpression", "fieldPath"].map(|key| Value::from(text(&rule[key])));
    let parts = [
        ("Rule", &text_of_rule),
        ("Message", &message),
        ("MessageExpression", &expression),
        ("Reason", &rule["reason"]),
        ("FieldPath", &field),
        ("OptionalOldSelf", &rule["optionalOldSelf"]),
    ];
    e.invalid(path, GoStruct(parts), why);
}
