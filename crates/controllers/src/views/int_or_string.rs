//! `util/intstr` IntOrString.
use serde::Deserialize;

/// A number or a string. The meaning of the string depends on the field: a percentage such as `25%`, or the name of a
/// container's port.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum IntOrString {
    Int(i32),
    Text(String),
}

impl IntOrString {
    /// Returns the number, or the percentage of `of`, rounded `up` or down. Any other string is 0.
    pub fn scaled(&self, of: i32, up: bool) -> i32 {
        match self {
            Self::Int(n) => *n,
            Self::Text(p) => {
                let percent: i32 = p.trim_end_matches('%').parse().unwrap_or(0);
                let product = i64::from(percent) * i64::from(of);
                let n = if up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
                i32::try_from(n).unwrap_or(i32::MAX)
            }
        }
    }
}
