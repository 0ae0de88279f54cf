//! What an expression may name: variables with their types. The functions are the same everywhere.
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::check::{self, Scope};
use crate::cost::range::Range;
use crate::cost::{self, Sizes};
use crate::eval::plan::plan;
use crate::eval::program::Program;
use crate::syntax::source::{Issue, display};
use crate::syntax::{self};
use crate::types::decl::{DeclKind, DeclType};
use crate::types::ty::Type;
use crate::value::error::EvalError;

/// Variables and object types; never changed once built, and cheap to clone.
#[derive(Clone, Debug)]
pub struct Env(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    variables: BTreeMap<String, Type>,
    objects: HashMap<Arc<str>, Object>,
    /// Of the first variable that has a declared type: paths are looked up from here, as upstream does.
    root: Option<Arc<DeclType>>,
    /// Whether `Object{…}` and `JSONPatch{…}` make mutations.
    mutations: bool,
    /// Whether `cel.bind` names a value.
    bindings: bool,
}

#[derive(Debug)]
enum Object {
    Declared(Arc<DeclType>),
    Fields(BTreeMap<String, Type>),
}

/// Builds an [`Env`].
#[derive(Debug, Default)]
pub struct EnvBuilder(Inner);

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum CompileError {
    /// It is no expression, or its types do not fit. `Display` is what upstream puts behind `compilation failed: `.
    Issues {
        /// The text that is compiled, for messages.
        source: String,
        /// At least one.
        issues: Vec<Issue>,
    },
    /// A constant in it has no value. Upstream puts it behind `program instantiation failed: `.
    Instantiation(EvalError),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompileError::Issues { source, issues } => f.write_str(&display(source, issues)),
            CompileError::Instantiation(e) => write!(f, "{e}"),
        }
    }
}
impl std::error::Error for CompileError {}

impl EnvBuilder {
    /// A variable of Kubernetes' data. Object types within that have no name yet are named after the variable.
    pub fn variable(mut self, name: &str, decl: &DeclType) -> Self {
        let decl = Arc::new(decl.named(&format!("{name}Type")));
        let ty = decl.ty();
        self.declare(&decl);
        self.0.variables.insert(name.into(), ty);
        self.0.root.get_or_insert(decl);
        self
    }
    /// A variable that may be absent, as `oldSelf` where `optionalOldSelf` is set. Its type must be that of a variable
    /// declared before, for both to be compared: then it is given by that variable's name.
    pub fn optional_of(mut self, name: &str, other: &str) -> Self {
        if let Some(ty) = self.0.variables.get(other).cloned() {
            self.0.variables.insert(name.into(), Type::optional(ty));
        }
        self
    }
    /// A variable of the same type as one declared before, as `oldSelf` beside `self`.
    pub fn same_as(mut self, name: &str, other: &str) -> Self {
        if let Some(ty) = self.0.variables.get(other).cloned() {
            self.0.variables.insert(name.into(), ty);
        }
        self
    }
    /// A variable of any type, such as the authorizer ([`authorizer_type`]).
    pub fn typed(mut self, name: &str, ty: Type) -> Self {
        self.0.variables.insert(name.into(), ty);
        self
    }
    /// `variables`, whose fields are named expressions of these types.
    pub fn named_expressions<'n>(mut self, fields: impl IntoIterator<Item = (&'n str, Type)>) -> Self {
        let name: Arc<str> = "kubernetes.variables".into();
        let fields = fields.into_iter().map(|(n, ty)| (n.to_owned(), ty)).collect();
        self.0.objects.insert(name.clone(), Object::Fields(fields));
        self.0.variables.insert("variables".into(), Type::Object(name));
        self
    }
    /// With the constructors of mutating policies: `Object{…}` and what is within, `JSONPatch{…}`.
    pub fn mutations(mut self) -> Self {
        self.0.mutations = true;
        self
    }
    /// With the macro `cel.bind(name, value, result)`.
    pub fn bindings(mut self) -> Self {
        self.0.bindings = true;
        self
    }
    /// Fixes what was declared; expressions are compiled against it.
    pub fn build(self) -> Env {
        Env(Arc::new(self.0))
    }
    fn declare(&mut self, decl: &Arc<DeclType>) {
        let objects = &mut self.0.objects;
        decl.objects(&mut |name, decl| {
            objects.insert(name.clone(), Object::Declared(decl.clone()));
        });
    }
}

