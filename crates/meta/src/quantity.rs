//! `resource.Quantity`: fixed-point numbers with unit suffixes. Held as an exact count of 1e-9 units (nano), upstream's
//! finest scale; canonical form as apimachinery `api/resource` prints it.
use std::cmp::Ordering;
use std::fmt;

/// Suffix family of a quantity, kept through arithmetic and printing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuantityFormat {
    /// `m`, none, `k`, `M` …
    #[default]
    DecimalSi,
    /// `Ki`, `Mi` …
    BinarySi,
    /// `e3`, `E6` …
    DecimalExponent,
}

/// A quantity. Equality and order compare values, not formats.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: QuantityFormat,
}

/// Why a string is no quantity; the text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError(&'static str);

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
impl std::error::Error for QuantityError {}

const NANO: i128 = 1_000_000_000;
const FORMAT_WRONG: QuantityError =
    QuantityError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'");
const SUFFIX_WRONG: QuantityError = QuantityError("unable to parse quantity's suffix");
/// Values saturate here (upstream caps at the largest int64 of whole units).
const MAX_NANOS: i128 = (i64::MAX as i128) * NANO;

impl Quantity {
    /// A whole number of the resource's unit: bytes, cores, pieces.
    pub fn from_i64(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, format: QuantityFormat::DecimalSi }
    }
    /// Thousandths, e.g. of a CPU.
    pub fn from_milli(milli: i64) -> Self {
        Self { nanos: i128::from(milli) * (NANO / 1000), format: QuantityFormat::DecimalSi }
    }
    /// Whole units printed with binary suffixes, e.g. bytes of memory.
    pub fn binary(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, format: QuantityFormat::BinarySi }
    }
    /// The value in whole units, rounded up (away from zero), as upstream's `Value()`.
    pub fn value(self) -> i64 {
        ceil_div(self.nanos, NANO)
    }
    /// The value in thousandths, rounded up, as upstream's `MilliValue()`.
    pub fn milli_value(self) -> i64 {
        ceil_div(self.nanos, NANO / 1000)
    }
    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }
    /// -1, 0 or 1.
    pub fn signum(self) -> i32 {
        self.nanos.signum() as i32
    }
    /// Sum; keeps this quantity's format (the other's when this is zero).
    pub fn plus(self, o: Self) -> Self {
        let format = if self.nanos == 0 { o.format } else { self.format };
        Self { nanos: (self.nanos + o.nanos).clamp(-MAX_NANOS, MAX_NANOS), format }
    }
    /// Difference; keeps this quantity's format.
    pub fn minus(self, o: Self) -> Self {
        let format = if self.nanos == 0 { o.format } else { self.format };
        Self { nanos: (self.nanos - o.nanos).clamp(-MAX_NANOS, MAX_NANOS), format }
    }
    /// The suffix family.
    pub fn format(self) -> QuantityFormat {
        self.format
    }
    /// The exact value in 1e-9 units.
    pub fn nanos(self) -> i128 {
        self.nanos
    }
}

