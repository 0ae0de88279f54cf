//! Compiles a checked tree to nodes: names become slots, constants are computed, and patterns are compiled.
use std::collections::BTreeSet;

use super::node::{CallNode, EntryNode, FoldNode, InConst, Insert, Node, Path, Push, Root, Step, StepKey, StructNode};
use crate::check::Checked;
use crate::cost::Rule;
use crate::library::{convert, regex};
use crate::syntax::ACCU;
use crate::syntax::expr::{self, Expr, Kind, Literal};
use crate::value::error::EvalError;
use crate::value::{Key, Map, Text, Value};

/// Returns the nodes of a program and the number of slots for its loops. With `fold`, constant expressions are computed now and then
/// cost nothing, as in Kubernetes. The error is that of a constant that cannot be computed.
pub(crate) fn plan(checked: &Checked, fold: bool) -> Result<(Node, usize), EvalError> {
    let mut planner = Planner { checked, fold, names: Vec::new(), slots: 0 };
    let root = planner.node(&checked.root)?;
    Ok((root, planner.slots))
}

type Planned = Result<Node, EvalError>;

struct Planner<'c> {
    checked: &'c Checked,
    fold: bool,
    /// The loop variables in scope, with their slots.
    names: Vec<(&'c str, usize)>,
    slots: usize,
}

