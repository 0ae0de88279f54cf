//! The rows of library tables, and the match of values with their types.
use crate::cost::Rule;
use crate::types::ty::Type;
use crate::value::Value;
use crate::value::error::{EvalError, Result};

/// The implementation of a function. The receiver is the first argument.
pub(crate) type Do = for<'a> fn(&[Value<'a>]) -> Result<Value<'a>>;

/// One row of a library's table: ID, signature, implementation and cost rule.
pub(crate) struct Row(pub &'static str, pub &'static str, pub Do, pub Rule);

/// One overload of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub id: &'static str,
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    /// Whether the signature has type parameters.
    pub parametric: bool,
    pub run: Do,
    pub cost: Rule,
}

impl Overload {
    /// Whether the overload accepts these arguments. Parameters and dyn accept any value.
    pub fn takes(&self, args: &[Value<'_>]) -> bool {
        self.args.len() == args.len() && self.args.iter().zip(args).all(|(ty, value)| is(ty, value))
    }
}

fn is(ty: &Type, value: &Value<'_>) -> bool {
    match ty {
        Type::Dyn | Type::Param(_) | Type::Var(_) | Type::Error => true,
        // These are the types of most arguments. They need no comparison of names.
        Type::Bool => matches!(value, Value::Bool(_)),
        Type::Int => matches!(value, Value::Int(_)),
        Type::Uint => matches!(value, Value::Uint(_)),
        Type::Double => matches!(value, Value::Double(_)),
        Type::String => matches!(value, Value::Text(_)),
        Type::Map(_) => matches!(value, Value::Map(_) | Value::Variables),
        // Only the first element is checked, as in cel-go.
        Type::List(element) => match value {
            Value::List(list) if list.is_empty() => true,
            Value::List(list) => list.get(0).is_ok_and(|first| is(element, &first)),
            _ => false,
        },
        ty => ty.name() == value.type_name(),
    }
}

/// The implementation of rows that the evaluator handles itself.
pub(super) fn elsewhere<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Err(EvalError::no_overload())
}

/// The error for arguments that a function does not accept.
pub(crate) fn not_for(function: &str, args: &[Value<'_>]) -> EvalError {
    let types: Vec<&str> = args.iter().map(Value::type_name).collect();
    EvalError::new(format!("no such overload: {function}({})", types.join(", ")))
}
