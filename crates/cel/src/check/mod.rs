//! What type an expression has, and what is wrong with it before it is ever evaluated.
mod checked;
mod checker;
mod literals;
mod unify;

pub(crate) use checked::Checked;
pub(crate) use checker::{Scope, check};
