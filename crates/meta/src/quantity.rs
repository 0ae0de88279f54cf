//! `resource.Quantity`: fixed-point numbers with unit suffixes. A value is an exact count of 1e-9 units (nano), which
//! is upstream's finest scale. The canonical form is that of apimachinery `api/resource`.
use std::cmp::Ordering;
use std::fmt;

/// The suffix family of a quantity, which arithmetic and printing keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuantityFormat {
    /// Decimal suffixes: `m`, none, `k`, `M` and larger.
    #[default]
    DecimalSi,
    /// Binary suffixes: `Ki`, `Mi` and larger.
    BinarySi,
    /// Decimal exponents: `e3`, `E6` and others.
    DecimalExponent,
}

/// A resource quantity, such as `500m` CPU or `2Gi` memory. It is an exact fixed-point number of nanos with the suffix
/// family of its source, so that it prints in canonical form as upstream does. Arithmetic saturates. Equality and
/// order compare values and ignore the suffix family.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: QuantityFormat,
}

/// The error of parsing a quantity, with upstream's message.
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
/// The limit at which values saturate (upstream caps at the largest int64 of whole units).
const MAX_NANOS: i128 = (i64::MAX as i128) * NANO;

impl Quantity {
    /// Creates a quantity from an integer in the resource's unit: bytes, CPUs or items.
    pub fn from_i64(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, format: QuantityFormat::DecimalSi }
    }
    /// Creates a quantity from thousandths, for example of a CPU.
    pub fn from_milli(milli: i64) -> Self {
        Self { nanos: i128::from(milli) * (NANO / 1000), format: QuantityFormat::DecimalSi }
    }
    /// Creates a quantity of whole units with binary suffixes, for example bytes of memory.
    pub fn binary(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, format: QuantityFormat::BinarySi }
    }
    /// Returns the value in whole units, rounded away from zero, like upstream's `Value()`.
    pub fn value(self) -> i64 {
        ceil_div(self.nanos, NANO)
    }
    /// Returns the value in thousandths, rounded away from zero, like upstream's `MilliValue()`.
    pub fn milli_value(self) -> i64 {
        ceil_div(self.nanos, NANO / 1000)
    }
    /// Returns whether the value is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }
    /// Returns the sign as -1, 0 or 1.
    pub fn signum(self) -> i32 {
        self.nanos.signum() as i32
    }
    /// Returns the sum in the format of this quantity, or of the other one if this quantity is zero.
    pub fn plus(self, o: Self) -> Self {
        let format = if self.nanos == 0 { o.format } else { self.format };
        Self { nanos: (self.nanos + o.nanos).clamp(-MAX_NANOS, MAX_NANOS), format }
    }
    /// Returns the difference in the format of this quantity.
    pub fn minus(self, o: Self) -> Self {
        let format = if self.nanos == 0 { o.format } else { self.format };
        Self { nanos: (self.nanos - o.nanos).clamp(-MAX_NANOS, MAX_NANOS), format }
    }
    /// Returns the suffix family.
    pub fn format(self) -> QuantityFormat {
        self.format
    }
    /// Returns the exact value in units of 1e-9.
    pub fn nanos(self) -> i128 {
        self.nanos
    }
    /// Returns what upstream prints for a string: its canonical form, or the string itself if upstream's parser keeps
    /// it.
    pub fn canonical(text: &str) -> Result<String, QuantityError> {
        let parsed: Self = text.parse()?;
        Ok(if stays_as_given(text) { text.to_owned() } else { parsed.to_string() })
    }
}

