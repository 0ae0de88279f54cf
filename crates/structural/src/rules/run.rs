//! Evaluates the rules for an object at each location, outer ones first, within one budget for the request.
use kelson_cel::{Activation, Budget, EvalError, REQUEST_BUDGET, Value as Cel};
use kelson_meta::path::Path;
use kelson_meta::{FieldError, FieldErrorKind};
use kelson_schema::ListType;
use serde_json::Value;

use super::compile::{CompiledRule, OLD_SELF, SELF};
use super::message::{self, RuleMessage};
use super::place::{RuleNode, Rules};
use crate::object::{MapList, Old};
use crate::schema::Rule;

/// The result of rules.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Rules that failed, or could not be evaluated.
    pub errors: Vec<FieldError>,
    /// Failed rules for unchanged values, reported as warnings.
    pub warnings: Vec<String>,
    /// The remaining budget; 0 when it was exhausted before all rules were evaluated.
    pub left: u64,
}

/// The old value to compare with, and the nearest parent that has one.
#[derive(Clone, Copy, Default)]
struct Ratchet<'a> {
    here: Option<(Old<'a>, &'a Value)>,
    above: Option<(Old<'a>, &'a Value)>,
}

impl<'a> Ratchet<'a> {
    fn unchanged(self) -> bool {
        self.here.or(self.above).is_some_and(|(old, new)| old.equals(new))
    }
    fn below(self, old: Option<Old<'a>>, new: &'a Value) -> Self {
        if self.here.is_none() { self } else { Self { here: old.map(|old| (old, new)), above: self.here } }
    }
    fn key(self, key: &str, new: &'a Value) -> Self {
        // The kind and version of the object itself are those of the request, old and new alike.
        if self.here.is_some() && self.above.is_none() && matches!(key, "apiVersion" | "kind") {
            return Self::default();
        }
        self.below(self.here.and_then(|(old, _)| old.key(key)), new)
    }
}

impl Rules {
    /// Evaluates all rules for a value at `path`. Transition rules are evaluated if there is an `old` value; `matched`
    /// is the old value for which unchanged parts are ignored.
    pub fn ask(&self, path: &Path<'_>, value: &Value, old: Option<&Value>, matched: Option<Old<'_>>) -> Verdict {
        self.ask_within(path, value, old, matched, REQUEST_BUDGET)
    }
    /// The same with another budget.
    pub fn ask_within(
        &self,
        path: &Path<'_>,
        value: &Value,
        old: Option<&Value>,
        matched: Option<Old<'_>>,
        budget: u64,
    ) -> Verdict {
        let Some(root) = &self.root else { return Verdict { left: budget, ..Verdict::default() } };
        let mut run = Run { verdict: Verdict { left: budget, ..Verdict::default() }, budget: Budget::new(budget) };
        let ratchet = Ratchet { here: matched.map(|old| (old, value)), above: None };
        let ended = run.place(root, path, value, old, ratchet).is_err();
        if ended {
            run.verdict.left = 0;
        }
        run.verdict
    }
}

/// Ends the evaluation of rules.
struct Ended;

struct Run {
    verdict: Verdict,
    budget: Budget,
}

