//! The evaluation of nodes and its cost. Each step costs what cel-go's cost tracker counts for it.
use super::activation::Activation;
use super::budget::Budget;
use super::node::{EntryNode, InConst, Insert, Node, Push, StructNode};
use super::program::Program;
use crate::cost;
use crate::value::error::{EvalError, Result};
use crate::value::{self, Entries, Key, List, Map, Value, equal};

/// The nesting depth of named expressions, which can only use earlier ones.
const NESTED: u32 = 64;

impl Program {
    /// Evaluates the program. The cost is charged to the budget, also if there is no value. The value may borrow from the values of the
    /// variables and from the program.
    pub fn eval<'a>(&'a self, activation: &Activation<'a>, budget: &mut Budget) -> Result<Value<'a>> {
        run(self, activation, budget, 0)
    }
}

/// Evaluates a program. The cost is charged to the budget, also if there is no value.
fn run<'a>(program: &'a Program, activation: &Activation<'a>, budget: &mut Budget, depth: u32) -> Result<Value<'a>> {
    if depth > NESTED {
        return Err(EvalError::new("variables ask for each other without end"));
    }
    let limit = budget.call_limit();
    let slots = (0..program.slots()).map(|_| Slot::Empty).collect();
    let mut machine = Machine { activation, budget, slots, cost: 0, limit, depth, rounds: 0 };
    let result = machine.eval(program.node());
    let cost = machine.cost;
    budget.pay(cost);
    result
}

