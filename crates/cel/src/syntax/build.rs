//! Builds nodes with their positions. Macros also build nodes and copy their arguments, which is why the number of nodes is bounded.
use super::expr::{Call, Expr, Id, Kind, Literal};

/// The most nodes after macros are expanded: `optMap` copies its target, and chains of it would double the number each time.
pub(super) const NODES: usize = 100_000;

/// Builds nodes at the current position.
pub(crate) struct Builder {
    /// The number of code points before each node, by node ID. No node has the ID 0.
    pub(super) places: Vec<u32>,
    place: u32,
}

impl Builder {
    pub fn new() -> Builder {
        Builder { places: vec![0], place: 0 }
    }
    /// Sets the position of the macro that is expanded next.
    pub fn expand_at(&mut self, place: u32) {
        self.place = place;
    }
    pub fn id(&mut self, place: u32) -> Id {
        self.places.push(place);
        (self.places.len() - 1) as Id
    }
    pub fn at(&mut self, place: u32, kind: Kind) -> Expr {
        Expr { id: self.id(place), kind }
    }
    /// Makes a node of a macro's expansion, at the macro's position.
    pub fn make(&mut self, kind: Kind) -> Expr {
        self.at(self.place, kind)
    }
    pub fn literal(&mut self, literal: Literal) -> Expr {
        self.make(Kind::Literal(literal))
    }
    pub fn ident(&mut self, name: &str) -> Expr {
        self.make(Kind::Ident(name.into()))
    }
    pub fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        self.make(Kind::Call(Box::new(Call { function: function.into(), target: None, args })))
    }
    pub fn member(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> Expr {
        self.make(Kind::Call(Box::new(Call { function: function.into(), target: Some(target), args })))
    }
    /// Copies the tree with new IDs. Beyond the limit of nodes the IDs are the same, since the expression is rejected then.
    pub fn copy(&mut self, expr: &Expr) -> Expr {
        let mut copy = expr.clone();
        let mut count = 0;
        copy.walk(&mut |_| count += 1);
        if self.places.len() + count <= NODES {
            self.renumber(&mut copy);
        } else {
            self.places.resize(NODES + 1, 0);
        }
        copy
    }
    fn renumber(&mut self, expr: &mut Expr) {
        let place = self.places[expr.id as usize];
        expr.id = self.id(place);
        match &mut expr.kind {
            Kind::Literal(_) | Kind::Ident(_) | Kind::Fault => {}
            Kind::Select { operand, .. } => self.renumber(operand),
            Kind::Call(call) => call.target.iter_mut().chain(&mut call.args).for_each(|e| self.renumber(e)),
            Kind::List(items) => items.iter_mut().for_each(|(e, _)| self.renumber(e)),
            Kind::Map(entries) => entries.iter_mut().for_each(|e| {
                self.renumber(&mut e.key);
                self.renumber(&mut e.value);
            }),
            Kind::Struct(s) => s.fields.iter_mut().for_each(|f| {
                f.id = self.id(place);
                self.renumber(&mut f.value);
            }),
            Kind::Fold(f) => {
                for e in [&mut f.range, &mut f.init, &mut f.condition, &mut f.step, &mut f.result] {
                    self.renumber(e);
                }
            }
        }
    }
}
