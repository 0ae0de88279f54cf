//! Unification: whether one type can be used as another, and what follows for type variables.
use std::sync::Arc;

use crate::types::ty::Type;

/// The bindings of type variables. A failed attempt is rolled back.
#[derive(Default)]
pub(super) struct Unifier {
    found: Vec<Option<Type>>,
    /// The previous bindings, in the order of the changes, for rolling back.
    trail: Vec<(u32, Option<Type>)>,
}

impl Unifier {
    pub fn fresh(&mut self) -> Type {
        self.found.push(None);
        Type::Var((self.found.len() - 1) as u32)
    }

    fn find(&self, ty: &Type) -> Option<Type> {
        match ty {
            Type::Var(n) => self.found[*n as usize].clone(),
            _ => None,
        }
    }

    fn set(&mut self, var: u32, ty: Type) {
        let before = self.found[var as usize].replace(ty);
        self.trail.push((var, before));
    }

    fn attempt(&mut self, run: impl FnOnce(&mut Self) -> bool) -> bool {
        let mark = self.trail.len();
        let done = run(self);
        if !done {
            while self.trail.len() > mark {
                if let Some((var, before)) = self.trail.pop() {
                    self.found[var as usize] = before;
                }
            }
        }
        done
    }

    /// Whether a value of type `b` can be used where `a` is expected.
    pub fn assignable(&mut self, a: &Type, b: &Type) -> bool {
        self.attempt(|u| u.unify(a, b))
    }

    pub fn assignable_all(&mut self, a: &[Type], b: &[Type]) -> bool {
        a.len() == b.len() && self.attempt(|u| a.iter().zip(b).all(|(a, b)| u.unify(a, b)))
    }

    fn unify(&mut self, a: &Type, b: &Type) -> bool {
        if matches!(b, Type::Var(_)) {
            let (valid, known) = self.stand_for(a, b);
            if valid || known {
                return valid;
            }
        }
        if matches!(a, Type::Var(_)) {
            return self.stand_for(b, a).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Null, Type::Null) => true,
            (Type::Null, other) | (other, Type::Null) => nullable(other),
            (Type::List(x), Type::List(y)) | (Type::Optional(x), Type::Optional(y)) => self.unify(x, y),
            (Type::Map(x), Type::Map(y)) => self.unify(&x.0, &y.0) && self.unify(&x.1, &y.1),
            (Type::Type(_), Type::Type(_)) => true,
            _ => a == b,
        }
    }

    /// Tries to use `ty` for the type variable `var`. Returns whether the two are compatible, and whether the variable was bound before.
    fn stand_for(&mut self, ty: &Type, var: &Type) -> (bool, bool) {
        if ty == var {
            return (true, true);
        }
        let Type::Var(n) = var else { return (false, false) };
        if let Some(known) = self.find(var) {
            if *ty == known {
                return (true, true);
            }
            if self.unify(ty, &known) {
                let general = if less_specific(ty, &known) { ty.clone() } else { known };
                if !self.occurs(var, &general) {
                    self.set(*n, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.occurs(var, ty) {
            return (false, false);
        }
        self.set(*n, ty.clone());
        (true, false)
    }

    /// Whether the type variable occurs in the type, which would make the type infinite.
    fn occurs(&self, var: &Type, within: &Type) -> bool {
        if var == within {
            return true;
        }
        match within {
            Type::Var(_) => self.find(within).is_some_and(|t| self.occurs(var, &t)),
            Type::List(t) | Type::Optional(t) | Type::Type(Some(t)) => self.occurs(var, t),
            Type::Map(e) => self.occurs(var, &e.0) || self.occurs(var, &e.1),
            _ => false,
        }
    }

    /// Replaces the bound type variables in a type. With `to_dyn`, unbound ones become dyn.
    pub fn resolve(&self, ty: &Type, to_dyn: bool) -> Type {
        match ty {
            Type::Var(_) => match self.find(ty) {
                Some(known) => self.resolve(&known, to_dyn),
                None if to_dyn => Type::Dyn,
                None => ty.clone(),
            },
            Type::List(t) => Type::List(Arc::new(self.resolve(t, to_dyn))),
            Type::Optional(t) => Type::Optional(Arc::new(self.resolve(t, to_dyn))),
            Type::Type(Some(t)) => Type::Type(Some(Arc::new(self.resolve(t, to_dyn)))),
            Type::Map(e) => Type::map(self.resolve(&e.0, to_dyn), self.resolve(&e.1, to_dyn)),
            other => other.clone(),
        }
    }

    /// The types of an overload with new type variables for its parameters.
    pub fn instantiate(&mut self, types: &[Type]) -> Vec<Type> {
        let mut letters = Vec::new();
        types.iter().map(|t| self.instance(t, &mut letters)).collect()
    }

    fn instance(&mut self, ty: &Type, letters: &mut Vec<(u8, Type)>) -> Type {
        match ty {
            Type::Param(letter) => match letters.iter().find(|(l, _)| l == letter) {
                Some((_, var)) => var.clone(),
                None => {
                    let var = self.fresh();
                    letters.push((*letter, var.clone()));
                    var
                }
            },
            Type::List(t) => Type::list(self.instance(t, letters)),
            Type::Optional(t) => Type::optional(self.instance(t, letters)),
            Type::Type(Some(t)) => Type::Type(Some(Arc::new(self.instance(t, letters)))),
            Type::Map(e) => {
                let key = self.instance(&e.0, letters);
                Type::map(key, self.instance(&e.1, letters))
            }
            other => other.clone(),
        }
    }
}

/// Whether `null` is a value of the type.
fn nullable(ty: &Type) -> bool {
    matches!(ty, Type::Object(_) | Type::Opaque(_) | Type::Optional(_) | Type::Duration | Type::Timestamp)
}

/// Whether the first type is at most as specific as the second.
pub(super) fn less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Var(_) | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Var(_) | Type::Param(_)) => false,
        (Type::List(x), Type::List(y)) | (Type::Optional(x), Type::Optional(y)) => less_specific(x, y),
        (Type::Map(x), Type::Map(y)) => less_specific(&x.0, &y.0) && less_specific(&x.1, &y.1),
        (Type::Type(_), Type::Type(_)) => true,
        _ => a == b,
    }
}
