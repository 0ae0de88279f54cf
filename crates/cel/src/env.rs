//! The declarations for expressions: variables with their types. The functions are the same in every environment.
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

/// The environment of expressions: the variables and object types that an expression may use, and the macros that are
/// available. [`EnvBuilder`] builds it. An environment is immutable and cheap to clone, so callers build one per kind
/// of expression and compile many expressions with it. It corresponds to the environments of upstream's
/// `k8s.io/apiserver/pkg/cel/environment`.
#[derive(Clone, Debug)]
pub struct Env(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    variables: BTreeMap<String, Type>,
    objects: HashMap<Arc<str>, Object>,
    /// The declared type of the first variable that has one. Paths are resolved from it, as upstream does.
    root: Option<Arc<DeclType>>,
    /// Whether `Object{…}` and `JSONPatch{…}` construct mutations.
    mutations: bool,
    /// Whether the macro `cel.bind` is available.
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

/// Why an expression cannot be compiled.
#[derive(Clone, Debug, PartialEq)]
pub enum CompileError {
    /// The expression has syntax or type errors. `Display` gives the message that upstream puts after `compilation failed: `.
    Issues {
        /// The source of the expression, for messages.
        source: String,
        /// The errors, at least one.
        issues: Vec<Issue>,
    },
    /// A constant in the expression cannot be computed. Upstream puts the message after `program instantiation failed: `.
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
    /// Declares a variable of Kubernetes' data. Object types in it that have no name yet get names that begin with the variable's.
    pub fn variable(mut self, name: &str, decl: &DeclType) -> Self {
        let decl = Arc::new(decl.named(&format!("{name}Type")));
        let ty = decl.ty();
        self.declare(&decl);
        self.0.variables.insert(name.into(), ty);
        self.0.root.get_or_insert(decl);
        self
    }
    /// Declares an optional variable, such as `oldSelf` with `optionalOldSelf`. It has the type of the variable `other`, which must be
    /// declared already, so that the two can be compared.
    pub fn optional_of(mut self, name: &str, other: &str) -> Self {
        if let Some(ty) = self.0.variables.get(other).cloned() {
            self.0.variables.insert(name.into(), Type::optional(ty));
        }
        self
    }
    /// Declares a variable with the type of one that is declared already, such as `oldSelf` for `self`.
    pub fn same_as(mut self, name: &str, other: &str) -> Self {
        if let Some(ty) = self.0.variables.get(other).cloned() {
            self.0.variables.insert(name.into(), ty);
        }
        self
    }
    /// Declares a variable of any type, such as the authorizer ([`authorizer_type`]).
    pub fn typed(mut self, name: &str, ty: Type) -> Self {
        self.0.variables.insert(name.into(), ty);
        self
    }
    /// Declares `variables`, whose fields are named expressions of these types.
    pub fn named_expressions<'n>(mut self, fields: impl IntoIterator<Item = (&'n str, Type)>) -> Self {
        let name: Arc<str> = "kubernetes.variables".into();
        let fields = fields.into_iter().map(|(n, ty)| (n.to_owned(), ty)).collect();
        self.0.objects.insert(name.clone(), Object::Fields(fields));
        self.0.variables.insert("variables".into(), Type::Object(name));
        self
    }
    /// Adds the constructors of mutating policies: `Object{…}`, the types of its fields, and `JSONPatch{…}`.
    pub fn mutations(mut self) -> Self {
        self.0.mutations = true;
        self
    }
    /// Adds the macro `cel.bind(name, value, result)`.
    pub fn bindings(mut self) -> Self {
        self.0.bindings = true;
        self
    }
    /// Builds the environment, with which expressions are compiled.
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
    /// Starts an empty environment.
    pub fn builder() -> EnvBuilder {
        EnvBuilder::default()
    }
    /// Starts an environment with these declarations. This environment does not change.
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

    /// Checks an expression and prepares it for evaluation. The caller checks the type of its value ([`Program::output_type`]).
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

/// Whether a name is a type of mutations: `JSONPatch`, or `Object` with the path of a field (`Object.spec.template`).
fn is_mutation(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

fn mutation_field(object: &str, field: &str) -> Option<Type> {
    if object != "JSONPatch" {
        // The fields are checked when the mutation is applied.
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
