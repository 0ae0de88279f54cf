//! The minimum and maximum cost of a call, and the size of its result, from what is known of its arguments.
use super::range::{Range, scale};
use super::{LIST, PATTERN, Rule, STRUCT, TEXT};
use crate::types::ty::Type;

/// The static knowledge of an argument.
#[derive(Clone, Debug)]
pub(super) struct Arg {
    pub ty: Type,
    /// The size, if the expression or the schema determines it.
    pub size: Option<Range>,
    /// The size of the elements, if the argument is a list that the schema or the expression describes.
    pub element: Option<Range>,
    /// The value, if the argument is a constant integer.
    pub int: Option<i64>,
}

impl Arg {
    pub fn size(&self) -> Range {
        self.size.unwrap_or(Range::UNKNOWN)
    }
}

/// The cost of a call and the size of its result. `None` means a cost of 1.
pub(super) fn call(rule: Rule, target: Option<&Arg>, args: &[Arg]) -> Option<(Range, Option<Range>)> {
    let arg = |i: usize| args.get(i).map(Arg::size);
    // The first argument of a member call is its receiver. Global functions of the same name have it as their first argument.
    let first = || target.map(Arg::size).or_else(|| arg(0));
    let plain = |cost: Range| Some((cost, None));
    match rule {
        Rule::Fixed(n) => plain(Range::fixed(n)),
        Rule::Selector => {
            let size = arg(0)?;
            let requirements = size.scaled(0.5).scaled((LIST + STRUCT) as f64);
            plain(Range::fixed(LIST).plus(size.scaled(TEXT)).plus(requirements))
        }
        Rule::Traverse => plain(traverse(target?)),
        Rule::Pass => first().map(|size| (size.scaled(TEXT), Some(size))),
        Rule::Read(factor) => plain(arg(0)?.scaled(factor * TEXT)),
        Rule::Replace => Some((target?.size().scaled(2.0 * TEXT), Some(replaced(target?.size(), arg(0)?, arg(1)?)))),
        Rule::Split => {
            let size = target?.size();
            let max = args.get(1).and_then(|a| a.int).map_or(size.max, |n| n as u64);
            Some((size.scaled(2.0 * TEXT), Some(Range { min: 0, max })))
        }
        Rule::Join => Some(join(target?, arg(0))),
        Rule::Find | Rule::Matches => {
            let (text, pattern) = (target?.size(), arg(0)?);
            let cost = text.plus(Range::fixed(1)).scaled(TEXT).times(pattern.scaled(PATTERN));
            Some((cost, (rule == Rule::Find).then_some(Range { min: 0, max: text.max })))
        }
        Rule::ContainsIp(parsed) => plain(bytes(2.0).plus(parse(parsed, arg(0)?))),
        Rule::ContainsCidr(parsed) => {
            plain(bytes(2.0).plus(bytes(1.0)).plus(Range::fixed(1)).plus(parse(parsed, arg(0)?)))
        }
        Rule::Validate => plain(arg(0)?.scaled(TEXT).scaled(128.0 * PATTERN)),
        Rule::Affix => plain(arg(0)?.scaled(TEXT)),
        Rule::ToBytes => {
            let size = arg(0)?;
            Some((size.scaled(TEXT), Some(Range { min: size.min, max: size.max.wrapping_mul(4) })))
        }
        Rule::ToText => arg(0).map(|s| (s.scaled(TEXT), Some(Range { min: s.min / 4, max: s.max }))),
        Rule::Quote => arg(0).map(|s| {
            (s.scaled(TEXT), Some(Range { min: s.min.wrapping_add(2), max: s.max.wrapping_mul(2).wrapping_add(2) }))
        }),
        Rule::Format => plain(target?.size().scaled(TEXT)),
        Rule::InList => plain(arg(1)?),
        Rule::Contains => plain(target?.size().scaled(TEXT).times(arg(0)?.scaled(TEXT))),
        Rule::Equal if args.len() == 2 && args[0].ty == args[1].ty && opaque_equality(args).is_some() => {
            plain(opaque_equality(args)?)
        }
        Rule::Equal | Rule::Compare => {
            let most = arg(0)?.max.min(arg(1)?.max);
            plain(Range { min: u64::from(most > 0), max: most }.scaled(TEXT))
        }
        Rule::Sets(factor) => plain(arg(0)?.times(arg(1)?).scaled(factor).plus(Range::fixed(1))),
        Rule::Slice
        | Rule::Range
        | Rule::Reverse
        | Rule::Flatten
        | Rule::Distinct
        | Rule::Sort(_)
        | Rule::SortBy(_) => new_list(rule, target, args),
        Rule::One
        | Rule::AddText
        | Rule::AddList
        | Rule::IndexList
        | Rule::IndexMap
        | Rule::Logical
        | Rule::Conditional => None,
    }
}

