//! Why there is no value.
use std::borrow::Cow;
use std::fmt;

/// What ended an evaluation. `Display` gives the text that upstream's messages contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// The expression's own fault, such as a key that is not there. `||`, `&&` and loops may go on past it.
    Fault(Cow<'static, str>),
    /// More was spent than one evaluation may.
    CostLimit,
    /// The caller's deadline has passed.
    Interrupted,
}

pub(crate) type Result<T> = std::result::Result<T, EvalError>;

impl EvalError {
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> EvalError {
        EvalError::Fault(message.into())
    }
    /// The function is not made for such values.
    pub(crate) fn no_overload() -> EvalError {
        EvalError::Fault(Cow::Borrowed("no such overload"))
    }
    /// The fault of a named expression, as whoever asked for it is told.
    pub(crate) fn of_variable(self, name: &str) -> EvalError {
        match self {
            EvalError::Fault(why) => EvalError::new(format!("composited variable {name:?} fails to evaluate: {why}")),
            last => last,
        }
    }
    /// Whether nothing may go on.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self, EvalError::Fault(_))
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EvalError::Fault(message) => message,
            EvalError::CostLimit => "operation cancelled: actual cost limit exceeded",
            EvalError::Interrupted => "operation interrupted",
        })
    }
}
impl std::error::Error for EvalError {}
