//! JSON as types. All readers of typed objects decode from a string: with bytes as a second source, serde's code for each
//! type would be in the program twice.
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Error, Value};

/// Reads `json` as a type. The bytes are checked for UTF-8 once, not string by string.
///
/// # Errors
/// For bytes that are not UTF-8 or not JSON, and for what the type does not accept.
pub fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Error> {
    serde_json::from_str(utf8(json)?)
}

/// Reads a tree as a type, through a string: where an object's type is read from strings too, this is smaller than serde's
/// code for trees, and it is for the places where speed does not matter.
///
/// # Errors
/// For what the type does not accept.
pub fn from_tree<T: DeserializeOwned>(tree: &Value) -> Result<T, Error> {
    let text = serde_json::to_string(tree)?;
    serde_json::from_str(&text).map_err(|error| {
        // The position is that in a string that the user does not know.
        let position = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        Error::custom(message.strip_suffix(&position).unwrap_or(&message))
    })
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

    #[test]
    fn an_error_of_a_tree_has_no_position() {
        let tree = serde_json::json!([1]);
        assert_eq!(from_tree::<Vec<u8>>(&tree).unwrap(), [1]);
        let error = from_tree::<Vec<String>>(&tree).unwrap_err();
        assert_eq!(error.to_string(), "invalid type: integer `1`, expected a string");
    }
}
