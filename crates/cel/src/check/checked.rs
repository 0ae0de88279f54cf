//! The result of checking an expression.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::library::Overload;
use crate::syntax::expr::{Expr, Id};
use crate::types::ty::Type;

/// A checked expression.
#[derive(Debug)]
pub(crate) struct Checked {
    pub root: Expr,
    /// The types of the nodes, by node ID.
    pub types: Vec<Type>,
    pub overloads: HashMap<Id, Vec<&'static Overload>>,
    /// The names of types, by the IDs of the nodes that refer to them.
    pub type_names: HashMap<Id, Arc<str>>,
    /// The used variables of the scope, each with the fields that are selected from it.
    pub used: BTreeMap<String, BTreeSet<String>>,
}