/// The value of a loop variable.
pub(super) enum Slot<'a> {
    Empty,
    /// The value is evaluated on first use.
    Lazy(&'a Node),
    Ready(Result<Value<'a>>),
}

pub(super) struct Machine<'a, 'b> {
    pub activation: &'b Activation<'a>,
    pub budget: &'b mut Budget,
    pub slots: Vec<Slot<'a>>,
    pub cost: u64,
    pub limit: u64,
    pub depth: u32,
    /// The number of loop iterations so far. An iteration may have no cost but still takes time.
    pub rounds: u64,
}

impl<'a> Machine<'a, '_> {
    pub fn charge(&mut self, cost: u64) -> Result<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }

    pub fn eval(&mut self, node: &'a Node) -> Result<Value<'a>> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Path(path) => self.path(path, true),
            Node::And(terms) => self.logical(&terms.0, &terms.1, false),
            Node::Or(terms) => self.logical(&terms.0, &terms.1, true),
            Node::Equal(sides, negated) => self.equal(&sides.0, &sides.1, *negated),
            Node::NotFalse(inner) => self.not_false(inner),
            Node::Call(call) => self.call(call),
            Node::InConst(within) => self.in_const(within),
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Struct(s) => self.construct(s),
            Node::Fold(fold) => self.fold(fold),
            Node::Push(push) => self.push(push),
            Node::Insert(insert) => self.insert(insert),
            Node::OrElse(sides, value) => self.or_else(&sides.0, &sides.1, *value),
        }
    }

    /// Evaluates a node without the cost of the variable itself, as cel-go does for the branches of a condition and for keys.
    pub fn eval_uncounted(&mut self, node: &'a Node) -> Result<Value<'a>> {
        match node {
            Node::Path(path) => self.path(path, false),
            other => self.eval(other),
        }
    }

    /// Evaluates `&&` and `||`. One side may decide the result even if the other is an error.
    fn logical(&mut self, a: &'a Node, b: &'a Node, deciding: bool) -> Result<Value<'a>> {
        let mut fault = None;
        for term in [a, b] {
            match self.eval(term) {
                Ok(Value::Bool(value)) if value == deciding => return Ok(Value::Bool(deciding)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => fault = fault.or(Some(EvalError::no_overload())),
                Err(e) if e.is_final() => return Err(e),
                Err(e) => fault = fault.or(Some(e)),
            }
        }
        fault.map_or(Ok(Value::Bool(!deciding)), Err)
    }

    /// Evaluates both sides, also if the first is an error, since the cost of a call with two arguments includes both.
    pub fn both(&mut self, a: &'a Node, b: &'a Node) -> Result<[Value<'a>; 2]> {
        let a = self.eval(a);
        if let Err(e) = &a
            && e.is_final()
        {
            return Err(e.clone());
        }
        match (a, self.eval(b)) {
            (Ok(a), Ok(b)) => Ok([a, b]),
            (_, Err(e)) if e.is_final() => Err(e),
            (Err(e), _) | (_, Err(e)) => {
                self.charge(1)?;
                Err(e)
            }
        }
    }

    fn equal(&mut self, a: &'a Node, b: &'a Node, negated: bool) -> Result<Value<'a>> {
        let sides = self.both(a, b)?;
        let rule = if negated { cost::Rule::Compare } else { cost::Rule::Equal };
        self.charge(cost::actual(rule, &sides)?)?;
        match equal::equal(&sides[0], &sides[1]) {
            Ok(same) => Ok(Value::Bool(same != negated)),
            // Values that cannot be compared are not equal.
            Err(e) if negated && !e.is_final() => Ok(Value::Bool(true)),
            Err(e) => Err(e),
        }
    }

    fn not_false(&mut self, inner: &'a Node) -> Result<Value<'a>> {
        let value = self.eval(inner);
        self.charge(1)?;
        match value {
            Ok(Value::Bool(b)) => Ok(Value::Bool(b)),
            Err(e) if e.is_final() => Err(e),
            _ => Ok(Value::Bool(true)),
        }
    }

    fn in_const(&mut self, within: &'a InConst) -> Result<Value<'a>> {
        let value = self.eval(&within.value)?;
        let found = match (&within.set, &within.list) {
            (Some(set), _) => Key::of(&value).is_some_and(|key| set.contains(&key)),
            (None, Value::List(list)) => equal::contains(list, &value)?,
            _ => false,
        };
        Ok(Value::Bool(found))
    }

    fn list(&mut self, items: &'a [(Node, bool)]) -> Result<Value<'a>> {
        let mut values = Vec::with_capacity(items.len());
        let built = items.iter().try_for_each(|(node, optional)| {
            let value = self.eval(node)?;
            match (optional, value) {
                (false, value) => values.push(value),
                (true, Value::Optional(Some(value))) => values.push((*value).clone()),
                (true, Value::Optional(None)) => {}
                (true, other) => {
                    let message = format!("cannot initialize optional list element from non-optional value {other}");
                    return Err(EvalError::new(message));
                }
            }
            Ok(())
        });
        self.charge(cost::LIST)?;
        built.map(|()| Value::list(values))
    }

    fn map(&mut self, nodes: &'a [EntryNode]) -> Result<Value<'a>> {
        let mut entries = Entries::new();
        let built = nodes.iter().try_for_each(|entry| self.entry(entry, &mut entries));
        self.charge(cost::MAP)?;
        built.map(|()| Value::Map(Map::values(entries)))
    }

    fn entry(&mut self, entry: &'a EntryNode, entries: &mut Entries<'a>) -> Result<()> {
        let key = self.eval(&entry.key)?;
        let mut value = self.eval(&entry.value)?;
        let found =
            Key::of(&key).ok_or_else(|| EvalError::new(format!("unsupported key type: {}", key.type_name())))?;
        if entry.optional {
            value = match value {
                Value::Optional(Some(value)) => (*value).clone(),
                Value::Optional(None) => {
                    entries.remove(&found);
                    return Ok(());
                }
                other => {
                    let message = format!("cannot initialize optional entry '{key}' from non-optional value {other}");
                    return Err(EvalError::new(message));
                }
            };
        }
        entries.insert(found, (key, value));
        Ok(())
    }

    fn construct(&mut self, s: &'a StructNode) -> Result<Value<'a>> {
        let mut fields = Vec::with_capacity(s.fields.len());
        for (name, node, optional) in &s.fields {
            let value = match (optional, self.eval(node)?) {
                (false, value) => value,
                (true, Value::Optional(Some(value))) => (*value).clone(),
                (true, Value::Optional(None)) => continue,
                (true, other) => {
                    let message = format!("cannot initialize optional entry '{name}' from non-optional value {other}");
                    return Err(EvalError::new(message));
                }
            };
            fields.push((name.clone(), value));
        }
        self.charge(cost::STRUCT)?;
        Ok(Value::Map(Map::Struct(std::sync::Arc::new(value::Struct { name: s.name.clone(), fields }))))
    }

    /// Takes the accumulated value of a loop out of its slot. The caller must put the next value into it.
    fn take(&mut self, slot: usize) -> Result<Value<'a>> {
        match std::mem::replace(&mut self.slots[slot], Slot::Empty) {
            Slot::Ready(value) => value,
            Slot::Lazy(init) => self.eval(init),
            Slot::Empty => Err(EvalError::new("a loop has no accumulator")),
        }
    }

    fn push(&mut self, push: &'a Push) -> Result<Value<'a>> {
        let element = self.eval(&push.element);
        // The cost of the variable, of the list around the element (free if it is constant), and of the addition.
        let list = if matches!(push.element, Node::Const(_)) { 0 } else { cost::LIST };
        self.charge(1 + list + 1)?;
        match (self.take(push.accu)?, element?) {
            (Value::List(mut list), element) => {
                list.push(element)?;
                Ok(Value::List(list))
            }
            _ => Err(EvalError::no_overload()),
        }
    }

    fn insert(&mut self, insert: &'a Insert) -> Result<Value<'a>> {
        let key = insert.key.as_ref().map(|key| self.eval(key)).transpose()?;
        let value = self.eval(&insert.value)?;
        self.charge(2)?;
        let Value::Map(map) = self.take(insert.accu)? else { return Err(EvalError::no_overload()) };
        match (key, value) {
            (Some(key), value) => Ok(Value::Map(map.insert(key, value)?)),
            (None, Value::Map(more)) => {
                let mut map = map;
                for key in more.keys() {
                    if let Some(value) = more.find(&key)? {
                        map = map.insert(key, value)?;
                    }
                }
                Ok(Value::Map(map))
            }
            _ => Err(EvalError::no_overload()),
        }
    }

    fn or_else(&mut self, a: &'a Node, b: &'a Node, value: bool) -> Result<Value<'a>> {
        match self.eval(a)? {
            Value::Optional(Some(inner)) if value => Ok((*inner).clone()),
            Value::Optional(None) => self.eval(b),
            other => Ok(other),
        }
    }

    /// The value of a policy's named expression.
    pub fn variable(&mut self, name: &str) -> Result<Option<Value<'a>>> {
        let Some((index, program)) = self.activation.program(name) else { return Ok(None) };
        if let Some(value) = self.activation.remembered(index) {
            return value.map(Some);
        }
        let value = run(program, self.activation, self.budget, self.depth + 1).map_err(|why| why.of_variable(name));
        self.activation.remember(index, value.clone());
        value.map(Some)
    }

    /// Copies an empty initial list, so that a loop can add to it in place.
    pub fn fresh(value: Value<'a>) -> Value<'a> {
        match value {
            Value::List(list) if list.is_empty() => Value::List(List::values(Vec::new())),
            Value::Map(map) if map.is_empty() => Value::Map(Map::values(Entries::new())),
            other => other,
        }
    }
}
