//! The costs of expressions: one rule per overload, used for the worst case before the evaluation and for the actual cost during it.
//! The numbers are those of cel-go 0.26 and of `apiserver/pkg/cel/library/cost.go`. They are part of the API, because the API server
//! rejects an expression that is too expensive.
mod actual;
mod calls;
mod estimate;
pub(crate) mod range;

pub(crate) use actual::actual;
pub(crate) use estimate::{Sizes, estimate};

/// The rule for the cost of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    /// A cost of 1, for functions whose time does not depend on their arguments.
    One,
    /// A constant cost.
    Fixed(u64),
    /// A selector is parsed into requirements.
    Selector,
    /// Every element is visited once.
    Traverse,
    /// The first string is read once. The result has the same length.
    Pass,
    /// The first string is read. The factor is the number of reads.
    Read(f64),
    Replace,
    Split,
    Join,
    /// A pattern is searched for.
    Find,
    /// An address is checked against a range. The flag says whether the address must be parsed.
    ContainsIp(bool),
    /// A range is checked against a range. The flag says whether the inner range must be parsed.
    ContainsCidr(bool),
    /// A string is checked against a named format.
    Validate,
    /// `startsWith`: the worst case depends on the argument's length, the actual cost on the receiver's.
    Affix,
    ToBytes,
    ToText,
    Quote,
    Format,
    InList,
    Equal,
    /// `!=`, and the ordering of strings and bytes.
    Compare,
    /// Concatenation of strings or bytes.
    AddText,
    AddList,
    Matches,
    Contains,
    /// Indexes the elements of a list.
    IndexList,
    /// Indexes the values of a map.
    IndexMap,
    Logical,
    Conditional,
    /// Each element is compared with each other element. The factor is the number of comparisons.
    Sets(f64),
    Slice,
    Flatten,
    Range,
    Reverse,
    Distinct,
    /// `sort`. The flag says whether the elements are strings or bytes.
    Sort(bool),
    /// `sortBy`. The flag says whether the keys are strings or bytes.
    SortBy(bool),
}

impl Rule {
    /// Whether the rule depends only on the function's name, so that it applies also if the overload is not known.
    pub fn by_name(self) -> bool {
        matches!(
            self,
            Rule::Fixed(_)
                | Rule::Selector
                | Rule::Traverse
                | Rule::Pass
                | Rule::Read(_)
                | Rule::Replace
                | Rule::Split
                | Rule::Join
                | Rule::Find
                | Rule::Validate
                | Rule::Equal
        )
    }
}

pub(crate) const LIST: u64 = 10;
pub(crate) const MAP: u64 = 30;
pub(crate) const STRUCT: u64 = 40;
/// The cost of one code point or byte that is read.
pub(crate) const TEXT: f64 = 0.1;
/// The cost of one byte of a pattern.
pub(crate) const PATTERN: f64 = 0.25;
