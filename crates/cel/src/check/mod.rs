//! Type checking: the type of an expression, and its errors before any evaluation.
mod checked;
mod checker;
mod literals;
mod unify;

pub(crate) use checked::Checked;
pub(crate) use checker::{Scope, check};
