//! Sets of NUMA nodes.
use std::fmt;

/// Largest supported NUMA node number.
pub const NODE_MAX: u32 = 63;

/// A set of NUMA nodes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMask(u64);

impl NodeMask {
    /// Creates a set; numbers above [`NODE_MAX`] are ignored.
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> Self {
        Self(nodes.into_iter().filter(|n| *n <= NODE_MAX).fold(0, |mask, n| mask | (1 << n)))
    }
    /// Number of nodes.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
    /// Returns whether the set contains this node.
    pub fn has(self, node: u32) -> bool {
        node <= NODE_MAX && self.0 & (1 << node) != 0
    }
    /// Returns whether the set contains any of these nodes.
    pub fn has_any(self, nodes: &[u32]) -> bool {
        nodes.iter().any(|n| self.has(*n))
    }
    /// Returns the intersection.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Returns the numbers in ascending order.
    pub fn nodes(self) -> Vec<u32> {
        (0..=NODE_MAX).filter(|n| self.has(*n)).collect()
    }
    /// Returns whether it has fewer nodes, or as many with lower numbers.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.nodes())
    }
}

/// Returns all non-empty subsets: smaller ones first, then those with lower numbers.
pub fn subsets(nodes: &[u32]) -> Vec<NodeMask> {
    let mut out = Vec::new();
    for size in 1..=nodes.len() {
        combinations(nodes, size, &mut |chosen| {
            out.push(NodeMask::of(chosen.iter().copied()));
            true
        });
    }
    out
}

/// Calls `each` with every combination of `size` numbers, in order, until it returns false.
pub fn combinations(of: &[u32], size: usize, each: &mut impl FnMut(&[u32]) -> bool) {
    fn go(of: &[u32], size: usize, chosen: &mut Vec<u32>, each: &mut impl FnMut(&[u32]) -> bool) -> bool {
        if size == 0 {
            return each(chosen);
        }
        for at in 0..=of.len().saturating_sub(size) {
            let Some(next) = of.get(at) else { break };
            chosen.push(*next);
            let goes_on = go(&of[at + 1..], size - 1, chosen, each);
            chosen.pop();
            if !goes_on {
                return false;
            }
        }
        true
    }
    if size > 0 && size <= of.len() {
        go(of, size, &mut Vec::new(), each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_go_from_small_to_large() {
        assert_eq!(format!("{:?}", subsets(&[0, 1, 3])), "[[0], [1], [3], [0, 1], [0, 3], [1, 3], [0, 1, 3]]");
        assert!(subsets(&[]).is_empty());
        assert!(NodeMask::of([1]).is_narrower_than(NodeMask::of([0, 1])));
        assert!(NodeMask::of([0]).is_narrower_than(NodeMask::of([1])));
    }
}
