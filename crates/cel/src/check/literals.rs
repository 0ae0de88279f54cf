//! Checks of constants before evaluation: patterns, timestamps and durations must be valid, and the elements of a list literal must
//! have one type.
use super::checked::Checked;
use crate::library::{format, regex};
use crate::syntax::expr::{Expr, Id, Kind, Literal};
use crate::syntax::source::Issue;
use crate::types::ty::Type;
use crate::value::time;

pub(super) fn validate(checked: &Checked, places: &[u32]) -> Vec<Issue> {
    let mut validator = Validator { checked, places, issues: Vec::new() };
    validator.visit(&checked.root, false);
    validator.issues
}

struct Validator<'c> {
    checked: &'c Checked,
    places: &'c [u32],
    issues: Vec<Issue>,
}

impl<'c> Validator<'c> {
    fn fault(&mut self, id: Id, message: String) {
        self.issues.push(Issue { offset: Some(self.places[id as usize]), message });
    }

    /// Whether a list is an argument of `format`, whose elements may have different types.
    fn visit(&mut self, expr: &'c Expr, formatted: bool) {
        let mut formatted = formatted;
        match &expr.kind {
            Kind::Call(call) => {
                if let Some(first) = call.args.first() {
                    self.argument(&call.function, first);
                }
                formatted |= call.function == "format";
                if call.function == "format"
                    && let (Some(text), [Expr { kind: Kind::List(items), .. }]) =
                        (call.target.as_ref().and_then(Expr::text), &call.args[..])
                {
                    self.format(expr.id, text, items);
                }
            }
            Kind::List(items) if !formatted => self.list(items),
            Kind::Map(entries) if !formatted => {
                let keys: Vec<_> = entries.iter().map(|e| (&e.key, false)).collect();
                let values: Vec<_> = entries.iter().map(|e| (&e.value, e.optional)).collect();
                self.alike(&keys);
                self.alike(&values);
            }
            _ => {}
        }
        for child in expr.children() {
            self.visit(child, formatted);
        }
    }

    fn argument(&mut self, function: &str, arg: &Expr) {
        let Kind::Literal(literal) = &arg.kind else { return };
        let right = match (function, literal) {
            ("duration", Literal::Text(s)) => time::duration(s).is_some(),
            ("timestamp", Literal::Text(s)) => time::timestamp(s).is_some(),
            ("timestamp", Literal::Int(n)) => time::Timestamp::new(*n, 0).is_some(),
            ("matches", Literal::Text(s)) => regex::compile(s).is_ok(),
            _ => true,
        };
        if !right {
            self.fault(arg.id, format!("invalid {function} argument"));
        }
    }

    fn list(&mut self, items: &'c [(Expr, bool)]) {
        let items: Vec<_> = items.iter().map(|(e, optional)| (e, *optional)).collect();
        self.alike(&items);
    }

    fn alike(&mut self, items: &[(&'c Expr, bool)]) {
        let mut first: Option<&Type> = None;
        for (item, optional) in items {
            let mut ty = &self.checked.types[item.id as usize];
            if *optional {
                ty = ty.unwrap_optional().0;
            }
            match first {
                None => first = Some(ty),
                Some(first) if same(first, ty) => {}
                Some(first) => {
                    self.fault(item.id, format!("expected type '{first}' but found '{ty}'"));
                    return;
                }
            }
        }
    }

    fn format(&mut self, call: Id, text: &str, items: &'c [(Expr, bool)]) {
        let types: Vec<(Id, &Type)> = items.iter().map(|(e, _)| (e.id, &self.checked.types[e.id as usize])).collect();
        if let Err((at, message)) = format::check(text, &types) {
            self.fault(at.unwrap_or(call), message);
        }
    }
}

/// Whether two types are equal. Object types are compared by name.
fn same(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::List(x), Type::List(y)) | (Type::Optional(x), Type::Optional(y)) => same(x, y),
        (Type::Map(x), Type::Map(y)) => same(&x.0, &y.0) && same(&x.1, &y.1),
        (Type::Type(_), Type::Type(_)) => true,
        _ => a == b,
    }
}
