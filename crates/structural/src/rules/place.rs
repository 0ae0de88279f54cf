//! The rules of a schema by location. The rules of equal locations are compiled once.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_cel::{DeclType, escape};

use super::compile::{CompiledRule, compile};
use super::decl::Decls;
use crate::schema::{Flags, Name, Node};

/// A node with rules at it or below.
#[derive(Debug)]
pub(super) struct RuleNode {
    pub node: Arc<Node>,
    pub decl: Arc<DeclType>,
    pub rules: Vec<CompiledRule>,
    pub properties: Vec<(Name, Arc<RuleNode>)>,
    pub values: Option<Arc<RuleNode>>,
    pub items: Option<Arc<RuleNode>>,
}

impl RuleNode {
    pub fn property(&self, name: &str) -> Option<&RuleNode> {
        let at = self.properties.binary_search_by(|(n, _)| n.as_ref().cmp(name)).ok()?;
        Some(&self.properties[at].1)
    }
}

/// All rules of a schema, compiled.
#[derive(Debug)]
pub struct Rules {
    pub(super) root: Option<Arc<RuleNode>>,
}

impl Rules {
    /// Returns the rules at a position and below; `root` when the position is an embedded object.
    pub fn of(node: &Arc<Node>, root: bool) -> Self {
        let mut maker = Maker { decls: Decls::default(), made: HashMap::new() };
        Self { root: maker.place(node, root) }
    }
    /// Reports whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }
}

struct Maker {
    decls: Decls,
    made: HashMap<(*const Node, bool), Option<Arc<RuleNode>>>,
}

impl Maker {
    fn place(&mut self, node: &Arc<Node>, root: bool) -> Option<Arc<RuleNode>> {
        if !node.is(Flags::BELOW_RULES) {
            return None;
        }
        let key = (Arc::as_ptr(node), root);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let made = self.make(node, root).map(Arc::new);
        self.made.insert(key, made.clone());
        made
    }

    fn make(&mut self, node: &Arc<Node>, root: bool) -> Option<RuleNode> {
        let decl = self.decls.of(node, root)?;
        let mut properties = Vec::new();
        for (name, property) in node.properties() {
            let embedded = property.is(Flags::EMBEDDED);
            // At a root, only the metadata of every object is visible.
            let seen = match escape(name) {
                Some(identifier) => decl.field(&identifier).is_some(),
                None => self.decls.of(property, embedded).is_some(),
            };
            if let Some(place) = seen.then(|| self.place(property.arc(), embedded)).flatten() {
                properties.push((name.clone(), place));
            }
        }
        let mut below = |child: &Arc<Node>| self.place(child, child.is(Flags::EMBEDDED));
        let values = node.values_of_map().and_then(|c| below(c.arc()));
        let items = node.items().and_then(|c| below(c.arc()));
        let rules = compile(node, &decl);
        Some(RuleNode { node: Arc::clone(node), decl, rules, properties, values, items })
    }
}
