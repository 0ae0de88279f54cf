//! Parses values of flags by upstream's types, with Go's error messages.
use std::net::IpAddr;

/// The type of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A boolean; true without a value, and never followed by a value as a separate word.
    Bool,
    /// As `Bool`, or `raw`, or a version to print.
    Version,
    /// A signed integer of this number of bits, in Go's formats.
    Int(u32),
    /// An unsigned integer.
    Uint,
    /// A floating-point number.
    Float,
    /// A duration such as `1h30m`.
    Duration,
    /// An IPv4 or IPv6 address, without a port.
    Ip,
    /// Any string; the last of several is used.
    Text,
    /// Any string; several are collected. The typed arguments split them.
    List,
}

impl Kind {
    /// Returns the type of upstream's type name.
    pub fn of(name: &str) -> Self {
        match name {
            "bool" => Self::Bool,
            "version" => Self::Version,
            "int" => Self::Int(64),
            "int32" => Self::Int(32),
            "uint" | "Level" => Self::Uint,
            "float" | "float32" => Self::Float,
            "duration" => Self::Duration,
            "ip" => Self::Ip,
            "strings" | "stringArray" | "int32Slice" | "namedCertKey" => Self::List,
            of_pairs if of_pairs.contains("String") || of_pairs.starts_with("map") => Self::List,
            _ => Self::Text,
        }
    }

    /// Returns the value of a flag without one; `None` when it takes the next word.
    pub fn alone(self) -> Option<&'static str> {
        matches!(self, Self::Bool | Self::Version).then_some("true")
    }

    /// Returns the value in the form of the typed arguments.
    ///
    /// # Errors
    /// Why the value is invalid, in Go's words.
    pub fn read(self, text: &str) -> Result<String, String> {
        let fault = |function: &str, why: &str| Err(format!("strconv.{function}: parsing {text:?}: {why}"));
        match self {
            Self::Bool => match truth(text) {
                Some(truth) => Ok(truth.to_string()),
                None => fault("ParseBool", "invalid syntax"),
            },
            Self::Int(bits) => match integer(text) {
                Ok(n) if bits == 32 && i32::try_from(n).is_err() => fault("ParseInt", "value out of range"),
                Ok(n) => {
                    i64::try_from(n).map_or_else(|_| fault("ParseInt", "value out of range"), |n| Ok(n.to_string()))
                }
                Err(why) => fault("ParseInt", why),
            },
            Self::Uint => match integer(text).map(u64::try_from) {
                Ok(Ok(n)) => Ok(n.to_string()),
                Ok(Err(_)) => fault("ParseUint", "invalid syntax"),
                Err(why) => fault("ParseUint", why),
            },
            Self::Float => match text.parse::<f64>() {
                Ok(n) => Ok(n.to_string()),
                Err(_) => fault("ParseFloat", "invalid syntax"),
            },
            Self::Duration => match kelson_meta::parse_nanos(text) {
                Ok(_) => Ok(text.to_owned()),
                Err(_) => Err(format!("time: invalid duration {text:?}")),
            },
            Self::Ip if text.is_empty() || text.trim().parse::<IpAddr>().is_ok() => Ok(text.trim().to_owned()),
            Self::Ip => Err(format!("failed to parse IP: {text:?}")),
            Self::Version | Self::Text | Self::List => Ok(text.to_owned()),
        }
    }
}

/// Parses Go's booleans.
pub fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses an integer in Go's formats: decimal, `0x`, `0o` or a plain `0` before octal digits, `0b`, with `_` between
/// digits that follow a prefix.
fn integer(text: &str) -> Result<i128, &'static str> {
    const WRONG: &str = "invalid syntax";
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, rest) = match lower.as_str() {
        d if d.starts_with("0x") => (16, &d[2..]),
        d if d.starts_with("0b") => (2, &d[2..]),
        d if d.starts_with("0o") => (8, &d[2..]),
        d if d.len() > 1 && d.starts_with('0') => (8, &d[1..]),
        d => (10, d),
    };
    let plain = if radix == 10 { rest.to_owned() } else { rest.replace('_', "") };
    if plain.is_empty() || plain.starts_with(['+', '-']) {
        return Err(WRONG);
    }
    match i128::from_str_radix(&plain, radix) {
        Ok(n) => Ok(sign * n),
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => Err("value out of range"),
        Err(_) => Err(WRONG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_what_go_says_of_others() {
        let parse = |function: &str, text: &str, why: &str| Err(format!("strconv.{function}: parsing {text:?}: {why}"));
        let ok = |text: &str| Ok(text.to_owned());
        let rows = [
            ("bool", "T", ok("true")),
            ("bool", "0", ok("false")),
            ("bool", "yes", parse("ParseBool", "yes", "invalid syntax")),
            ("bool", "", parse("ParseBool", "", "invalid syntax")),
            ("int", "0x10", ok("16")),
            ("int", "010", ok("8")),
            ("int", "-7", ok("-7")),
            ("int", "0", ok("0")),
            ("int", "1_000", parse("ParseInt", "1_000", "invalid syntax")),
            ("int", "0b1_01", ok("5")),
            ("int", "--7", parse("ParseInt", "--7", "invalid syntax")),
            ("int", "99999999999999999999", parse("ParseInt", "99999999999999999999", "value out of range")),
            ("int32", "2147483648", parse("ParseInt", "2147483648", "value out of range")),
            ("Level", "10", ok("10")),
            ("Level", "x", parse("ParseUint", "x", "invalid syntax")),
            ("uint", "-1", parse("ParseUint", "-1", "invalid syntax")),
            ("float32", "0.5", ok("0.5")),
            ("float32", "half", parse("ParseFloat", "half", "invalid syntax")),
            ("duration", "1h30m", ok("1h30m")),
            ("duration", "5", Err("time: invalid duration \"5\"".to_owned())),
            ("ip", " ::1 ", ok("::1")),
            ("ip", "host", Err("failed to parse IP: \"host\"".to_owned())),
            ("string", "", ok("")),
            ("quantity", "1Mi", ok("1Mi")),
            ("strings", "a,b", ok("a,b")),
        ];
        for (kind, text, want) in rows {
            assert_eq!(Kind::of(kind).read(text), want, "{kind} {text:?}");
        }
        for kind in ["stringToString", "mapStringBool", "colonSeparatedMultimapStringString", "mapStringStringNoSplit"]
        {
            assert_eq!(Kind::of(kind), Kind::List, "{kind}");
        }
        assert_eq!((Kind::of("bool").alone(), Kind::of("string").alone()), (Some("true"), None));
    }
}