/// The cost of functions that return a new list.
fn new_list(rule: Rule, target: Option<&Arg>, args: &[Arg]) -> Option<(Range, Option<Range>)> {
    match rule {
        Rule::Slice => {
            let end = args.get(1)?.int.map_or(target?.size().max, |n| n.max(0) as u64);
            let start = args.first()?.int.map_or(0, |n| n.max(0) as u64);
            Some(allocating(1.0, Range::fixed(end.wrapping_sub(start))))
        }
        Rule::Range => Some(allocating(1.0, Range::fixed(args.first()?.int.map_or(u64::MAX, |n| n.max(0) as u64)))),
        Rule::Reverse => Some(allocating(1.0, target?.size())),
        Rule::Flatten => {
            let depth = args.first().map_or(1, |a| a.int.map_or(u64::MAX, |n| n.max(0) as u64));
            Some(allocating(depth as f64, target?.size()))
        }
        Rule::Distinct => Some(allocating(2.0, target?.size().times(target?.size()))),
        Rule::Sort(text) => Some(allocating(sort_factor(text), target?.size().times(target?.size()))),
        Rule::SortBy(text) => Some(allocating(sort_factor(text), args.first()?.size().times(args.first()?.size()))),
        _ => None,
    }
}

fn sort_factor(text: bool) -> f64 {
    if text { 2.0 + TEXT } else { 2.0 }
}

/// The cost of reading an IPv4 or IPv6 address, times a factor.
fn bytes(factor: f64) -> Range {
    Range { min: 4, max: 16 }.scaled(factor * TEXT)
}

fn parse(parsed: bool, size: Range) -> Range {
    if parsed { size.scaled(TEXT) } else { Range::ZERO }
}

fn allocating(factor: f64, size: Range) -> (Range, Option<Range>) {
    (size.scaled(factor).plus(Range::fixed(1 + LIST)), Some(size))
}

/// The cost of comparing two values of a library's type.
fn opaque_equality(args: &[Arg]) -> Option<Range> {
    match &args[0].ty {
        Type::Opaque(_) => Some(Range::fixed(1)),
        Type::Object(name) => match &**name {
            "kubernetes.NamedFormat" => Some(Range { min: 1, max: 64 }.scaled(TEXT)),
            "kubernetes.URL" => Some(Range { min: 1, max: args[1].size.map_or(1, |s| s.max) }.scaled(TEXT)),
            name => (matches!(name, "kubernetes.Quantity" | "kubernetes.Semver")
                || name.starts_with("kubernetes.authorization."))
            .then_some(Range::fixed(1)),
        },
        _ => None,
    }
}

fn traverse(target: &Arg) -> Range {
    match &target.ty {
        Type::List(element) => {
            let mut each = Range::fixed(1);
            if matches!(**element, Type::String | Type::Bytes) {
                each = each.plus(target.element.unwrap_or(Range::UNKNOWN).scaled(TEXT));
            }
            target.size().times(each)
        }
        _ => target.size().scaled(TEXT),
    }
}

fn replaced(size: Range, old: Range, new: Range) -> Range {
    let (mut count, mut kept) = (Range::ZERO, Range::ZERO);
    if old.min == 0 {
        count.max = size.max.saturating_add(1);
        kept.max = size.max;
    } else if new.max <= old.min {
        kept.max = size.max;
    } else {
        count.max = (size.max as f64 / old.min as f64).ceil() as u64;
    }
    if old.max == 0 {
        count.min = size.min.saturating_add(1);
        kept.min = size.min;
    } else if old.max <= new.min {
        kept.min = size.min;
    } else {
        count.min = (size.min as f64 / old.max as f64).ceil() as u64;
    }
    count.times(new).plus(kept)
}

fn join(target: &Arg, separator: Option<Range>) -> (Range, Option<Range>) {
    let list = target.size();
    let mut size = match &target.ty {
        Type::List(_) => list.times(target.element.unwrap_or(Range::UNKNOWN)),
        _ => Range::ZERO,
    };
    if let Some(separator) = separator {
        let between = Range { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
        size = size.plus(separator.times(between));
    }
    (size.scaled(TEXT), Some(size))
}

/// The cost of concatenating strings with these sizes.
pub(super) fn concatenated(size: Range) -> Range {
    Range { min: scale(size.min, TEXT), max: scale(size.max, TEXT) }
}
