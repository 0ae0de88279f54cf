//! What is evaluated. Where cel-go's planner would count a step or not, the form of the node says so.
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
    /// `==`, or `!=` where the flag is set.
    Equal(Box<(Node, Node)>, bool),
    /// What a loop asks of its condition: whether it is anything but false.
    NotFalse(Box<Node>),
    Call(Box<CallNode>),
    /// `value in [constants]`, which costs nothing of its own.
    InConst(Box<InConst>),
    List(Vec<(Node, bool)>),
    Map(Vec<EntryNode>),
    Struct(Box<StructNode>),
    Fold(Box<FoldNode>),
    /// `accu + [element]` in a loop: what is accumulated is added to, not copied.
    Push(Box<Push>),
    /// `cel.@mapInsert(accu, …)` in a loop.
    Insert(Box<Insert>),
    /// `optional.or(optional)`, and `.orValue(value)` where the flag is set.
    OrElse(Box<(Node, Node)>, bool),
}

/// A variable or a value, and what is selected from it: `a.b[c].?d`.
#[derive(Debug)]
pub(crate) struct Path {
    pub root: Root,
    pub steps: Vec<Step>,
    /// Whether only the presence of the last step is asked (`has()`).
    pub test: bool,
}

#[derive(Debug)]
pub(crate) enum Root {
    Variable(Arc<str>),
    /// A variable of a loop, by its slot.
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
    /// One where the types say which; otherwise the values decide.
    pub overloads: Vec<&'static Overload>,
    pub rule: Rule,
    pub args: Vec<Node>,
    /// A constant pattern, compiled.
    pub pattern: Option<Regex>,
}

#[derive(Debug)]
pub(crate) struct InConst {
    pub value: Node,
    pub list: Value<'static>,
    /// The elements, where they can be looked up.
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
    /// Name, value, and whether it was written `?name`.
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
    /// Absent where `value` is a map to be taken over whole.
    pub key: Option<Node>,
    pub value: Node,
}
