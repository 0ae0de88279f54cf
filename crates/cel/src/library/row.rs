//! What a row of a library says, and whether values fit it.
use crate::cost::Rule;
use crate::types::ty::Type;
use crate::value::Value;
use crate::value::error::{EvalError, Result};

/// What a function does with its arguments, the receiver first.
pub(crate) type Do = for<'a> fn(&[Value<'a>]) -> Result<Value<'a>>;

/// One line of a library's table.
pub(crate) struct Row(pub &'static str, pub &'static str, pub Do, pub Rule);

/// One of the forms of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub id: &'static str,
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    /// Whether there are type parameters in it.
    pub parametric: bool,
    pub run: Do,
    pub cost: Rule,
}

impl Overload {
    /// Whether it is made for such arguments; parameters and dyn take anything.
    pub fn takes(&self, args: &[Value<'_>]) -> bool {
        self.args.len() == args.len() && self.args.iter().zip(args).all(|(ty, value)| is(ty, value))
    }
}

fn is(ty: &Type, value: &Value<'_>) -> bool {
    match ty {
        Type::Dyn | Type::Param(_) | Type::Var(_) | Type::Error => true,
        // What most arguments are: no names have to be compared.
        Type::Bool => matches!(value, Value::Bool(_)),
        Type::Int => matches!(value, Value::Int(_)),
        Type::Uint => matches!(value, Value::Uint(_)),
        Type::Double => matches!(value, Value::Double(_)),
        Type::String => matches!(value, Value::Text(_)),
        Type::Map(_) => matches!(value, Value::Map(_) | Value::Variables),
        // The first element speaks for all, as in cel-go.
        Type::List(element) => match value {
            Value::List(list) if list.is_empty() => true,
            Value::List(list) => list.get(0).is_ok_and(|first| is(element, &first)),
            _ => false,
        },
        ty => ty.name() == value.type_name(),
    }
}

/// Of rows whose work the evaluator does itself.
pub(super) fn elsewhere<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Err(EvalError::no_overload())
}

/// The fault of arguments that a function is not made for.
pub(crate) fn not_for(function: &str, args: &[Value<'_>]) -> EvalError {
    let types: Vec<&str> = args.iter().map(Value::type_name).collect();
    EvalError::new(format!("no such overload: {function}({})", types.join(", ")))
}
