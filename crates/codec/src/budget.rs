//! What one document may cost. Decoders, patches and applies are all given a [`Budget`] and charge it as they go, so that a
//! small document can become neither a huge tree, nor a deep one, nor a long wait, whatever its encoding. Expressions (CEL)
//! have a budget of their own: what they are charged is part of the API, and the same in every cluster.
//!
//! Work is counted in steps and not in seconds: the same document is refused on a slow board and on a fast server, and a
//! test can tell linear work from quadratic work without a clock.
use serde_json::Value;

use crate::limits::{DOCUMENT_BYTES_MAX, NESTING_DEPTH_MAX};

/// Bytes of a value in a list: lists grow by doubling, so that half of one may be empty.
const ELEMENT_BYTES: usize = 2 * size_of::<Value>();
/// Elements that a list has room for from its first one on.
const FIRST_ELEMENTS: usize = 4;
/// Bytes of one node of the tree in which an object holds its members.
const NODE_BYTES: usize = 640;
/// Members that the first node of an object holds; each further node is at least half full.
const FIRST_NODE_MEMBERS: usize = 11;
const FURTHER_NODE_MEMBERS: usize = 6;
/// Bytes that the allocator spends on a short key or text.
const TEXT_BYTES_MIN: usize = 16;

/// The limits of a [`Budget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory that the decoded tree takes, estimated from above.
    pub bytes: usize,
    /// Objects and lists within each other.
    pub depth: usize,
    /// Values: members of objects and elements of lists.
    pub elements: usize,
    /// Steps of work beyond reading: values looked at, compared or moved.
    pub steps: usize,
}

impl Limits {
    /// A document from outside: the body of a request, a manifest. Two such trees, the object before and after a write, take
    /// 64 MiB together.
    pub const DOCUMENT: Self =
        Self { bytes: 32 * 1024 * 1024, depth: NESTING_DEPTH_MAX, elements: 1_000_000, steps: 20_000_000 };
    /// A patch, and what it may add to the object by copies: beside them stand the object before and after it.
    pub const PATCH: Self = Self { bytes: 18 * 1024 * 1024, elements: 80_000, ..Self::DOCUMENT };
    /// An apply, which holds three trees at once: the object before it, the configuration and the object after it. Each is
    /// within its own limits; these are for all three and for the sets of their fields.
    pub const APPLY: Self = Self { bytes: 48 * 1024 * 1024, elements: 3_000_000, ..Self::DOCUMENT };
    /// What the aliases of a YAML document may add to it: as much text as the document itself may have, and that many
    /// nodes (the ends of lists and mappings count too).
    pub const ALIASES: Self =
        Self { bytes: DOCUMENT_BYTES_MAX, depth: NESTING_DEPTH_MAX, elements: usize::MAX, steps: 100_000 };
    /// A document whose size its reader has bounded already: a stored object, the answer of a server.
    pub const TRUSTED: Self =
        Self { bytes: usize::MAX, depth: NESTING_DEPTH_MAX, elements: usize::MAX, steps: usize::MAX };
}

/// The limit that a document exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// [`Limits::bytes`]
    #[error("decoding the document takes more than {0} bytes of memory")]
    Bytes(usize),
    /// [`Limits::depth`]
    #[error("exceeded max depth")]
    Depth,
    /// [`Limits::elements`]
    #[error("document has more than {0} values")]
    Elements(usize),
    /// [`Limits::steps`]
    #[error("processing the document takes more than {0} steps")]
    Steps(usize),
}

/// What is left of the limits of one document.
#[derive(Debug, Clone)]
pub struct Budget {
    limits: Limits,
    spent: Limits,
}

