//! The tree of an expression. Every node has an id by which its place, type and overloads are found.

pub(crate) type Id = u32;

#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub id: Id,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(std::sync::Arc<str>),
    Bytes(std::sync::Arc<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Literal),
    Ident(String),
    /// `operand.field`; with `test`, what `has()` made of it.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
    },
    Call(Box<Call>),
    /// Each element with whether it was written `?element`.
    List(Vec<(Expr, bool)>),
    Map(Vec<Entry>),
    Struct(Box<StructLiteral>),
    Fold(Box<Fold>),
    /// What stands where the parser found a fault; never checked.
    Fault,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub function: String,
    pub target: Option<Expr>,
    pub args: Vec<Expr>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct StructLiteral {
    pub name: String,
    pub fields: Vec<Field>,
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub id: Id,
    pub name: String,
    pub value: Expr,
    pub optional: bool,
}

/// What every macro over a range becomes: from `init`, for each element while `condition` holds, the accumulator is set to
/// `step`; in the end to `result`.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub range: Expr,
    pub var: String,
    /// The second variable of the two-variable macros: values, while the first stands for indices or keys.
    pub var2: Option<String>,
    pub accu: String,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

impl Expr {
    pub fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Literal(Literal::Text(s)) => Some(s),
            _ => None,
        }
    }

    /// `a.b.c` as a name, where it is made of nothing but names.
    pub fn qualified(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, test: false } => Some(format!("{}.{field}", operand.qualified()?)),
            _ => None,
        }
    }

    /// The nodes directly beneath, in the order of the text.
    pub fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) | Kind::Fault => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call(call) => call.target.iter().chain(&call.args).collect(),
            Kind::List(items) => items.iter().map(|(e, _)| e).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|e| [&e.key, &e.value]).collect(),
            Kind::Struct(s) => s.fields.iter().map(|f| &f.value).collect(),
            Kind::Fold(f) => vec![&f.range, &f.init, &f.condition, &f.step, &f.result],
        }
    }

    /// Calls `visit` with every node, each before what is beneath it.
    pub fn walk<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        visit(self);
        for child in self.children() {
            child.walk(visit);
        }
    }
}