/// The type of the `authorizer` variable.
pub fn authorizer_type() -> Type {
    Type::object("kubernetes.authorization.Authorizer")
}
/// The type of `authorizer.requestResource`.
pub fn request_resource_type() -> Type {
    Type::object("kubernetes.authorization.ResourceCheck")
}

impl Env {
    /// An empty environment to add to.
    pub fn builder() -> EnvBuilder {
        EnvBuilder::default()
    }
    /// More variables for the same: what is built does not change this one.
    pub fn extend(&self) -> EnvBuilder {
        let inner = &*self.0;
        let objects = inner.objects.iter().map(|(name, object)| {
            let object = match object {
                Object::Declared(decl) => Object::Declared(decl.clone()),
                Object::Fields(fields) => Object::Fields(fields.clone()),
            };
            (name.clone(), object)
        });
        EnvBuilder(Inner {
            variables: inner.variables.clone(),
            objects: objects.collect(),
            root: inner.root.clone(),
            mutations: inner.mutations,
            bindings: inner.bindings,
        })
    }

    #[cfg(test)]
    pub(crate) fn scope(&self) -> &dyn Scope {
        &*self.0
    }

    /// Checks an expression and makes it ready to be evaluated. Whether its type is what is wanted is for the caller to see
    /// ([`Program::output_type`]).
    pub fn compile(&self, source: &str) -> Result<Program, CompileError> {
        let issues = |issues| CompileError::Issues { source: source.to_owned(), issues };
        let parsed = syntax::parse_with(source, self.0.bindings).map_err(issues)?;
        let checked = check::check(parsed, &*self.0).map_err(issues)?;
        let cost = cost::estimate(&checked, &*self.0);
        let (node, slots) = plan(&checked, true).map_err(CompileError::Instantiation)?;
        let output = checked.types[checked.root.id as usize].clone();
        Ok(Program::new(node, slots, output, cost, checked.used))
    }
}

impl Scope for Inner {
    fn variable(&self, name: &str) -> Option<&Type> {
        self.variables.get(name)
    }

    fn field(&self, object: &str, field: &str) -> Option<Option<Type>> {
        if self.mutations && is_mutation(object) {
            return Some(mutation_field(object, field));
        }
        Some(match self.objects.get(object)? {
            Object::Declared(decl) => decl.field(field).map(|f| f.decl.ty()),
            Object::Fields(fields) => fields.get(field).cloned(),
        })
    }

    fn constructible(&self, name: &str) -> bool {
        self.mutations && is_mutation(name)
    }
}

/// Types of mutations: `JSONPatch`, and `Object` with the path of the field it is for (`Object.spec.template`).
fn is_mutation(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

fn mutation_field(object: &str, field: &str) -> Option<Type> {
    if object != "JSONPatch" {
        // Which fields there are is found out when the mutation is applied.
        return Some(Type::Dyn);
    }
    match field {
        "op" | "path" | "from" => Some(Type::String),
        "value" => Some(Type::Dyn),
        _ => None,
    }
}

impl Sizes for Inner {
    fn size(&self, path: &[String], _: &Type) -> Option<Range> {
        let mut decl = self.root.as_deref()?;
        for step in path.split_first()?.1 {
            decl = match (step.as_str(), &decl.kind) {
                ("@items", DeclKind::List(element, _)) => element,
                ("@values", DeclKind::Map(value)) => value,
                ("@items" | "@values", _) => return None,
                ("@keys", DeclKind::Map(_)) => return Some(Range { min: 0, max: 0 }),
                (name, _) => &decl.field(name)?.decl,
            };
        }
        Some(Range { min: 0, max: decl.max_elements.max(0) as u64 })
    }
}
