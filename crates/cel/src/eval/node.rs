//! The nodes that are evaluated. Their forms encode which steps cel-go's planner counts.
use std::collections::BTreeSet;
use std::sync::Arc;

use regex::Regex;

use crate::cost::Rule;
use crate::library::Overload;
use crate::value::{Key, Value};

#[derive(Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    Path(Box<Path>),
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    /// `==`, or `!=` if the flag is set.
    Equal(Box<(Node, Node)>, bool),
    /// The condition of a loop: whether the value is anything but false.
    NotFalse(Box<Node>),
    Call(Box<CallNode>),
    /// `value in [constants]`, which has no additional cost.
    InConst(Box<InConst>),
    List(Vec<(Node, bool)>),
    Map(Vec<EntryNode>),
    Struct(Box<StructNode>),
    Fold(Box<FoldNode>),
    /// `accu + [element]` in a loop, which adds to the accumulated list in place.
    Push(Box<Push>),
    /// `cel.@mapInsert(accu, …)` in a loop.
    Insert(Box<Insert>),
    /// `optional.or(optional)`, or `.orValue(value)` if the flag is set.
    OrElse(Box<(Node, Node)>, bool),
}

/// A variable or a value with the selections from it, such as `a.b[c].?d`.
#[derive(Debug)]
pub(crate) struct Path {
    pub root: Root,
    pub steps: Vec<Step>,
    /// Whether only the presence of the last step is tested (`has()`).
    pub test: bool,
}

#[derive(Debug)]
pub(crate) enum Root {
    Variable(Arc<str>),
    /// A loop variable, by its slot.
    Slot(usize),
    Value(Node),
    /// `condition ? a : b`.
    If(Box<(Node, Node, Node)>),
}

#[derive(Debug)]
pub(crate) struct Step {
    pub key: StepKey,
    pub optional: bool,
}

#[derive(Debug)]
pub(crate) enum StepKey {
    Const(Value<'static>),
    Node(Node),
}

#[derive(Debug)]
pub(crate) struct CallNode {
    pub function: String,
    /// The possible overloads. If the types do not determine a single one, the values do.
    pub overloads: Vec<&'static Overload>,
    pub rule: Rule,
    pub args: Vec<Node>,
    /// The compiled pattern, if it is a constant.
    pub pattern: Option<Regex>,
}

#[derive(Debug)]
pub(crate) struct InConst {
    pub value: Node,
    pub list: Value<'static>,
    /// The elements as a set, if they can be looked up.
    pub set: Option<BTreeSet<Key<'static>>>,
}

#[derive(Debug)]
pub(crate) struct EntryNode {
    pub key: Node,
    pub value: Node,
    pub optional: bool,
}

#[derive(Debug)]
pub(crate) struct StructNode {
    pub name: Arc<str>,
    /// Each field's name and value, and whether it was written `?name`.
    pub fields: Vec<(Arc<str>, Node, bool)>,
}

#[derive(Debug)]
pub(crate) struct FoldNode {
    pub range: Node,
    pub accu: usize,
    pub var: usize,
    pub var2: Option<usize>,
    pub init: Node,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
}

#[derive(Debug)]
pub(crate) struct Push {
    pub accu: usize,
    pub element: Node,
}

#[derive(Debug)]
pub(crate) struct Insert {
    pub accu: usize,
    /// The key. `None` if `value` is a map whose entries are all inserted.
    pub key: Option<Node>,
    pub value: Node,
}
