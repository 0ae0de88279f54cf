//! The tree of an expression. Each node has an ID, by which its position, type and overloads are found.

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
    /// `operand.field`. With `test` it is the result of `has()`.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
    },
    Call(Box<Call>),
    /// The elements, each with whether it was written `?element`.
    List(Vec<(Expr, bool)>),
    Map(Vec<Entry>),
    Struct(Box<StructLiteral>),
    Fold(Box<Fold>),
    /// A part with a syntax error. It is never checked.
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

/// The expansion of every macro over a range. The accumulator starts with `init`. For each element, while `condition` holds, it is set
/// to
/// `step`. The value of the loop is `result`.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub range: Expr,
    pub var: String,
    /// The second variable of macros with two variables. It is the value, and the first is the index or key.
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

    /// The dotted name `a.b.c`, if the expression consists only of names.
    pub fn qualified(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, test: false } => Some(format!("{}.{field}", operand.qualified()?)),
            _ => None,
        }
    }

    /// The direct children in the order of the source.
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

    /// Calls `visit` with every node. A node comes before its children.
    pub fn walk<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        visit(self);
        for child in self.children() {
            child.walk(visit);
        }
    }
}