impl Run {
    fn place<'v>(
        &mut self,
        place: &RuleNode,
        path: &Path<'_>,
        value: &'v Value,
        old: Option<&'v Value>,
        ratchet: Ratchet<'v>,
    ) -> Result<(), Ended> {
        if value.is_null() {
            return Ok(());
        }
        self.rules(place, path, value, old.filter(|o| !o.is_null()), ratchet)?;
        match value {
            Value::Object(fields) => {
                let old_of = |key: &str| old.and_then(Value::as_object).and_then(|o| o.get(key));
                for (key, value) in fields {
                    if let Some(values) = &place.values {
                        self.place(values, &path.key(key), value, old_of(key), ratchet.key(key, value))?;
                    }
                    if let Some(property) = place.property(key) {
                        self.place(property, &path.child(key), value, old_of(key), ratchet.key(key, value))?;
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &place.items else { return Ok(()) };
                let node = &*place.node;
                let by_keys = node.list_type() == Some(ListType::Map);
                let before = old.and_then(Value::as_array).filter(|_| by_keys).map(|old| MapList::of(node, old));
                let elements = ratchet.here.and_then(|(old, _)| old.elements());
                for (i, element) in list.iter().enumerate() {
                    let old = before.as_ref().and_then(|b| b.get(element));
                    let below = ratchet.below(elements.as_ref().and_then(|e| e.get(element)), element);
                    self.place(items, &path.index(i), element, old, below)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rules(
        &mut self,
        place: &RuleNode,
        path: &Path<'_>,
        value: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
    ) -> Result<(), Ended> {
        if place.rules.is_empty() {
            return Ok(());
        }
        let at = path.field().to_string();
        let word = place.node.ty().word();
        let mut plain = Activation::new();
        plain.bind(SELF, Cel::typed(value, &place.decl));
        let mut optional = Activation::new();
        optional.bind(SELF, Cel::typed(value, &place.decl));
        optional.bind(OLD_SELF, Cel::Optional(None));
        if let Some(old) = old {
            plain.bind(OLD_SELF, Cel::typed(old, &place.decl));
            optional.bind(OLD_SELF, Cel::typed(old, &place.decl).map(Cel::some));
        }
        for (rule, compiled) in place.node.rules().iter().zip(&place.rules) {
            if self.verdict.left == 0 {
                self.invalid(&at, word, OUT_OF_BUDGET.to_owned());
                return Err(Ended);
            }
            if let Some(why) = &compiled.error {
                self.invalid(&at, word, format!("rule compile error: {why}"));
                continue;
            }
            let is_optional = rule.optional_old_self == Some(true);
            if compiled.program.is_none() || compiled.uses_old_self && old.is_none() && !is_optional {
                continue;
            }
            let activation = if is_optional { &optional } else { &plain };
            if self.holds(rule, compiled, activation, &at, word)? {
                continue;
            }
            self.failed(rule, compiled, activation, &at, value, word, ratchet)?;
        }
        Ok(())
    }

    /// Evaluates a rule; an evaluation error is reported here, and is not a failure of the rule.
    fn holds<'p>(
        &mut self,
        rule: &Rule,
        compiled: &'p CompiledRule,
        activation: &Activation<'p>,
        at: &str,
        word: &str,
    ) -> Result<bool, Ended> {
        let Some(program) = &compiled.program else { return Ok(true) };
        let before = self.budget.spent();
        let value = program.eval(activation, &mut self.budget);
        if !self.pay(before) {
            self.invalid(at, word, OUT_OF_BUDGET.to_owned());
            return Err(Ended);
        }
        let name = message::name_of(rule);
        match value {
            Ok(value) => return Ok(value.as_bool() == Some(true)),
            Err(why @ EvalError::CostLimit) => {
                let why = format!(
                    "'{why}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                );
                self.invalid(at, word, why);
                return Err(Ended);
            }
            Err(why) => {
                let why = why.to_string();
                let why = if why.starts_with("no such overload") {
                    format!(
                        "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                    )
                } else {
                    format!("{why} evaluating rule: {name}")
                };
                self.invalid(at, word, why);
            }
        }
        Ok(true)
    }

    /// Subtracts the cost since `before` from the budget. Returns whether there was enough.
    fn pay(&mut self, before: u64) -> bool {
        let cost = self.budget.spent().saturating_sub(before);
        let enough = cost <= self.verdict.left;
        self.verdict.left = self.verdict.left.saturating_sub(cost);
        enough
    }

    fn failed<'p>(
        &mut self,
        rule: &Rule,
        compiled: &'p CompiledRule,
        activation: &Activation<'p>,
        at: &str,
        value: &Value,
        word: &str,
        ratchet: Ratchet<'_>,
    ) -> Result<(), Ended> {
        let path = match &compiled.field_path {
            Some(below) if at == "<nil>" => below.clone(),
            Some(below) if below.starts_with('[') => format!("{at}{below}"),
            Some(below) => format!("{at}.{below}"),
            None => at.to_owned(),
        };
        // A transition rule is evaluated because its value has changed, so its errors are not ignored.
        let overlooked = !compiled.uses_old_self && ratchet.unchanged();
        let mut reported = None;
        if let Some(program) = &compiled.message {
            let before = self.budget.spent();
            let left = self.verdict.left;
            match message::evaluate(program, &rule.message_expression, activation, &mut self.budget, left) {
                RuleMessage::Message(text) => reported = Some(text),
                RuleMessage::Unusable => {}
                RuleMessage::TooDear(why) => {
                    self.invalid(&path, word, why);
                    return Err(Ended);
                }
            }
            self.pay(before);
        }
        let detail = reported.unwrap_or_else(|| message::plain(rule));
        let error = message::error(path, value, detail, &rule.reason);
        if overlooked {
            self.verdict.warnings.push(error.to_string());
        } else {
            self.verdict.errors.push(error);
        }
        Ok(())
    }

    fn invalid(&mut self, path: &str, word: &str, detail: String) {
        let value = Some(format!("{word:?}"));
        self.verdict.errors.push(FieldError { kind: FieldErrorKind::Invalid, path: path.to_owned(), value, detail });
    }
}

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