/// Returns whether upstream's fast parser keeps the string: it has no more zeros than a suffix could replace, apart
/// from the sign and leading zeros.
fn stays_as_given(text: &str) -> bool {
    /// The number of digits that always fit in 64 bits, without and with a binary suffix.
    const DIGITS: (usize, usize) = (18, 14);
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start_matches('0');
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (int, frac) = number.split_once('.').unwrap_or((number, ""));
    match suffix_scale(suffix) {
        Ok((_, Scale::Ten(exponent))) => {
            let digits = int.len() + frac.len();
            let scale = i64::from(exponent) - i64::try_from(frac.len()).unwrap_or(i64::MAX);
            !int.is_empty()
                && digits <= DIGITS.0
                && scale >= -9
                && scale % 3 == 0
                && !number.replace('.', "").ends_with("000")
        }
        Ok((_, Scale::Two(bits))) => {
            let value: i64 = int.parse().unwrap_or(0);
            let room = DIGITS.1.checked_sub(bits as usize * 3 / 10);
            frac.is_empty() && room.is_some_and(|room| int.len() <= room) && value & 7 != 0
        }
        Err(_) => false,
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

/// A multiplier: a power of ten or a power of two.
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
            (DecimalExponent, Scale::Ten(exp))
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

/// Returns `int.frac` times the scale in nanos, rounded up and saturated. It is exact for any number of digits, so
/// that a printed quantity parses to the same value.
fn scaled(int: &str, frac: &str, scale: Scale) -> i128 {
    let (n, lost) = match scale {
        Scale::Ten(exponent) => by_ten(int, frac, exponent),
        Scale::Two(bits) => by_two(int, frac, NANO << bits),
    };
    n.saturating_add(i128::from(lost)).min(MAX_NANOS)
}

/// The number of digits of the largest number of nanos.
const DIGITS_MAX: i64 = 28;

/// Returns the whole nanos, and whether a fraction remains. Only the decimal point moves.
fn by_ten(int: &str, frac: &str, exponent: i32) -> (i128, bool) {
    let digits = || int.bytes().chain(frac.bytes()).map(|c| i128::from(c - b'0'));
    let Some(zeros) = digits().position(|d| d != 0) else { return (0, false) };
    let length = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let whole = length(int.len()) - length(zeros) + 9 + i64::from(exponent);
    if whole > DIGITS_MAX {
        return (MAX_NANOS, false);
    }
    let whole = usize::try_from(whole).unwrap_or(0);
    let padded = digits().skip(zeros).chain(std::iter::repeat(0));
    let n = padded.take(whole).fold(0, |n, d| n * 10 + d);
    (n, digits().skip(zeros + whole).any(|d| d != 0))
}

/// Returns the number times `unit` nanos, and whether a fraction remains. The fraction is summed from its last digit,
/// so that no intermediate value exceeds ten units.
fn by_two(int: &str, frac: &str, unit: i128) -> (i128, bool) {
    let int = int.trim_start_matches('0');
    if int.len() as i64 > DIGITS_MAX {
        return (MAX_NANOS, false);
    }
    let whole = int.bytes().fold(0, |n: i128, c| n * 10 + i128::from(c - b'0'));
    let Some(whole) = whole.checked_mul(unit) else { return (MAX_NANOS, false) };
    let mut lost = false;
    let part = frac.bytes().rev().fold(0, |behind: i128, c| {
        let sum = i128::from(c - b'0') * unit + behind;
        lost |= sum % 10 != 0;
        sum / 10
    });
    (whole.saturating_add(part), lost)
}

impl fmt::Display for Quantity {
    /// Formats the canonical form: no fraction, and the largest suffix without loss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Binary quantities below 1024 in magnitude, or with a fraction, print as decimal ones.
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
    /// Decodes a string or a JSON number, like the API.
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
    fn some_texts_stay_as_they_are() {
        for text in ["+1", "01", "1.500", "1e30", "1E3", "+1Ki", "-0020m", "12Ki"] {
            assert_eq!(Quantity::canonical(text).as_deref(), Ok(text));
        }
        for (given, canonical) in
            [("+1000", "1k"), ("0.500", "500m"), ("1.5", "1500m"), ("+8Ki", "8Ki"), ("00", "0"), ("1e4", "10e3")]
        {
            assert_eq!(Quantity::canonical(given).as_deref(), Ok(canonical));
        }
    }

    #[test]
    fn any_number_of_digits_is_exact() {
        for (given, canonical) in [
            // A large binary quantity with a part of a nano has 28 digits, and parses to its exact value.
            (".92220368540070075807Ei", "1063228460526155278389475141n"),
            ("1063228460526155278389475141n", "1063228460526155278389475141n"),
            ("0.1234567890123456789012345678901234567890Ei", "142335986942043633765524428n"),
            ("100000000000000000000000000000000e-30", "100"),
            ("0.000000000000000000000000000000000000000000000000001e51", "1"),
            ("1e-2000000000", "1e-9"),
            ("9223372036854775807Ei", "9223372036854775807"),
            ("10000000000000000000000000000", "9223372036854775807"),
            ("1e2000000000", "9223372036854775807"),
            ("0.00e2000000000", "0"),
        ] {
            let quantity = given.parse::<Quantity>().unwrap();
            let printed = quantity.to_string();
            assert_eq!(printed, canonical, "{given}");
            assert_eq!(printed.parse::<Quantity>().unwrap(), quantity, "{given}");
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
