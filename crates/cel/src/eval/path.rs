//! Evaluation of variables and of selections from them.
use super::machine::{Machine, Slot};
use super::node::{Node, Path, Root, StepKey};
use crate::value::Value;
use crate::value::error::{EvalError, Result};

impl<'a> Machine<'a, '_> {
    /// Evaluates a path. With `counted`, the variable costs 1. Each step costs 1, except an optional step that finds nothing.
    pub(super) fn path(&mut self, path: &'a Path, counted: bool) -> Result<Value<'a>> {
        if counted && !path.test && !matches!(path.root, Root::If(_)) {
            self.charge(1)?;
        }
        let mut value = match &path.root {
            Root::Variable(name) => self.activation.get(name)?,
            Root::Slot(slot) => self.slot(*slot)?,
            Root::Value(node) => self.eval(node)?,
            Root::If(parts) => self.branch(&parts.0, &parts.1, &parts.2)?,
        };
        if path.steps.is_empty() {
            return Ok(value);
        }
        let nothing = || if path.test { Value::Bool(false) } else { Value::Optional(None) };
        let mut optional = false;
        if let Value::Optional(inner) = value {
            let Some(inner) = inner else { return Ok(nothing()) };
            optional = true;
            value = (*inner).clone();
        }
        for (i, step) in path.steps.iter().enumerate() {
            optional |= step.optional;
            let computed;
            let key = match &step.key {
                StepKey::Const(key) => key,
                StepKey::Node(node) => {
                    computed = self.eval_uncounted(node)?;
                    &computed
                }
            };
            if path.test && i + 1 == path.steps.len() {
                self.charge(1)?;
                return Ok(Value::Bool(self.find(&value, key)?.is_some()));
            }
            if !optional {
                self.charge(1)?;
            }
            value = match self.find(&value, key)? {
                Some(found) => found,
                None if optional => return Ok(nothing()),
                None => return Err(value.missing(key)),
            };
            if optional {
                self.charge(1)?;
            }
        }
        Ok(if optional { Value::some(value) } else { value })
    }

    fn find(&mut self, value: &Value<'a>, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        match (value, key) {
            (Value::Variables, Value::Text(name)) => self.variable(name),
            _ => value.find(key),
        }
    }

    fn branch(&mut self, condition: &'a Node, yes: &'a Node, no: &'a Node) -> Result<Value<'a>> {
        match self.eval(condition)? {
            Value::Bool(true) => self.eval_uncounted(yes),
            Value::Bool(false) => self.eval_uncounted(no),
            _ => Err(EvalError::no_overload()),
        }
    }

    pub(super) fn slot(&mut self, slot: usize) -> Result<Value<'a>> {
        match &self.slots[slot] {
            Slot::Ready(value) => value.clone(),
            Slot::Lazy(init) => {
                let init = *init;
                let value = self.eval(init);
                self.slots[slot] = Slot::Ready(value.clone());
                value
            }
            Slot::Empty => Err(EvalError::new("a loop's variable has no value")),
        }
    }
}