impl<'c> Planner<'c> {
    fn slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }

    fn node(&mut self, expr: &'c Expr) -> Planned {
        if let Some(name) = self.checked.type_names.get(&expr.id) {
            return Ok(Node::Const(Value::Type(Text::Shared(name.clone()))));
        }
        match &expr.kind {
            Kind::Literal(literal) => Ok(Node::Const(constant(literal))),
            Kind::Ident(name) => Ok(Node::Path(Box::new(Path { root: self.root(name), steps: vec![], test: false }))),
            Kind::Select { operand, field, test } => {
                let mut path = self.path(operand)?;
                path.steps.push(Step { key: StepKey::Const(Value::text(field.as_str())), optional: false });
                path.test = *test;
                Ok(Node::Path(path))
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct(s) => self.construct(s),
            Kind::Fold(fold) => self.fold(fold),
            Kind::Fault => Err(EvalError::new("a faulty expression cannot be planned")),
        }
    }

    fn root(&self, name: &str) -> Root {
        let name = name.strip_prefix('.').unwrap_or(name);
        match self.names.iter().rev().find(|(n, _)| *n == name) {
            Some((_, slot)) => Root::Slot(*slot),
            None => Root::Variable(name.into()),
        }
    }

    /// The operand of a selection: a path that is continued, or a value that starts one.
    fn path(&mut self, operand: &'c Expr) -> Result<Box<Path>, EvalError> {
        Ok(match self.node(operand)? {
            Node::Path(path) if !path.test => path,
            other => Box::new(Path { root: Root::Value(other), steps: Vec::new(), test: false }),
        })
    }

    fn call(&mut self, expr: &'c Expr, call: &'c expr::Call) -> Planned {
        match (call.function.as_str(), &call.args[..]) {
            ("_&&_", [a, b]) => return Ok(Node::And(Box::new((self.node(a)?, self.node(b)?)))),
            ("_||_", [a, b]) => return Ok(Node::Or(Box::new((self.node(a)?, self.node(b)?)))),
            ("_==_", [a, b]) => return Ok(Node::Equal(Box::new((self.node(a)?, self.node(b)?)), false)),
            ("_!=_", [a, b]) => return Ok(Node::Equal(Box::new((self.node(a)?, self.node(b)?)), true)),
            ("@not_strictly_false", [a]) => return Ok(Node::NotFalse(Box::new(self.node(a)?))),
            ("_?_:_", [c, a, b]) => {
                let parts = Box::new((self.node(c)?, self.node(a)?, self.node(b)?));
                return Ok(Node::Path(Box::new(Path { root: Root::If(parts), steps: Vec::new(), test: false })));
            }
            ("_[_]" | "_[?_]" | "_?._", [operand, index]) => {
                let optional = call.function != "_[_]";
                let mut path = self.path(operand)?;
                let key = match self.node(index)? {
                    Node::Const(value) => StepKey::Const(value),
                    node => StepKey::Node(node),
                };
                path.steps.push(Step { key, optional });
                return Ok(Node::Path(path));
            }
            ("_+_", [accu, list]) if accu.ident() == Some(ACCU) => {
                if let (Kind::List(items), Root::Slot(slot)) = (&list.kind, self.root(ACCU))
                    && let [(element, false)] = &items[..]
                {
                    let element = self.node(element)?;
                    return Ok(Node::Push(Box::new(Push { accu: slot, element })));
                }
            }
            ("cel.@mapInsert", [_, rest @ ..]) => {
                if let (Root::Slot(accu), [first, more @ ..]) = (self.root(ACCU), rest) {
                    let first = self.node(first)?;
                    let (key, value) = match more {
                        [value] => (Some(first), self.node(value)?),
                        _ => (None, first),
                    };
                    return Ok(Node::Insert(Box::new(Insert { accu, key, value })));
                }
            }
            _ => {}
        }
        self.function(expr, call)
    }

    fn function(&mut self, expr: &'c Expr, call: &'c expr::Call) -> Planned {
        let mut args = Vec::with_capacity(call.args.len() + 1);
        for arg in call.target.iter().chain(&call.args) {
            args.push(self.node(arg)?);
        }
        let overloads = self.checked.overloads.get(&expr.id).cloned().unwrap_or_default();
        let single = match &overloads[..] {
            [only] => Some(*only),
            _ => None,
        };
        if self.fold
            && convert::is_conversion(&call.function)
            && let [Node::Const(value)] = &args[..]
        {
            let run = overloads.iter().find(|o| o.takes(std::slice::from_ref(value)));
            let run = run.or(overloads.first()).ok_or_else(EvalError::no_overload)?.run;
            return Ok(Node::Const(run(std::slice::from_ref(value))?));
        }
        if self.fold
            && single.is_some_and(|o| o.id == "in_list")
            && let Some(node) = in_const(&mut args)
        {
            return Ok(node);
        }
        if args.len() == 2 && matches!(call.function.as_str(), "or" | "orValue") {
            let value = call.function == "orValue";
            if let (Some(b), Some(a)) = (args.pop(), args.pop()) {
                return Ok(Node::OrElse(Box::new((a, b)), value));
            }
        }
        let rule = match single {
            Some(only) => only.cost,
            None => overloads.first().map_or(Rule::One, |o| if o.cost.by_name() { o.cost } else { Rule::One }),
        };
        let pattern = match (call.function.as_str(), args.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Const(Value::Text(pattern)))) => {
                Some(regex::compile(pattern).map_err(EvalError::new)?)
            }
            _ => None,
        };
        Ok(Node::Call(Box::new(CallNode { function: call.function.clone(), overloads, rule, args, pattern })))
    }

    fn list(&mut self, items: &'c [(Expr, bool)]) -> Planned {
        let mut nodes = Vec::with_capacity(items.len());
        for (item, optional) in items {
            nodes.push((self.node(item)?, *optional));
        }
        let constants: Option<Vec<Value<'static>>> = nodes
            .iter()
            .map(|(node, optional)| match node {
                Node::Const(value) if !optional => Some(value.clone()),
                _ => None,
            })
            .collect();
        Ok(match constants.filter(|_| self.fold) {
            Some(values) => Node::Const(Value::list(values)),
            None => Node::List(nodes),
        })
    }

    fn map(&mut self, entries: &'c [expr::Entry]) -> Planned {
        let mut nodes = Vec::with_capacity(entries.len());
        for entry in entries {
            let (key, value) = (self.node(&entry.key)?, self.node(&entry.value)?);
            nodes.push(EntryNode { key, value, optional: entry.optional });
        }
        let constants = nodes.iter().map(|entry| match (&entry.key, &entry.value) {
            (Node::Const(key), Node::Const(value)) if !entry.optional => {
                Some((Key::of(key)?, (key.clone(), value.clone())))
            }
            _ => None,
        });
        Ok(match constants.collect::<Option<_>>().filter(|_| self.fold) {
            Some(entries) => Node::Const(Value::Map(Map::values(entries))),
            None => Node::Map(nodes),
        })
    }

    fn construct(&mut self, s: &'c expr::StructLiteral) -> Planned {
        let mut fields = Vec::with_capacity(s.fields.len());
        for field in &s.fields {
            fields.push((field.name.as_str().into(), self.node(&field.value)?, field.optional));
        }
        Ok(Node::Struct(Box::new(StructNode { name: s.name.as_str().into(), fields })))
    }

    fn fold(&mut self, fold: &'c expr::Fold) -> Planned {
        let init = self.node(&fold.init)?;
        let range = self.node(&fold.range)?;
        let outside = self.names.len();
        let accu = self.slot();
        self.names.push((&fold.accu, accu));
        let var = self.slot();
        self.names.push((&fold.var, var));
        let var2 = fold.var2.as_ref().map(|name| {
            let slot = self.slot();
            self.names.push((name, slot));
            slot
        });
        let condition = self.node(&fold.condition)?;
        let step = self.node(&fold.step)?;
        self.names.truncate(outside + 1);
        let result = self.node(&fold.result)?;
        self.names.truncate(outside);
        Ok(Node::Fold(Box::new(FoldNode { range, accu, var, var2, init, condition, step, result })))
    }
}

fn constant(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(b) => Value::Bool(*b),
        Literal::Int(n) => Value::Int(*n),
        Literal::Uint(n) => Value::Uint(*n),
        Literal::Double(d) => Value::Double(*d),
        Literal::Text(s) => Value::Text(Text::Shared(s.clone())),
        Literal::Bytes(b) => Value::Bytes(b.clone()),
    }
}

/// `x in [1, 2, 3]` as a lookup in a set, if the elements have simple types.
fn in_const(args: &mut Vec<Node>) -> Option<Node> {
    let [_, Node::Const(Value::List(list))] = &args[..] else { return None };
    if list.is_empty() {
        return Some(Node::Const(Value::Bool(false)));
    }
    let values: Vec<Value<'static>> = list.iter().collect::<Result<_, _>>().ok()?;
    let simple = |v: &Value<'_>| {
        matches!(v, Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Text(_))
    };
    if !values.iter().all(simple) {
        return None;
    }
    let set: Option<BTreeSet<Key<'static>>> = values.iter().map(Key::of).collect();
    let list = Value::List(list.clone());
    args.truncate(1);
    Some(Node::InConst(Box::new(InConst { value: args.pop()?, list, set })))
}
