//! What expressions cost: rules by overload, used twice, for the worst case before and for what happens while evaluating.
//! Numbers are those of cel-go 0.26 and of `apiserver/pkg/cel/library/cost.go`; they are part of the API, because a rule that is
//! too expensive cannot be written.
mod actual;
mod calls;
mod estimate;
pub(crate) mod range;

pub(crate) use actual::actual;
pub(crate) use estimate::{Sizes, estimate};

/// How a call is priced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    /// 1, as everything that takes as long whatever its arguments are.
    One,
    /// A price that depends on nothing.
    Fixed(u64),
    /// A selector that is parsed into requirements.
    Selector,
    /// One look at every element.
    Traverse,
    /// One pass over the first text, which is as long afterwards.
    Pass,
    /// The first text is read; the factor says how often.
    Read(f64),
    Replace,
    Split,
    Join,
    /// A pattern is looked for.
    Find,
    /// An address in a range; whether it has to be parsed.
    ContainsIp(bool),
    /// A range in a range; whether it has to be parsed.
    ContainsCidr(bool),
    /// A format of names.
    Validate,
    /// `startsWith`: the worst case is the argument's length, the actual cost the receiver's.
    Affix,
    ToBytes,
    ToText,
    Quote,
    Format,
    InList,
    Equal,
    /// `!=` and the order of text and bytes.
    Compare,
    /// Text or bytes after each other.
    AddText,
    AddList,
    Matches,
    Contains,
    /// Elements of a list.
    IndexList,
    /// Values of a map.
    IndexMap,
    Logical,
    Conditional,
    /// Every element against every other; the factor says how often.
    Sets(f64),
    Slice,
    Flatten,
    Range,
    Reverse,
    Distinct,
    /// Whether elements are text or bytes.
    Sort(bool),
    /// Whether keys are text or bytes.
    SortBy(bool),
}

impl Rule {
    /// Whether the rule goes by the function's name, and so holds when the overload is not known either.
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
/// Of one code point or byte that is passed over.
pub(crate) const TEXT: f64 = 0.1;
/// Of one byte of a pattern.
pub(crate) const PATTERN: f64 = 0.25;
