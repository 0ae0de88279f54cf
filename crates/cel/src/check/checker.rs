//! The type checker. It resolves dotted names and rewrites their nodes, and notes the possible overloads of each call.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::checked::Checked;
use super::literals;
use super::unify::{Unifier, less_specific};
use crate::library::{self, Overload};
use crate::syntax::Parsed;
use crate::syntax::expr::{Call, Entry, Expr, Fold, Id, Kind, Literal, StructLiteral};
use crate::syntax::source::Issue;
use crate::types::ty::Type;

/// The declarations outside of an expression.
pub(crate) trait Scope {
    /// The type of a variable.
    fn variable(&self, name: &str) -> Option<&Type>;
    /// The type of a field of an object type. The result distinguishes an unknown type from an unknown field.
    fn field(&self, object: &str, field: &str) -> Option<Option<Type>>;
    /// Whether `name{…}` constructs an object of that type.
    fn constructible(&self, name: &str) -> bool;
}

/// Checks a tree in a scope. All errors are reported, each of them once.
pub(crate) fn check(parsed: Parsed, scope: &dyn Scope) -> Result<Checked, Vec<Issue>> {
    let Parsed { mut root, places } = parsed;
    let mut checker = Checker {
        scope,
        places: &places,
        locals: Vec::new(),
        unifier: Unifier::default(),
        types: vec![None; places.len()],
        overloads: HashMap::new(),
        type_names: HashMap::new(),
        used: BTreeMap::new(),
        issues: Vec::new(),
    };
    checker.check(&mut root);
    let Checker { unifier, types, overloads, type_names, used, mut issues, .. } = checker;
    let types: Vec<Type> = types.into_iter().map(|t| t.map_or(Type::Dyn, |t| unifier.resolve(&t, true))).collect();
    let checked = Checked { root, types, overloads, type_names, used };
    if issues.is_empty() {
        issues = literals::validate(&checked, &places);
    }
    if issues.is_empty() { Ok(checked) } else { Err(issues) }
}

