//! Function calls. The cost of a call is charged before it is made.
use super::machine::Machine;
use super::node::CallNode;
use crate::cost;
use crate::library::{self, regex};
use crate::value::Value;
use crate::value::error::Result;

impl<'a> Machine<'a, '_> {
    pub(super) fn call(&mut self, call: &'a CallNode) -> Result<Value<'a>> {
        match &call.args[..] {
            [] => self.apply(call, &[]),
            [a] => match self.eval(a) {
                Ok(a) => self.apply(call, &[a]),
                Err(e) => {
                    self.charge(1)?;
                    Err(e)
                }
            },
            [a, b] => {
                let args = self.both(a, b)?;
                self.apply(call, &args)
            }
            many => {
                let args = many.iter().map(|a| self.eval(a)).collect::<Result<Vec<_>>>()?;
                self.apply(call, &args)
            }
        }
    }

    fn apply(&mut self, call: &CallNode, args: &[Value<'a>]) -> Result<Value<'a>> {
        self.charge(cost::actual(call.rule, args)?)?;
        if let Some(pattern) = &call.pattern {
            return regex::with(pattern, &call.function, args);
        }
        match &call.overloads[..] {
            [only] => (only.run)(args),
            many => match many.iter().find(|o| o.takes(args)) {
                Some(overload) => (overload.run)(args),
                None if call.function.contains('_') || call.function.starts_with('@') => {
                    Err(crate::EvalError::no_overload())
                }
                None => Err(library::not_for(&call.function, args)),
            },
        }
    }
}