fn ceil_div(n: i128, d: i128) -> i64 {
    let q = n / d;
    let q = if n % d != 0 { q + n.signum() } else { q };
    q.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(s: &str) -> Result<Self, QuantityError> {
        if s.is_empty() {
            return Err(FORMAT_WRONG);
        }
        let (negative, rest) = match s.as_bytes()[0] {
            b'-' => (true, &s[1..]),
            b'+' => (false, &s[1..]),
            _ => (false, s),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (int, frac) = number.split_once('.').unwrap_or((number, ""));
        if frac.contains('.') || (int.is_empty() && frac.is_empty()) {
            return Err(FORMAT_WRONG);
        }
        let (format, scale) = suffix_scale(suffix)?;
        let magnitude = scaled(int, frac, scale);
        Ok(Self { nanos: if negative { -magnitude } else { magnitude }, format })
    }
}

/// A multiplier: power of ten or power of two.
enum Scale {
    Ten(i32),
    Two(u32),
}

fn suffix_scale(suffix: &str) -> Result<(QuantityFormat, Scale), QuantityError> {
    use QuantityFormat::{BinarySi, DecimalExponent, DecimalSi};
    Ok(match suffix {
        "n" => (DecimalSi, Scale::Ten(-9)),
        "u" => (DecimalSi, Scale::Ten(-6)),
        "m" => (DecimalSi, Scale::Ten(-3)),
        "" => (DecimalSi, Scale::Ten(0)),
        "k" => (DecimalSi, Scale::Ten(3)),
        "M" => (DecimalSi, Scale::Ten(6)),
        "G" => (DecimalSi, Scale::Ten(9)),
        "T" => (DecimalSi, Scale::Ten(12)),
        "P" => (DecimalSi, Scale::Ten(15)),
        "E" => (DecimalSi, Scale::Ten(18)),
        "Ki" => (BinarySi, Scale::Two(10)),
        "Mi" => (BinarySi, Scale::Two(20)),
        "Gi" => (BinarySi, Scale::Two(30)),
        "Ti" => (BinarySi, Scale::Two(40)),
        "Pi" => (BinarySi, Scale::Two(50)),
        "Ei" => (BinarySi, Scale::Two(60)),
        s if s.starts_with(['e', 'E']) => {
            let digits = &s[1..];
            let exp: i32 = digits.parse().map_err(|_| if digits.is_empty() { SUFFIX_WRONG } else { FORMAT_WRONG })?;
            (DecimalExponent, Scale::Ten(exp.clamp(-40, 40)))
        }
        _ => {
            return Err(if suffix.bytes().all(|c| b"eEinumkKMGTP+-0123456789".contains(&c)) {
                SUFFIX_WRONG
            } else {
                FORMAT_WRONG
            });
        }
    })
}

/// `int.frac` times the scale, in nanos, rounded up, saturating.
fn scaled(int: &str, frac: &str, scale: Scale) -> i128 {
    // 27 significant digits hold any value below the cap; what lies behind only decides rounding up.
    const DIGITS_MAX: usize = 27;
    let int = int.trim_start_matches('0');
    if int.len() > DIGITS_MAX {
        return MAX_NANOS;
    }
    let frac_kept = &frac[..frac.len().min(DIGITS_MAX - int.len())];
    let sticky = frac[frac_kept.len()..].bytes().any(|c| c != b'0');
    let digits: i128 = int.bytes().chain(frac_kept.bytes()).fold(0, |n, c| n * 10 + i128::from(c - b'0'));
    let mut exp = 9 - frac_kept.len() as i32;
    let mut n = digits;
    match scale {
        Scale::Ten(e) => exp += e,
        Scale::Two(bits) => match n.checked_mul(1i128 << bits) {
            Some(v) => n = v,
            None => return MAX_NANOS,
        },
    }
    if exp >= 0 {
        for _ in 0..exp {
            match n.checked_mul(10) {
                Some(v) => n = v,
                None => return MAX_NANOS,
            }
        }
        n += i128::from(sticky);
    } else {
        let mut lost = sticky;
        for _ in 0..-exp {
            lost |= n % 10 != 0;
            n /= 10;
            if n == 0 && !lost {
                break;
            }
        }
        n += i128::from(lost);
    }
    n.min(MAX_NANOS)
}

impl fmt::Display for Quantity {
    /// The canonical form: no fraction, the largest suffix that loses nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Below 1024 in magnitude, or with a fraction, binary units print as decimal ones.
        let binary =
            self.format == QuantityFormat::BinarySi && self.nanos % NANO == 0 && (self.nanos / NANO).abs() >= 1024;
        if binary {
            let mut n = self.nanos / NANO;
            let mut i = 0;
            while n % 1024 == 0 && i < 6 {
                n /= 1024;
                i += 1;
            }
            return write!(f, "{n}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][i]);
        }
        let mut n = self.nanos;
        let mut exp = -9i32;
        while n % 1000 == 0 && exp < 18 {
            n /= 1000;
            exp += 3;
        }
        if self.format == QuantityFormat::DecimalExponent {
            return if exp == 0 { write!(f, "{n}") } else { write!(f, "{n}e{exp}") };
        }
        let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][((exp + 9) / 3) as usize];
        write!(f, "{n}{suffix}")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, o: &Self) -> bool {
        self.nanos == o.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, o: &Self) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Quantity {
    fn cmp(&self, o: &Self) -> Ordering {
        self.nanos.cmp(&o.nanos)
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Quantity {
    /// Reads a string or a bare JSON number, as the API does.
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(d)? {
            serde_json::Value::String(s) => s,
            serde_json::Value::Number(n) => n.to_string(),
            _ => return Err(serde::de::Error::custom(FORMAT_WRONG)),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        for (given, canonical) in [
            ("0", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Ki", "1Mi"),
            ("1000", "1k"),
            ("100m", "100m"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e6", "12e6"),
            ("0.1Gi", "107374182400m"),
            ("2Gi", "2Gi"),
            ("-1", "-1"),
            ("+5", "5"),
            ("1000Ki", "1000Ki"),
            ("500Ki", "500Ki"),
            ("0.0001m", "100n"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("512", "512"),
            ("128974848", "128974848"),
            ("129e6", "129e6"),
            ("129M", "129M"),
            ("123Mi", "123Mi"),
        ] {
            assert_eq!(given.parse::<Quantity>().unwrap().to_string(), canonical, "{given}");
        }
        for bad in ["", "a", "1.2.3", "1x", "1KiB", ".", "e3", "1e", "--1"] {
            assert!(bad.parse::<Quantity>().is_err(), "{bad}");
        }
    }

    #[test]
    fn values_round_up() {
        let q: Quantity = "1.5".parse().unwrap();
        assert_eq!((q.value(), q.milli_value()), (2, 1500));
        let q: Quantity = "100m".parse().unwrap();
        assert_eq!((q.value(), q.milli_value()), (1, 100));
        let max: Quantity = "9999999999E".parse().unwrap();
        assert_eq!(max.value(), i64::MAX);
        assert!("1".parse::<Quantity>().unwrap() > q);
        assert_eq!("1Gi".parse::<Quantity>().unwrap().minus("1Mi".parse().unwrap()).to_string(), "1023Mi");
    }
}