struct Checker<'s> {
    scope: &'s dyn Scope,
    places: &'s [u32],
    locals: Vec<(String, Type)>,
    unifier: Unifier,
    types: Vec<Option<Type>>,
    overloads: HashMap<Id, Vec<&'static Overload>>,
    type_names: HashMap<Id, Arc<str>>,
    used: BTreeMap<String, BTreeSet<String>>,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn fault(&mut self, id: Id, message: String) {
        self.issues.push(Issue { offset: Some(self.places[id as usize]), message });
    }
    fn undeclared(&mut self, id: Id, name: &str) -> Type {
        self.fault(id, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }
    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.fault(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn check(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let ty = match &mut expr.kind {
            Kind::Fault => Type::Error,
            Kind::Literal(literal) => literal_type(literal),
            Kind::Ident(_) => self.ident(expr),
            Kind::Select { .. } => self.select(expr),
            Kind::Call(_) => self.call(expr),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct(s) => self.construct(id, s),
            Kind::Fold(fold) => self.fold(fold),
        };
        self.types[id as usize] = Some(ty.clone());
        ty
    }

    /// Resolves a name: a variable of a loop, a variable of the scope, or a type.
    fn resolve(&mut self, id: Id, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some((_, ty)) = self.locals.iter().rev().find(|(n, _)| n == name) {
            return Some(ty.clone());
        }
        if let Some(ty) = self.scope.variable(name) {
            self.used.entry(name.to_owned()).or_default();
            return Some(ty.clone());
        }
        let ty = named_type(name)?;
        self.type_names.insert(id, ty.name().into());
        Some(Type::Type(Some(Arc::new(ty))))
    }

    fn ident(&mut self, expr: &Expr) -> Type {
        let name = expr.ident().unwrap_or_default();
        match self.resolve(expr.id, name) {
            Some(ty) => ty,
            None => self.undeclared(expr.id, name),
        }
    }

    fn select(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        // A dotted name may be a single declared name.
        if let Some(name) = expr.qualified()
            && let Some(ty) = self.resolve(id, &name)
        {
            expr.kind = Kind::Ident(name);
            return ty;
        }
        let Kind::Select { operand, field, test } = &mut expr.kind else { return Type::Error };
        let ty = self.field(id, operand, field, false);
        if *test { Type::Bool } else { self.unifier.resolve(&ty, false) }
    }

    /// The type of `operand.field`, or with `optional` of `operand.?field`.
    fn field(&mut self, id: Id, operand: &mut Expr, field: &str, optional: bool) -> Type {
        let operand_type = self.check(operand);
        if let Some(name) = operand.ident()
            && let Some(fields) = self.used.get_mut(name)
        {
            fields.insert(field.to_owned());
        }
        let operand_type = self.unifier.resolve(&operand_type, false);
        let (target, was_optional) = operand_type.unwrap_optional();
        let result = match target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(name) => match self.scope.field(name, field) {
                Some(Some(ty)) => ty,
                Some(None) => {
                    self.fault(id, format!("undefined field '{field}'"));
                    Type::Error
                }
                None => {
                    self.fault(id, format!("unexpected failed resolution of '{name}'"));
                    Type::Error
                }
            },
            Type::Var(_) => {
                self.unifier.assignable(&Type::Dyn, target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.fault(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if was_optional || optional { Type::optional(result) } else { result }
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Call(call) = &mut expr.kind else { return Type::Error };
        if call.function == "_?._" {
            let Call { args, .. } = &mut **call;
            let [operand, field] = &mut args[..] else { return Type::Error };
            let name = field.text().unwrap_or_default().to_owned();
            self.types[field.id as usize] = Some(Type::String);
            let ty = self.field(id, operand, &name, true);
            self.overloads.insert(id, library::overloads("_?._").iter().collect());
            return self.unifier.resolve(&ty, false);
        }
        for arg in &mut call.args {
            self.check(arg);
        }
        if let Some(target) = &call.target
            && let Some(prefix) = target.qualified()
        {
            let name = format!("{prefix}.{}", call.function);
            if !library::overloads(&name).is_empty() {
                call.function = name;
                call.target = None;
            }
        }
        if let Some(target) = &mut call.target {
            self.check(target);
        }
        if call.target.is_none()
            && let Some(name) = call.function.strip_prefix('.')
        {
            call.function = name.to_owned();
        }
        let patching = call.function.starts_with("jsonpatch.") && !self.scope.constructible("JSONPatch");
        if library::overloads(&call.function).is_empty() || patching {
            let name = call.function.clone();
            return self.undeclared(id, &name);
        }
        self.overload(id, call)
    }

    /// The type of a call, from the overloads that accept its arguments.
    fn overload(&mut self, id: Id, call: &Call) -> Type {
        let args: Vec<&Expr> = call.target.iter().chain(&call.args).collect();
        let types: Vec<Type> = args.iter().map(|a| self.types[a.id as usize].clone().unwrap_or(Type::Dyn)).collect();
        let member = call.target.is_some();
        let (mut chosen, mut result): (Vec<&'static Overload>, Option<Type>) = (Vec::new(), None);
        for overload in library::overloads(&call.function) {
            if overload.member != member {
                continue;
            }
            if matches!(call.function.as_str(), "_&&_" | "_||_") {
                return self.logical(id, overload, &args, &types);
            }
            // Types without parameters can be compared without a copy.
            let instance;
            let (wanted, made) = if overload.parametric {
                let mut all = overload.args.clone();
                all.push(overload.result.clone());
                instance = self.unifier.instantiate(&all);
                (&instance[..instance.len() - 1], &instance[instance.len() - 1])
            } else {
                (&overload.args[..], &overload.result)
            };
            if self.unifier.assignable_all(&types, wanted) {
                chosen.push(overload);
                let made = self.unifier.resolve(made, false);
                result = Some(match result {
                    None => made,
                    Some(Type::Dyn) => Type::Dyn,
                    Some(ty) if ty == made => ty,
                    Some(_) => Type::Dyn,
                });
            }
        }
        let Some(result) = result else {
            let shown: Vec<String> = types.iter().map(|t| self.unifier.resolve(t, true).to_string()).collect();
            let signature = match member {
                true => format!("{}.({})", shown[0], shown[1..].join(", ")),
                false => format!("({})", shown.join(", ")),
            };
            self.fault(id, format!("found no matching overload for '{}' applied to '{signature}'", call.function));
            return Type::Error;
        };
        self.overloads.insert(id, chosen);
        result
    }

    fn logical(&mut self, id: Id, overload: &'static Overload, args: &[&Expr], types: &[Type]) -> Type {
        let mut right = true;
        for (arg, ty) in args.iter().zip(types) {
            if !self.unifier.assignable(ty, &Type::Bool) {
                self.mismatch(arg.id, &Type::Bool, ty);
                right = false;
            }
        }
        if !right {
            return Type::Error;
        }
        self.overloads.insert(id, vec![overload]);
        Type::Bool
    }

    /// The type of the value in `?element`, which must be an optional.
    fn unwrapped(&mut self, id: Id, ty: Type) -> Type {
        let (inner, was_optional) = ty.unwrap_optional();
        let inner = inner.clone();
        if !was_optional && inner != Type::Dyn {
            self.mismatch(id, &Type::optional(inner.clone()), &inner);
        }
        inner
    }

    /// The common type of the elements so far and one more element.
    fn join(&mut self, so_far: Option<Type>, next: Type) -> Type {
        match so_far {
            None => next,
            Some(ty) if self.unifier.assignable(&ty, &next) => {
                if less_specific(&ty, &next) {
                    ty
                } else {
                    next
                }
            }
            // Only arguments of `format` may have different types. They are checked when all types are known.
            Some(_) => Type::Dyn,
        }
    }

    fn list(&mut self, items: &mut [(Expr, bool)]) -> Type {
        let mut element = None;
        for (item, optional) in items {
            let mut ty = self.check(item);
            if *optional {
                ty = self.unwrapped(item.id, ty);
            }
            element = Some(self.join(element, ty));
        }
        Type::list(element.unwrap_or_else(|| self.unifier.fresh()))
    }

    fn map(&mut self, entries: &mut [Entry]) -> Type {
        let (mut key, mut value) = (None, None);
        for entry in entries {
            let ty = self.check(&mut entry.key);
            key = Some(self.join(key, ty));
            let mut ty = self.check(&mut entry.value);
            if entry.optional {
                ty = self.unwrapped(entry.value.id, ty);
            }
            value = Some(self.join(value, ty));
        }
        let key = key.unwrap_or_else(|| self.unifier.fresh());
        Type::map(key, value.unwrap_or_else(|| self.unifier.fresh()))
    }

    fn construct(&mut self, id: Id, s: &mut StructLiteral) -> Type {
        if let Some(name) = s.name.strip_prefix('.') {
            s.name = name.to_owned();
        }
        if !self.scope.constructible(&s.name) {
            for field in &mut s.fields {
                self.check(&mut field.value);
            }
            if named_type(&s.name).is_some() {
                self.fault(id, format!("'{}' is not a message type", s.name));
                return Type::Error;
            }
            return self.undeclared(id, &s.name.clone());
        }
        for field in &mut s.fields {
            let mut ty = self.check(&mut field.value);
            if field.optional {
                ty = self.unwrapped(field.value.id, ty);
            }
            match self.scope.field(&s.name, &field.name).flatten() {
                None => self.fault(field.id, format!("undefined field '{}'", field.name)),
                Some(wanted) if !self.unifier.assignable(&wanted, &ty) => {
                    let ty = self.unifier.resolve(&ty, false);
                    let message =
                        format!("expected type of field '{}' is '{wanted}' but provided type is '{ty}'", field.name);
                    self.fault(field.id, message);
                }
                Some(_) => {}
            }
        }
        Type::object(&s.name)
    }

    fn fold(&mut self, fold: &mut Fold) -> Type {
        let range = self.check(&mut fold.range);
        let accu = self.check(&mut fold.init);
        let range = self.unifier.resolve(&range, false);
        let outside = self.locals.len();
        self.locals.push((fold.accu.clone(), accu.clone()));
        let (var, var2) = match &range {
            Type::List(element) if fold.var2.is_some() => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Error),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.unifier.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.fault(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        self.locals.push((fold.var.clone(), var));
        if let Some(name) = &fold.var2 {
            self.locals.push((name.clone(), var2));
        }
        let condition = self.check(&mut fold.condition);
        self.wanted(fold.condition.id, &Type::Bool, &condition);
        let step = self.check(&mut fold.step);
        self.wanted(fold.step.id, &accu, &step);
        self.locals.truncate(outside + 1);
        let result = self.check(&mut fold.result);
        self.locals.truncate(outside);
        self.unifier.resolve(&result, false)
    }

    fn wanted(&mut self, id: Id, wanted: &Type, found: &Type) {
        if !self.unifier.assignable(wanted, found) {
            self.mismatch(id, wanted, found);
        }
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::Text(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

/// The types that expressions can refer to by name.
fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "dyn" => Type::Dyn,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "string" => Type::String,
        "type" => Type::Type(None),
        "uint" => Type::Uint,
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "net.IP" | "net.CIDR" => Type::Opaque(name.into()),
        "kubernetes.URL" | "kubernetes.Quantity" | "kubernetes.Semver" => Type::object(name),
        _ => return None,
    })
}
