//! `'…'.format([…])`: clauses such as `%s`, `%.2f` and `%x`. Numbers are printed with an English decimal point, as in upstream's
//! environment.
use super::convert;
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::types::ty::Type;
use crate::value::error::{EvalError, Result};
use crate::value::{List, Map, Value, time};

pub(super) const ROWS: &[Row] = &[Row("string_format", "<string>.format(list(dyn)) -> string", format, Rule::Format)];

/// The number of digits after the point if the clause has no precision.
const PRECISION: usize = 6;
/// The most digits after the point, so that a clause cannot ask for gigabytes.
const MOST_DIGITS: usize = 1000;

/// One part of a format string.
enum Part<'f> {
    Text(&'f str),
    Clause { letter: char, precision: Option<usize> },
}

/// Calls `each` with every part in order.
fn parts<'f, E: From<String>>(
    format: &'f str,
    mut each: impl FnMut(Part<'f>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        each(Part::Text(&rest[..at]))?;
        let clause = &rest[at + 1..];
        if let Some(after) = clause.strip_prefix('%') {
            each(Part::Text("%"))?;
            rest = after;
            continue;
        }
        let (precision, after) = precision(clause)?;
        let letter = after.chars().next().ok_or_else(|| E::from("unexpected end of string".to_owned()))?;
        if !"sdfebxXo".contains(letter) {
            let why = format!("could not parse formatting clause: unrecognized formatting clause \"{letter}\"");
            return Err(E::from(why));
        }
        each(Part::Clause { letter, precision })?;
        rest = &after[letter.len_utf8()..];
    }
    each(Part::Text(rest))
}

fn precision<E: From<String>>(clause: &str) -> std::result::Result<(Option<usize>, &str), E> {
    let Some(digits) = clause.strip_prefix('.') else { return Ok((None, clause)) };
    let wrong = |why: &str| E::from(format!("could not parse formatting clause: error while parsing precision: {why}"));
    let end =
        digits.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| wrong("could not find end of precision specifier"))?;
    match digits[..end].parse() {
        Ok(n) if n <= MOST_DIGITS => Ok((Some(n), &digits[end..])),
        _ => Err(wrong(&format!(
            "error while converting precision to integer: strconv.Atoi: parsing \"{}\": invalid syntax",
            &digits[..end]
        ))),
    }
}

fn wrong_type(letter: char, name: &str) -> String {
    let clause = match letter {
        's' => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and \
             timestamps"
        }
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'o' => "octal clause can only be used on integers",
        _ => "only integers, byte buffers, and strings can be formatted as hex",
    };
    format!("error during formatting: {clause}, was given {name}")
}

/// Checks a constant format string with the types of its arguments. The error may have the node of an argument.
pub(crate) fn check(format: &str, args: &[(u32, &Type)]) -> std::result::Result<(), (Option<u32>, String)> {
    struct Mistake(Option<u32>, String);
    impl From<String> for Mistake {
        fn from(s: String) -> Self {
            Mistake(None, s)
        }
    }
    let mut used = 0;
    let checked = parts(format, |part| {
        let Part::Clause { letter, .. } = part else { return Ok(()) };
        let (id, ty) = args.get(used).ok_or_else(|| Mistake(None, format!("index {used} out of range")))?;
        used += 1;
        let right = match (letter, ty) {
            (_, Type::Dyn) => true,
            ('s', Type::Object(_) | Type::Opaque(_) | Type::Optional(_)) => false,
            ('s', _) => true,
            ('d' | 'o', ty) => matches!(ty, Type::Int | Type::Uint),
            ('f' | 'e', ty) => matches!(ty, Type::Double | Type::String),
            ('b', ty) => matches!(ty, Type::Int | Type::Uint | Type::Bool),
            (_, ty) => matches!(ty, Type::Int | Type::Uint | Type::String | Type::Bytes),
        };
        if right { Ok(()) } else { Err(Mistake(Some(*id), wrong_type(letter, ty.name()))) }
    });
    checked.map_err(|Mistake(id, why)| (id, why))?;
    if args.len() > used {
        let why = format!("too many arguments supplied to string.format (expected {used}, got {})", args.len());
        return Err((None, why));
    }
    Ok(())
}

fn format<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    struct Unformatted(EvalError);
    impl From<String> for Unformatted {
        fn from(s: String) -> Self {
            Unformatted(EvalError::new(s))
        }
    }
    let [Value::Text(text), Value::List(list)] = args else { return Err(not_for("format", args)) };
    let (mut out, mut used) = (String::with_capacity(text.len() + 16), 0);
    parts(text, |part| {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Clause { letter, precision } => {
                if used >= list.len() {
                    return Err(Unformatted::from(format!("index {used} out of range")));
                }
                let value = list.get(used).map_err(Unformatted)?;
                used += 1;
                out.push_str(&clause(letter, precision, &value).map_err(Unformatted)?);
            }
        }
        Ok(())
    })
    .map_err(|Unformatted(e): Unformatted| e)?;
    Ok(Value::text(out))
}