impl Budget {
    /// A budget of which nothing is spent.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, spent: Limits { bytes: 0, depth: 0, elements: 0, steps: 0 } }
    }

    /// What was spent; `depth` is the present one.
    pub const fn spent(&self) -> Limits {
        self.spent
    }

    /// Charges memory beyond that of the values, text that is copied for instance.
    ///
    /// # Errors
    /// [`Exceeded::Bytes`]
    pub fn bytes(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.spent.bytes = self.spent.bytes.saturating_add(bytes);
        if self.spent.bytes > self.limits.bytes {
            return Err(Exceeded::Bytes(self.limits.bytes));
        }
        Ok(())
    }

    /// Charges a text of so many bytes.
    ///
    /// # Errors
    /// [`Exceeded::Bytes`]
    pub fn text(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.bytes(bytes.max(TEXT_BYTES_MIN))
    }

    /// Charges work.
    ///
    /// # Errors
    /// [`Exceeded::Steps`]
    pub fn steps(&mut self, steps: usize) -> Result<(), Exceeded> {
        self.spent.steps = self.spent.steps.saturating_add(steps);
        if self.spent.steps > self.limits.steps {
            return Err(Exceeded::Steps(self.limits.steps));
        }
        Ok(())
    }

    /// Charges an element of a list that has `elements` already.
    ///
    /// # Errors
    /// [`Exceeded::Elements`], [`Exceeded::Bytes`]
    pub fn element(&mut self, elements: usize) -> Result<(), Exceeded> {
        self.count()?;
        self.bytes(element_bytes(elements))
    }

    /// Charges a member of an object that has `members` already.
    ///
    /// # Errors
    /// [`Exceeded::Elements`], [`Exceeded::Bytes`]
    pub fn member(&mut self, members: usize, key: &str) -> Result<(), Exceeded> {
        self.count()?;
        self.bytes(member_bytes(members, key))
    }

    fn count(&mut self) -> Result<(), Exceeded> {
        self.spent.elements = self.spent.elements.saturating_add(1);
        if self.spent.elements > self.limits.elements {
            return Err(Exceeded::Elements(self.limits.elements));
        }
        Ok(())
    }

    /// Charges a whole tree that is to be copied: its values, its text and a step for each of them.
    ///
    /// # Errors
    /// [`Exceeded::Elements`], [`Exceeded::Bytes`], [`Exceeded::Steps`]
    pub fn tree(&mut self, value: &Value) -> Result<(), Exceeded> {
        self.steps(1)?;
        match value {
            Value::Array(items) => items.iter().enumerate().try_for_each(|(i, item)| {
                self.element(i)?;
                self.tree(item)
            }),
            Value::Object(map) => map.iter().enumerate().try_for_each(|(i, (key, value))| {
                self.member(i, key)?;
                self.tree(value)
            }),
            Value::String(text) => self.text(text.len()),
            _ => Ok(()),
        }
    }

    /// Enters an object or a list; [`Budget::leave`] leaves it.
    ///
    /// # Errors
    /// [`Exceeded::Depth`]
    pub fn enter(&mut self) -> Result<(), Exceeded> {
        self.spent.depth += 1;
        if self.spent.depth > self.limits.depth {
            return Err(Exceeded::Depth);
        }
        Ok(())
    }

    /// Leaves an object or a list.
    pub fn leave(&mut self) {
        self.spent.depth = self.spent.depth.saturating_sub(1);
    }
}

/// Estimate from above of what one more element takes in a list of `elements` elements, in bytes.
fn element_bytes(elements: usize) -> usize {
    match elements {
        0 => FIRST_ELEMENTS * size_of::<Value>(),
        1..FIRST_ELEMENTS => 0,
        _ => ELEMENT_BYTES,
    }
}

/// Estimate from above of what one more member takes in an object of `members` members, in bytes.
pub(crate) fn member_bytes(members: usize, key: &str) -> usize {
    let new_node = members == 0
        || members >= FIRST_NODE_MEMBERS && (members - FIRST_NODE_MEMBERS).is_multiple_of(FURTHER_NODE_MEMBERS);
    key.len().max(TEXT_BYTES_MIN) + if new_node { NODE_BYTES } else { 0 }
}

/// Estimate from above of the memory of a tree beyond the [`Value`] itself, in bytes.
pub(crate) fn tree_bytes(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().enumerate().map(|(i, item)| element_bytes(i) + tree_bytes(item)).sum(),
        Value::Object(map) => {
            map.iter().enumerate().map(|(i, (key, value))| member_bytes(i, key) + tree_bytes(value)).sum()
        }
        Value::String(text) => text.len().max(TEXT_BYTES_MIN),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_refuses_by_its_own_name() {
        let limits = Limits { bytes: 10_000, depth: 2, elements: 3, steps: 5 };
        let mut budget = Budget::new(limits);
        assert_eq!((budget.bytes(10_000), budget.bytes(1)), (Ok(()), Err(Exceeded::Bytes(10_000))));
        assert_eq!(budget.bytes(usize::MAX), Err(Exceeded::Bytes(10_000)), "sums do not wrap");
        let mut budget = Budget::new(limits);
        assert_eq!((budget.enter(), budget.enter(), budget.enter()), (Ok(()), Ok(()), Err(Exceeded::Depth)));
        assert_eq!((budget.steps(5), budget.steps(1)), (Ok(()), Err(Exceeded::Steps(5))));
        assert_eq!((budget.element(0), budget.member(0, "a"), budget.element(1)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(budget.element(2), Err(Exceeded::Elements(3)));
    }

    #[test]
    fn members_are_charged_by_the_node() {
        let charged = |count: usize| {
            let mut budget = Budget::new(Limits::TRUSTED);
            (0..count).for_each(|i| budget.member(i, "k").expect("no limit"));
            budget.spent().bytes - count * TEXT_BYTES_MIN
        };
        assert_eq!([0, 1, 11, 12, 17, 18].map(charged), [0, 640, 640, 1280, 1280, 1920]);
    }
}
