//! Decoding of JSON to types. All typed objects are decoded from a string: a second source (bytes) would put serde's
//! code for each type into the program twice.
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Error, Value};

/// Decodes `json` to a type. The bytes are checked for UTF-8 once, not for each string.
///
/// # Errors
/// Fails for bytes that are not UTF-8 or not JSON, and for JSON that does not fit the type.
pub fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Error> {
    serde_json::from_str(utf8(json)?)
}

/// Decodes a tree to a type by way of a string. This is slower than serde's code for trees, but adds no code for types
/// that are also decoded from strings. Use it where speed does not matter.
///
/// # Errors
/// Fails for JSON that does not fit the type.
pub fn from_tree<T: DeserializeOwned>(tree: &Value) -> Result<T, Error> {
    let text = serde_json::to_string(tree)?;
    serde_json::from_str(&text).map_err(|error| {
        // Removes the position, because it refers to a string that the user does not see.
        let position = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        Error::custom(message.strip_suffix(&position).unwrap_or(&message))
    })
}

fn utf8(json: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(json).map_err(|error| {
        // The error of the JSON parser has the line and the column.
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

    #[test]
    fn an_error_of_a_tree_has_no_position() {
        let tree = serde_json::json!([1]);
        assert_eq!(from_tree::<Vec<u8>>(&tree).unwrap(), [1]);
        let error = from_tree::<Vec<String>>(&tree).unwrap_err();
        assert_eq!(error.to_string(), "invalid type: integer `1`, expected a string");
    }
}
