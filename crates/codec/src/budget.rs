//! The cost limits of one document. Decoders, patches and applies get a [`Budget`] and charge it as they work, so that a small document
//! cannot become a huge tree, a deep tree, or a long computation, in any encoding. CEL expressions have a separate budget, because its
//! charges are part of the API and equal in every cluster.
//!
//! Work is counted in steps, not in seconds: a slow board and a fast server reject the same documents, and a test can
//! distinguish linear from quadratic work without a clock.
use serde_json::Value;

use crate::limits::{DOCUMENT_BYTES_MAX, NESTING_DEPTH_MAX};

/// The estimated bytes of one list element. Lists grow by doubling, so half of a list may be unused.
const ELEMENT_BYTES: usize = 2 * size_of::<Value>();
/// The number of elements for which a list allocates space with its first element.
const FIRST_ELEMENTS: usize = 4;
/// The bytes of one node of the tree that holds an object's members.
const NODE_BYTES: usize = 640;
/// The number of members in the first node of an object. Each further node is at least half full.
const FIRST_NODE_MEMBERS: usize = 11;
const FURTHER_NODE_MEMBERS: usize = 6;
/// The bytes that the allocator uses for a short key or string.
const TEXT_BYTES_MIN: usize = 16;

/// The limits of a [`Budget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of memory that the decoded tree takes, estimated from above.
    pub bytes: usize,
    /// The nesting depth of objects and lists.
    pub depth: usize,
    /// The number of values: members of objects and elements of lists.
    pub elements: usize,
    /// The steps of work after reading: values that are read, compared or moved.
    pub steps: usize,
}

impl Limits {
    /// The limits of a document from outside: the body of a request, or a manifest. Two such trees, the object before and after a write,
    /// take 64 MiB together.
    pub const DOCUMENT: Self =
        Self { bytes: 32 * 1024 * 1024, depth: NESTING_DEPTH_MAX, elements: 1_000_000, steps: 20_000_000 };
    /// The limits of a patch, including what its copies may add to the object. The object before and after the patch is not included.
    pub const PATCH: Self = Self { bytes: 18 * 1024 * 1024, elements: 80_000, ..Self::DOCUMENT };
    /// The limits of an apply, which holds three trees at once: the object before it, the configuration and the object after it. Each is
    /// within its own limits; these limits are for all three and for the sets of their fields.
    pub const APPLY: Self = Self { bytes: 48 * 1024 * 1024, elements: 3_000_000, ..Self::DOCUMENT };
    /// The limits of what the aliases of a YAML document may add to it: as many bytes as the document itself may have, and this many nodes
    /// (including the ends of lists and mappings).
    pub const ALIASES: Self =
        Self { bytes: DOCUMENT_BYTES_MAX, depth: NESTING_DEPTH_MAX, elements: usize::MAX, steps: 100_000 };
    /// The limits of a document whose size its reader has bounded already, such as a stored object or a server's response.
    pub const TRUSTED: Self =
        Self { bytes: usize::MAX, depth: NESTING_DEPTH_MAX, elements: usize::MAX, steps: usize::MAX };
}

/// The limit that a document exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// The document needs more memory than [`Limits::bytes`].
    #[error("decoding the document takes more than {0} bytes of memory")]
    Bytes(usize),
    /// The document is nested deeper than [`Limits::depth`].
    #[error("exceeded max depth")]
    Depth,
    /// The document has more values than [`Limits::elements`].
    #[error("document has more than {0} values")]
    Elements(usize),
    /// The document needs more processing than [`Limits::steps`].
    #[error("processing the document takes more than {0} steps")]
    Steps(usize),
}

/// The limits of one document, and the amounts used so far.
#[derive(Debug, Clone)]
pub struct Budget {
    limits: Limits,
    spent: Limits,
}

impl Budget {
    /// Makes an unused budget.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, spent: Limits { bytes: 0, depth: 0, elements: 0, steps: 0 } }
    }

    /// Returns the amounts used. `depth` is the current depth.
    pub const fn spent(&self) -> Limits {
        self.spent
    }

    /// Charges memory other than that of the values, for instance a copied string.
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

    /// Charges a string with this number of bytes.
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

    /// Charges one more element of a list that has `elements`.
    ///
    /// # Errors
    /// [`Exceeded::Elements`], [`Exceeded::Bytes`]
    pub fn element(&mut self, elements: usize) -> Result<(), Exceeded> {
        self.count()?;
        self.bytes(element_bytes(elements))
    }

    /// Charges one more member of an object that has `members`.
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

    /// Charges the copy of a whole tree: its values, its strings, and a step for each value.
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

/// An upper estimate of the bytes that one more element takes in a list of `elements` elements.
fn element_bytes(elements: usize) -> usize {
    match elements {
        0 => FIRST_ELEMENTS * size_of::<Value>(),
        1..FIRST_ELEMENTS => 0,
        _ => ELEMENT_BYTES,
    }
}

/// An upper estimate of the bytes that one more member takes in an object of `members` members.
pub(crate) fn member_bytes(members: usize, key: &str) -> usize {
    let new_node = members == 0
        || members >= FIRST_NODE_MEMBERS && (members - FIRST_NODE_MEMBERS).is_multiple_of(FURTHER_NODE_MEMBERS);
    key.len().max(TEXT_BYTES_MIN) + if new_node { NODE_BYTES } else { 0 }
}

/// An upper estimate of the bytes that a tree takes beyond the [`Value`] itself.
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
