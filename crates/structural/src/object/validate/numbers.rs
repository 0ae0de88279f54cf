//! Validates the bounds of numbers and their type. Bounds are floats; for an integer they are truncated, as in the
//! reference.
use kelson_meta::path::Path;
use serde_json::Number;

use super::Check;
use super::faults::go_float;
use super::types::is_whole;
use crate::schema::{Flags, Format, Node, Type, Values};

/// The number in the form of the reference.
#[derive(Clone, Copy)]
enum NumberValue {
    Int(i64),
    Float(f64),
}

impl NumberValue {
    fn of(number: &Number) -> Self {
        number.as_i64().map_or_else(|| Self::Float(number.as_f64().unwrap_or(f64::INFINITY)), Self::Int)
    }
    fn float(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }
}

/// The range of numbers at a position: a type, and its format if it is a number format.
#[derive(Clone, Copy)]
struct Range<'a> {
    integer: bool,
    format: Option<(Format, &'a str)>,
}

impl<'a> Range<'a> {
    fn of(node: &'a Node) -> Self {
        let typed = !node.is(Flags::INT_OR_STRING);
        let integer = typed && node.ty() == Type::Integer;
        let format = node.values().and_then(|v| v.format.as_ref()).map(|(format, name)| (*format, name.as_ref()));
        let format = format.filter(|(format, _)| {
            matches!(format, Format::Int32 | Format::Int64 | Format::Float | Format::Double) && typed
        });
        Self { integer, format }
    }
    fn takes(self, number: NumberValue) -> bool {
        if !self.integer {
            let single = matches!(self.format, Some((Format::Float, _)));
            return !single || (number.float() as f32).is_finite();
        }
        let int = match number {
            NumberValue::Int(i) => Some(i),
            NumberValue::Float(f) if f.fract() == 0.0 && (-9.3e18..9.2e18).contains(&f) => Some(f as i64),
            NumberValue::Float(_) => None,
        };
        let narrow = matches!(self.format, Some((Format::Int32, _)));
        int.is_some_and(|i| !narrow || i32::try_from(i).is_ok())
    }
    fn fault(self, what: &str, at: &str) -> String {
        let ty = if self.integer { "integer" } else { "number" };
        match self.format {
            Some((_, format)) => format!("{what} value must be of type {ty} with format {format} in {at}"),
            None => format!("{what} value must be of type {ty} (default format) in {at}"),
        }
    }
}

impl Check<'_> {
    pub(super) fn number(&mut self, number: &Number, node: &Node, path: &Path<'_>) {
        self.out.matched(2);
        let (held, range) = (NumberValue::of(number), Range::of(node));
        if !range.takes(held) {
            self.faults.plain(&mut self.out, path, |at| range.fault("Checked", at));
        }
        let Some(values) = node.values() else { return };
        self.multiple(number, held, range, values, path);
        if let Some(max) = values.maximum {
            let exclusive = node.is(Flags::EXCLUSIVE_MAXIMUM);
            let word = if exclusive { "less than" } else { "less than or equal to" };
            let beyond =
                |order| order == std::cmp::Ordering::Greater || exclusive && order == std::cmp::Ordering::Equal;
            self.bound(number, held, range, max.0, "Maximum boundary", word, beyond, path);
        }
        if let Some(min) = values.minimum {
            let exclusive = node.is(Flags::EXCLUSIVE_MINIMUM);
            let word = if exclusive { "greater than" } else { "greater than or equal to" };
            let beyond = |order| order == std::cmp::Ordering::Less || exclusive && order == std::cmp::Ordering::Equal;
            self.bound(number, held, range, min.0, "Minimum boundary", word, beyond, path);
        }
    }

    fn bound(
        &mut self,
        number: &Number,
        held: NumberValue,
        range: Range<'_>,
        bound: f64,
        what: &str,
        word: &str,
        beyond: impl Fn(std::cmp::Ordering) -> bool,
        path: &Path<'_>,
    ) {
        let fits = range.takes(NumberValue::Float(bound));
        if !fits {
            self.faults.plain(&mut self.out, path, |at| range.fault(what, at));
        }
        let (order, shown) = match held {
            NumberValue::Int(i) if fits => (Some(i.cmp(&(bound as i64))), (bound as i64).to_string()),
            other => (other.float().partial_cmp(&bound), go_float(bound)),
        };
        if order.is_some_and(beyond) {
            self.faults.invalid(&mut self.out, path, number, &format!("should be {word} {shown}"));
        }
    }

    fn multiple(&mut self, number: &Number, held: NumberValue, range: Range<'_>, values: &Values, path: &Path<'_>) {
        let Some(factor) = values.multiple_of.map(|f| f.0) else { return };
        let fits = range.takes(NumberValue::Float(factor));
        if !fits {
            self.faults.plain(&mut self.out, path, |at| range.fault("MultipleOf", at));
        }
        let (positive, whole, shown) = match held {
            NumberValue::Int(i) if fits => {
                let factor = factor as i64;
                (factor > 0, factor > 0 && i.checked_rem(factor) == Some(0), factor.to_string())
            }
            other => {
                let times = if factor < 1.0 { 1.0 / factor * other.float() } else { other.float() / factor };
                (factor > 0.0, is_whole(times), go_float(factor))
            }
        };
        if !positive {
            self.faults.no_factor(&mut self.out, path, &shown);
        } else if !whole {
            self.faults.invalid(&mut self.out, path, number, &format!("should be a multiple of {shown}"));
        }
    }
}
