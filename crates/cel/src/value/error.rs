//! The errors of an evaluation.
use std::borrow::Cow;
use std::fmt;

/// Why an evaluation ended. `Display` gives the string in upstream's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// An error of the expression, such as a missing key. `||`, `&&` and loops may continue after it.
    Fault(Cow<'static, str>),
    /// The cost limit of one evaluation was exceeded.
    CostLimit,
    /// The caller's deadline has passed.
    Interrupted,
}

pub(crate) type Result<T> = std::result::Result<T, EvalError>;

impl EvalError {
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> EvalError {
        EvalError::Fault(message.into())
    }
    /// The error for values that the function does not accept.
    pub(crate) fn no_overload() -> EvalError {
        EvalError::Fault(Cow::Borrowed("no such overload"))
    }
    /// The error of a named expression, for the expression that uses it.
    pub(crate) fn of_variable(self, name: &str) -> EvalError {
        match self {
            EvalError::Fault(why) => EvalError::new(format!("composited variable {name:?} fails to evaluate: {why}")),
            last => last,
        }
    }
    /// Whether the evaluation must stop.
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
