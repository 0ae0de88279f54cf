//! A compiled expression.
use std::collections::{BTreeMap, BTreeSet};

use super::node::Node;
use crate::cost::range::Range;
use crate::types::ty::Type;

/// A compiled expression, made by [`crate::Env::compile`]. Any thread can evaluate it any number of times.
#[derive(Debug)]
pub struct Program {
    node: Node,
    slots: usize,
    output: Type,
    cost: Range,
    used: BTreeMap<String, BTreeSet<String>>,
}

impl Program {
    pub(crate) fn new(
        node: Node,
        slots: usize,
        output: Type,
        cost: Range,
        used: BTreeMap<String, BTreeSet<String>>,
    ) -> Program {
        Program { node, slots, output, cost, used }
    }
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The type of the program's value.
    pub fn output_type(&self) -> &Type {
        &self.output
    }
    /// The bounds of the cost of an evaluation, from the sizes that the declared types allow.
    pub fn cost(&self) -> Range {
        self.cost
    }
    /// Whether the program uses a variable of the environment.
    pub fn uses(&self, variable: &str) -> bool {
        self.used.contains_key(variable)
    }
    /// The fields that the program selects directly from a variable. Empty if the variable is not used, or only as a whole.
    pub fn fields_of(&self, variable: &str) -> impl Iterator<Item = &str> {
        self.used.get(variable).into_iter().flatten().map(String::as_str)
    }
}
