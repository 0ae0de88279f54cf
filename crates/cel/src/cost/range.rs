//! Lower and upper bounds of costs and sizes, with saturating arithmetic.

/// The bounds of a cost or a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The lower bound.
    pub min: u64,
    /// The upper bound; `u64::MAX` if there is none.
    pub max: u64,
}

impl Range {
    pub(crate) const UNKNOWN: Range = Range { min: 0, max: u64::MAX };
    pub(crate) const ZERO: Range = Range::fixed(0);
    /// The neutral element of [`Range::union`].
    pub(crate) const NONE: Range = Range { min: u64::MAX, max: 0 };

    pub(crate) const fn fixed(n: u64) -> Range {
        Range { min: n, max: n }
    }
    pub(crate) fn plus(self, o: Range) -> Range {
        Range { min: self.min.saturating_add(o.min), max: self.max.saturating_add(o.max) }
    }
    pub(crate) fn times(self, o: Range) -> Range {
        Range { min: self.min.saturating_mul(o.min), max: self.max.saturating_mul(o.max) }
    }
    pub(crate) fn scaled(self, factor: f64) -> Range {
        Range { min: scale(self.min, factor), max: scale(self.max, factor) }
    }
    pub(crate) fn union(self, o: Range) -> Range {
        Range { min: self.min.min(o.min), max: self.max.max(o.max) }
    }
}

/// Multiplies and rounds up. A result that is too large becomes the largest number.
pub(crate) fn scale(n: u64, factor: f64) -> u64 {
    (n as f64 * factor).ceil() as u64
}
