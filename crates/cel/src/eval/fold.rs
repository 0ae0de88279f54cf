//! Evaluation of loops.
use super::machine::{Machine, Slot};
use super::node::{FoldNode, Node};
use crate::value::Value;
use crate::value::error::{EvalError, Result};

/// The number of iterations after which the deadline is checked (`CheckFrequency` upstream).
const CHECKED: u64 = 100;
/// The most iterations in one evaluation. The cost limit does not bound them, because an iteration over constants is free.
const ROUNDS: u64 = 2_000_000;

impl<'a> Machine<'a, '_> {
    pub(super) fn fold(&mut self, fold: &'a FoldNode) -> Result<Value<'a>> {
        let range = self.eval(&fold.range)?;
        // The initial value is a constant, unless the loop only binds a value to a name, which is then evaluated on first use.
        self.slots[fold.accu] = match &fold.init {
            Node::Const(value) => Slot::Ready(Ok(Self::fresh(value.clone()))),
            init => Slot::Lazy(init),
        };
        match &range {
            Value::List(list) => {
                for i in 0..list.len() {
                    let element = list.get(i);
                    let first = if fold.var2.is_some() { Ok(Value::Int(i as i64)) } else { element.clone() };
                    if !self.round(fold, first, element)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for key in map.keys() {
                    let value = match fold.var2 {
                        Some(_) => map.find(&key).map(|v| v.unwrap_or(Value::Null)),
                        None => Ok(Value::Null),
                    };
                    if !self.round(fold, Ok(key), value)? {
                        break;
                    }
                }
            }
            other => return Err(not_a_range(fold, other)),
        }
        let result = self.eval(&fold.result);
        self.slots[fold.accu] = Slot::Empty;
        result
    }

    /// Evaluates one element. Returns false if the loop ends here.
    fn round(&mut self, fold: &'a FoldNode, first: Result<Value<'a>>, second: Result<Value<'a>>) -> Result<bool> {
        self.rounds += 1;
        if self.rounds > ROUNDS {
            return Err(EvalError::CostLimit);
        }
        if self.rounds.is_multiple_of(CHECKED) && self.budget.is_late() {
            return Err(EvalError::Interrupted);
        }
        self.slots[fold.var] = Slot::Ready(first);
        if let Some(var2) = fold.var2 {
            self.slots[var2] = Slot::Ready(second);
        }
        match self.eval(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(e) if e.is_final() => return Err(e),
            _ => {}
        }
        // An error is accumulated like a value, since a later element may still decide the result.
        let next = self.eval(&fold.step);
        if let Err(e) = &next
            && e.is_final()
        {
            return Err(e.clone());
        }
        self.slots[fold.accu] = Slot::Ready(next);
        Ok(true)
    }
}

fn not_a_range(fold: &FoldNode, value: &Value<'_>) -> EvalError {
    let go_type = match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::Text(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::Optional(_) => "*types.Optional",
        Value::Type(_) => "*types.Type",
        other => other.type_name(),
    };
    EvalError::new(match fold.var2 {
        Some(_) => format!("unsupported comprehension range type: {go_type}"),
        None => format!("got '{go_type}', expected iterable type"),
    })
}
