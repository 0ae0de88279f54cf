//! The minimum and maximum cost of an expression, from the bounds in schemas (`checker/cost.go` of cel-go).
use std::collections::HashMap;

use super::calls::{self, Arg};
use super::range::Range;
use super::{LIST, MAP, Rule, STRUCT};
use crate::check::Checked;
use crate::syntax::expr::{Call, Expr, Fold, Id, Kind, Literal};
use crate::types::ty::Type;

/// The sizes of data, by its type and its path. A path is a variable, followed by fields, `@items`, `@keys` and `@values`. It is empty
/// for values that are not data.
pub(crate) trait Sizes {
    fn size(&self, path: &[String], ty: &Type) -> Option<Range>;
}

/// Estimates the bounds of the cost of a checked expression.
pub(crate) fn estimate(checked: &Checked, sizes: &dyn Sizes) -> Range {
    let mut estimator = Estimator {
        checked,
        sizes,
        paths: HashMap::new(),
        computed: HashMap::new(),
        entries: HashMap::new(),
        locals: Vec::new(),
    };
    estimator.cost(&checked.root)
}

/// The sizes of the elements of a list or map.
#[derive(Clone, Copy)]
struct Elements {
    list: bool,
    key: Range,
    value: Range,
}

struct Local {
    name: String,
    path: Vec<String>,
    size: Option<Range>,
    entries: Option<Elements>,
}

struct Estimator<'c> {
    checked: &'c Checked,
    sizes: &'c dyn Sizes,
    paths: HashMap<Id, Vec<String>>,
    computed: HashMap<Id, Range>,
    entries: HashMap<Id, Elements>,
    locals: Vec<Local>,
}