fn clause(letter: char, precision: Option<usize>, value: &Value<'_>) -> Result<String> {
    let digits = precision.unwrap_or(PRECISION);
    Ok(match (letter, value) {
        ('s', value) => return show(value),
        ('d', Value::Int(n)) => n.to_string(),
        ('d', Value::Uint(n)) => n.to_string(),
        ('f', value) => fixed(number(letter, value)?, digits),
        ('e', value) => scientific(number(letter, value)?, digits),
        ('b', Value::Bool(b)) => u8::from(*b).to_string(),
        ('b', Value::Int(n)) => signed(*n, |n| format!("{n:b}")),
        ('b', Value::Uint(n)) => format!("{n:b}"),
        ('o', Value::Int(n)) => signed(*n, |n| format!("{n:o}")),
        ('o', Value::Uint(n)) => format!("{n:o}"),
        ('x', Value::Int(n)) => signed(*n, |n| format!("{n:x}")),
        ('X', Value::Int(n)) => signed(*n, |n| format!("{n:X}")),
        ('x', Value::Uint(n)) => format!("{n:x}"),
        ('X', Value::Uint(n)) => format!("{n:X}"),
        ('x' | 'X', Value::Text(s)) => hex(s.as_bytes(), letter),
        ('x' | 'X', Value::Bytes(b)) => hex(b, letter),
        (letter, value) => return Err(EvalError::new(wrong_type(letter, value.type_name()))),
    })
}

fn signed(n: i64, show: impl Fn(u64) -> String) -> String {
    format!("{}{}", if n < 0 { "-" } else { "" }, show(n.unsigned_abs()))
}

fn hex(bytes: &[u8], letter: char) -> String {
    let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    if letter == 'X' { text.to_uppercase() } else { text }
}

fn number(letter: char, value: &Value<'_>) -> Result<f64> {
    match value {
        Value::Double(d) => Ok(*d),
        Value::Text(s) => match &**s {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            _ => Err(EvalError::new(wrong_type(letter, "string"))),
        },
        other => Err(EvalError::new(wrong_type(letter, other.type_name()))),
    }
}

fn special(d: f64) -> Option<String> {
    match d {
        d if d.is_nan() => Some("NaN".into()),
        d if d.is_infinite() => Some(if d > 0.0 { "∞" } else { "-∞" }.into()),
        _ => None,
    }
}

/// The digits with a comma between every three digits before the point.
fn fixed(d: f64, digits: usize) -> String {
    if let Some(s) = special(d) {
        return s;
    }
    let plain = format!("{d:.digits$}");
    let (sign, plain) = plain.strip_prefix('-').map_or(("", plain.as_str()), |p| ("-", p));
    let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
    let mut out = String::from(sign);
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// The scientific notation of `%e`, such as `1.500000×10⁰³`.
fn scientific(d: f64, digits: usize) -> String {
    if let Some(s) = special(d) {
        return s;
    }
    let plain = format!("{d:.digits$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let raised: String = format!("{:02}", exponent.abs())
        .bytes()
        .filter_map(|b| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth((b - b'0') as usize))
        .collect();
    format!("{mantissa}×10{}{raised}", if exponent < 0 { "⁻" } else { "" })
}

/// `%s`: at the top level like `string()`, and within lists and maps in the syntax of CEL.
fn show(value: &Value<'_>) -> Result<String> {
    match value {
        Value::List(list) => show_list(list),
        Value::Map(map) => show_map(map),
        Value::Null => Ok("null".into()),
        value => match convert::to_string(std::slice::from_ref(value)) {
            Ok(Value::Text(s)) => Ok(s.to_string()),
            _ => Err(EvalError::new(wrong_type('s', value.type_name()))),
        },
    }
}

fn quoted(s: &str) -> String {
    format!("{s:?}")
}

fn within(value: &Value<'_>) -> Result<String> {
    Ok(match value {
        Value::Text(s) => quoted(s),
        Value::Bytes(b) => format!("b{}", quoted(&String::from_utf8_lossy(b))),
        Value::Double(d) if !d.is_finite() => quoted(&crate::value::Value::Double(*d).to_string()),
        Value::Double(d) => format!("{d:.6}"),
        Value::Timestamp(t) => format!("timestamp(\"{t}\")"),
        Value::Duration(d) => format!("duration(\"{}\")", time::duration_text(*d)),
        value => show(value)?,
    })
}

fn show_list(list: &List<'_>) -> Result<String> {
    if list.len() > crate::value::list::MOST {
        return Err(EvalError::CostLimit);
    }
    let shown = list.iter().map(|v| within(&v?)).collect::<Result<Vec<_>>>()?;
    Ok(format!("[{}]", shown.join(", ")))
}

fn show_map(map: &Map<'_>) -> Result<String> {
    let mut shown = Vec::new();
    for key in map.keys() {
        let value = map.find(&key)?.unwrap_or(Value::Null);
        shown.push(format!("{}:{}", within(&key)?, within(&value)?));
    }
    shown.sort();
    Ok(format!("{{{}}}", shown.join(", ")))
}
