//! JSON as types. All readers of typed objects decode from a string: with bytes as a second source, serde's code for each
//! type would be in the program twice.
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Error, Value};

/// Reads `json` as a type. The bytes are checked for UTF-8 once, not string by string.
///
/// # Errors
/// For bytes that are not UTF-8 or not JSON, and for what the type does not accept.
pub fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Error> {
    serde_json::from_str(utf8(json)?)
}

fn utf8(json: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(json).map_err(|error| {
        // JSON's own error has the line and the column.
        serde_json::from_slice::<Value>(json).err().unwrap_or_else(|| Error::custom(error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_are_an_error_with_a_position() {
        assert_eq!(from_json::<Vec<String>>(br#"["a"]"#).unwrap(), ["a"]);
        let error = from_json::<Vec<String>>(b"[\n\"\xff\"]").unwrap_err();
        assert!(error.is_syntax() && error.line() == 2, "{error}");
        let error = from_json::<Vec<String>>(b"[1]").unwrap_err();
        assert!(error.is_data(), "{error}");
    }
}
