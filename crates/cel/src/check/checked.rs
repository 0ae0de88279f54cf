//! What checking an expression comes to.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::library::Overload;
use crate::syntax::expr::{Expr, Id};
use crate::types::ty::Type;

/// An expression that was checked.
#[derive(Debug)]
pub(crate) struct Checked {
    pub root: Expr,
    /// By node id.
    pub types: Vec<Type>,
    pub overloads: HashMap<Id, Vec<&'static Overload>>,
    /// Nodes that name a type, by the type's name.
    pub type_names: HashMap<Id, Arc<str>>,
    /// Variables of the scope that are used, and the fields that are selected of each.
    pub used: BTreeMap<String, BTreeSet<String>>,
}
