//! Strings that must not be printed: passwords and tokens. Printing, logging and encoding never show the content.
use std::fmt;

use zeroize::Zeroizing;

/// A password or token. `Debug` prints three stars, there is no `Display` and no `Serialize`; memory is erased on drop.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes over a string that must not be printed. Its memory is wiped when it is dropped.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }
    /// Returns the string, only to pass it to its recipient.
    pub fn reveal(&self) -> &str {
        &self.0
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl<'de> serde::Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        // Also reads `null`, which Go reads as the empty string.
        Ok(Self::new(Option::<String>::deserialize(d)?.unwrap_or_default()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { "***" })
    }
}

/// Returns an account name for operators: the first two characters, then stars whose number is constant.
pub fn masked(name: &str) -> String {
    match name.chars().count() {
        0 => "(empty)".to_owned(),
        1..=3 => "***".to_owned(),
        _ => format!("{}***", name.chars().take(2).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_prints() {
        let s = Secret::from("hunter2");
        assert_eq!(format!("{s:?} {:?}", Some(&s)), "*** Some(***)");
        assert_eq!((masked("AWS"), masked("oauth2"), masked("")), ("***".into(), "oa***".into(), "(empty)".into()));
    }
}
