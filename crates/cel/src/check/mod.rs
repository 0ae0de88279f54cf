//! What type an expression has, and what is wrong with it before it is ever evaluated.
mod checker;
mod literals;
mod unify;

pub(crate) use checker::{Checked, Scope, check};