impl Estimator<'_> {
    fn ty(&self, expr: &Expr) -> &Type {
        &self.checked.types[expr.id as usize]
    }
    fn local(&self, expr: &Expr) -> Option<&Local> {
        let name = expr.ident()?;
        self.locals.iter().rev().find(|l| l.name == name)
    }
    fn path(&self, expr: &Expr) -> Vec<String> {
        match self.local(expr) {
            Some(local) => local.path.clone(),
            None => self.paths.get(&expr.id).cloned().unwrap_or_default(),
        }
    }
    fn extend(&mut self, expr: &Expr, of: &Expr, with: &str) {
        let mut path = self.path(of);
        path.push(with.to_owned());
        self.paths.insert(expr.id, path);
    }

    fn cost(&mut self, expr: &Expr) -> Range {
        match &expr.kind {
            Kind::Literal(_) | Kind::Fault => Range::ZERO,
            Kind::Ident(name) => {
                let path = self.local(expr).map_or_else(|| vec![name.clone()], |l| l.path.clone());
                self.paths.insert(expr.id, path);
                Range::fixed(1)
            }
            // In Kubernetes a test of presence has no additional cost.
            Kind::Select { operand, test: true, .. } => self.cost(operand),
            Kind::Select { operand, field, .. } => {
                let mut sum = self.cost(operand);
                if matches!(self.ty(operand), Type::Map(_) | Type::Object(_) | Type::Var(_)) {
                    sum = sum.plus(Range::fixed(1));
                }
                self.extend(expr, operand, field);
                sum
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List(items) => {
                let mut value = if items.is_empty() { Range::ZERO } else { Range::NONE };
                let mut sum = Range::fixed(LIST);
                for (item, _) in items {
                    sum = sum.plus(self.cost(item));
                    value = value.union(self.size(item));
                }
                self.entries.insert(expr.id, Elements { list: true, key: Range::fixed(1), value });
                sum
            }
            Kind::Map(entries) => {
                let none = if entries.is_empty() { Range::ZERO } else { Range::NONE };
                let (mut key, mut value, mut sum) = (none, none, Range::fixed(MAP));
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size(&entry.key));
                    value = value.union(self.size(&entry.value));
                }
                self.entries.insert(expr.id, Elements { list: false, key, value });
                sum
            }
            Kind::Struct(s) => {
                s.fields.iter().fold(Range::fixed(STRUCT), |sum, field| sum.plus(self.cost(&field.value)))
            }
            Kind::Fold(fold) if is_bind(fold) => self.bind(expr, fold),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn bind(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push_accu(fold);
        let sum = sum.plus(self.cost(&fold.result));
        self.locals.pop();
        self.copy(expr, &fold.result);
        sum
    }

    fn push_accu(&mut self, fold: &Fold) {
        let local = Local {
            name: fold.accu.clone(),
            path: self.path(&fold.init),
            size: self.maybe_size(&fold.init),
            entries: self.entry(&fold.init),
        };
        self.locals.push(local);
    }

    fn push_var(&mut self, name: &str, range: &Expr, value: bool) {
        let entries = self.entry(range);
        let list = entries.map_or_else(|| matches!(self.ty(range), Type::List(_)), |e| e.list);
        let (step, size) = match (list, value) {
            (true, true) => ("@items", entries.map(|e| e.value)),
            (true, false) => ("@indices", entries.map(|e| e.key)),
            (false, true) => ("@values", entries.map(|e| e.value)),
            (false, false) => ("@keys", entries.map(|e| e.key)),
        };
        let mut path = self.path(range);
        path.push(step.to_owned());
        self.locals.push(Local { name: name.to_owned(), path, size, entries: None });
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        let outside = self.locals.len();
        self.push_accu(fold);
        match &fold.var2 {
            Some(var2) => {
                self.push_var(&fold.var, &fold.range, false);
                self.push_var(var2, &fold.range, true);
            }
            None => {
                let list = self.entry(&fold.range).map(|e| e.list);
                let list = list.unwrap_or_else(|| matches!(self.ty(&fold.range), Type::List(_)));
                self.push_var(&fold.var, &fold.range, list);
            }
        }
        let once = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.locals.truncate(outside + 1);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.truncate(outside);
        let count = self.size(&fold.range);
        match &fold.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.maybe_size(&fold.init) {
                    self.computed.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
                self.computed.insert(expr.id, count);
                if let Some(entries) = self.entry(&fold.step) {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        sum.plus(count.times(once))
    }

    fn arg(&mut self, expr: &Expr) -> Arg {
        let size = self.maybe_size(expr);
        let ty = self.ty(expr).clone();
        let element = match &ty {
            Type::List(element) => {
                let mut path = self.path(expr);
                // An accumulated value is not data that a schema describes.
                if path.first().is_some_and(|p| p == crate::syntax::ACCU) {
                    path.clear();
                }
                if !path.is_empty() {
                    path.push("@items".into());
                }
                self.sizes.size(&path, element)
            }
            _ => None,
        };
        let int = match &expr.kind {
            Kind::Literal(Literal::Int(n)) => Some(*n),
            _ => None,
        };
        Arg { ty, size, element, int }
    }

    fn call(&mut self, expr: &Expr, call: &Call) -> Range {
        if call.function == "dyn" {
            let Some(arg) = call.args.first() else { return Range::ZERO };
            let cost = self.cost(arg).plus(Range::fixed(1));
            self.copy(expr, arg);
            return cost;
        }
        let costs: Vec<Range> = call.args.iter().map(|a| self.cost(a)).collect();
        let args: Vec<Arg> = call.args.iter().map(|a| self.arg(a)).collect();
        let Some(overloads) = self.checked.overloads.get(&expr.id) else { return Range::ZERO };
        let (target_cost, target) = match &call.target {
            Some(target) => (self.cost(target), Some(self.arg(target))),
            None => (Range::ZERO, None),
        };
        let (mut cost, mut result) = (Range::NONE, None);
        for overload in overloads {
            let (one, size) = self.overload(expr, call, overload.cost, target.as_ref(), &args, &costs);
            cost = cost.union(one);
            result = match (result, size) {
                (Some(a), Some(b)) => Some(Range::union(a, b)),
                (a, b) => a.or(b),
            };
            match overload.cost {
                Rule::IndexList | Rule::IndexMap => {
                    result = self.entry(&call.args[0]).map(|e| e.value);
                    let step = if overload.cost == Rule::IndexList { "@items" } else { "@values" };
                    self.extend(expr, &call.args[0], step);
                }
                _ => {}
            }
            result = result.or_else(|| self.maybe_size(expr));
        }
        if let Some(size) = result {
            self.computed.insert(expr.id, size);
        }
        target_cost.plus(cost)
    }

    /// The cost of one overload with its arguments, and the size of its result.
    fn overload(
        &mut self,
        expr: &Expr,
        call: &Call,
        rule: Rule,
        target: Option<&Arg>,
        args: &[Arg],
        costs: &[Range],
    ) -> (Range, Option<Range>) {
        let paid = costs.iter().fold(Range::ZERO, |sum, c| sum.plus(*c));
        if let Some((cost, size)) = calls::call(rule, target, args) {
            return (cost.plus(paid), size);
        }
        match (rule, args) {
            (Rule::Logical, [_, _]) => {
                (Range { min: costs[0].min, max: costs[0].max.saturating_add(costs[1].max) }, None)
            }
            (Rule::Conditional, [_, yes, no]) => {
                let size = yes.size().union(no.size());
                self.unite(expr, &call.args[1], &call.args[2]);
                (costs[0].plus(costs[1].union(costs[2])), Some(size))
            }
            (Rule::AddText | Rule::AddList, [a, b]) => {
                let size = a.size().plus(b.size());
                self.unite(expr, &call.args[0], &call.args[1]);
                let cost = if rule == Rule::AddList { Range::fixed(1) } else { calls::concatenated(size) };
                (cost.plus(paid), Some(size))
            }
            _ => (paid.plus(Range::fixed(1)), None),
        }
    }

    fn unite(&mut self, expr: &Expr, a: &Expr, b: &Expr) {
        if let (Some(a), Some(b)) = (self.entry(a), self.entry(b)) {
            let united = Elements { list: a.list, key: a.key.union(b.key), value: a.value.union(b.value) };
            self.entries.insert(expr.id, united);
        }
    }

    fn copy(&mut self, to: &Expr, from: &Expr) {
        if let Some(size) = self.maybe_size(from) {
            self.computed.insert(to.id, size);
        }
        if let Some(entries) = self.entry(from) {
            self.entries.insert(to.id, entries);
        }
    }

    fn entry(&self, expr: &Expr) -> Option<Elements> {
        self.entries.get(&expr.id).copied().or_else(|| self.local(expr)?.entries)
    }

    fn size(&mut self, expr: &Expr) -> Range {
        self.maybe_size(expr).unwrap_or(Range::UNKNOWN)
    }

    fn maybe_size(&mut self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.computed.get(&expr.id) {
            return Some(*size);
        }
        let own = match &expr.kind {
            Kind::Literal(Literal::Text(s)) => Some(s.chars().count()),
            Kind::Literal(Literal::Bytes(b)) => Some(b.len()),
            Kind::Literal(_) => Some(1),
            Kind::List(items) => Some(items.len()),
            Kind::Map(entries) => Some(entries.len()),
            _ => None,
        };
        if let Some(n) = own {
            return Some(Range::fixed(n as u64));
        }
        let path = self.path(expr);
        if let Some(size) = self.sizes.size(&path, self.ty(expr)) {
            self.computed.insert(expr.id, size);
            return Some(size);
        }
        if self.ty(expr).is_scalar() {
            return Some(Range::fixed(1));
        }
        self.local(expr)?.size
    }
}

/// Whether a loop has an empty range and only binds a value to a name.
fn is_bind(fold: &Fold) -> bool {
    matches!(&fold.range.kind, Kind::List(items) if items.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)))
        && fold.accu != crate::syntax::ACCU
}
