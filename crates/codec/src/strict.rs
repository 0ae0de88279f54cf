//! The strict check of configuration documents: whether a document has only the fields of its kind, at every level. Otherwise a
//! misspelt field would be ignored, and the document would have another meaning.
use serde_json::Value;

use crate::document::go_kind;
use crate::limits::STRICT_ERRORS_MAX;

/// The fields of an object.
pub type Fields = &'static [(&'static str, Shape)];

/// The expected value in a document. Null counts as absent everywhere.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A value that is a string.
    Text,
    /// `true` or `false`.
    Bool,
    /// A value that is a number.
    Number,
    /// A map with arbitrary keys.
    Names(&'static Shape),
    /// A list with elements of this shape.
    List(&'static Shape),
    /// An object with only these fields.
    Object(Fields),
    /// Any value. It is checked elsewhere.
    Any,
}

/// Checks that a document has no other fields, and no value of another type.
///
/// # Errors
/// Returns the message of upstream's strict decoder.
pub fn check(document: &Value, fields: Fields) -> Result<(), String> {
    let mut found = StrictCheck::default();
    found.object(document, fields, "");
    match (found.misfit, found.unknown.is_empty()) {
        (Some(misfit), _) => Err(misfit),
        (None, false) => Err(format!("strict decoding error: {}", found.unknown.join(", "))),
        (None, true) => Ok(()),
    }
}

/// Finds the fields of a document that its kind does not have. The findings read `unknown field "a.b"`.
pub fn unknown(document: &Value, fields: Fields) -> Vec<String> {
    let mut found = StrictCheck::default();
    found.object(document, fields, "");
    found.unknown
}

/// Returns copies of the document, each with an unknown field added to another of its objects, and the path of that field. This is for
/// the tests of readers of such documents.
pub fn misspelt(document: &Value) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    let mut paths = vec![String::new()];
    while let Some(path) = paths.pop() {
        match document.pointer(&path) {
            Some(Value::Object(object)) => {
                let mut changed = document.clone();
                if let Some(Value::Object(object)) = changed.pointer_mut(&path) {
                    object.insert("misspelt".to_owned(), "x".into());
                }
                all.push((format!("{path}/misspelt"), changed));
                paths.extend(object.keys().map(|key| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))));
            }
            Some(Value::Array(items)) => paths.extend((0..items.len()).map(|i| format!("{path}/{i}"))),
            _ => {}
        }
    }
    all
}

#[derive(Default)]
struct StrictCheck {
    unknown: Vec<String>,
    misfit: Option<String>,
}

impl StrictCheck {
    fn misfit(&mut self, value: &Value, at: &str, wanted: &str) {
        let found = go_kind(value, "null");
        let of = if at.is_empty() { String::new() } else { format!("struct field {at} of type ") };
        self.misfit.get_or_insert_with(|| format!("json: cannot unmarshal {found} into Go {of}{wanted}"));
    }

    fn object(&mut self, value: &Value, fields: Fields, at: &str) {
        let object = match value {
            Value::Null => return,
            Value::Object(object) => object,
            other => return self.misfit(other, at, "struct"),
        };
        for (name, value) in object {
            let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            match fields.iter().find(|(known, _)| known == name) {
                Some((_, shape)) => self.value(value, shape, &path),
                None if self.unknown.len() < STRICT_ERRORS_MAX => self.unknown.push(format!("unknown field {path:?}")),
                None => {}
            }
        }
    }

    fn value(&mut self, value: &Value, shape: &Shape, at: &str) {
        match (shape, value) {
            (Shape::Any, _)
            | (_, Value::Null)
            | (Shape::Text, Value::String(_))
            | (Shape::Bool, Value::Bool(_))
            | (Shape::Number, Value::Number(_)) => {}
            (Shape::Text, other) => self.misfit(other, at, "string"),
            (Shape::Bool, other) => self.misfit(other, at, "bool"),
            (Shape::Number, other) => self.misfit(other, at, "int"),
            (Shape::Object(fields), value) => self.object(value, fields, at),
            (Shape::List(of), Value::Array(items)) => {
                for (i, item) in items.iter().enumerate() {
                    self.value(item, of, &format!("{at}[{i}]"));
                }
            }
            (Shape::List(_), other) => self.misfit(other, at, "slice"),
            (Shape::Names(of), Value::Object(object)) => {
                for (name, value) in object {
                    self.value(value, of, &format!("{at}.{name}"));
                }
            }
            (Shape::Names(_), other) => self.misfit(other, at, "map"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELDS: Fields = &[
        ("a", Shape::Object(&[("b", Shape::Text)])),
        ("list", Shape::List(&Shape::Object(&[("n", Shape::Number), ("on", Shape::Bool)]))),
        ("names", Shape::Names(&Shape::Bool)),
        ("any", Shape::Any),
    ];

    #[test]
    fn every_level_is_checked() {
        let good =
            json!({"a": {"b": "x"}, "list": [{"n": 1, "on": true}, {"n": null}], "names": {"x": true}, "any": [1]});
        assert_eq!(check(&good, FIELDS), Ok(()));
        assert_eq!((check(&Value::Null, FIELDS), check(&json!({"a": null}), FIELDS)), (Ok(()), Ok(())));
        for (document, wanted) in [
            (json!({"A": {}}), "strict decoding error: unknown field \"A\""),
            (json!({"a": {"B": "x"}}), "strict decoding error: unknown field \"a.B\""),
            (
                json!({"list": [{"n": 1}, {"m": 1}], "z": 1}),
                "strict decoding error: unknown field \"list[1].m\", unknown field \"z\"",
            ),
            (json!({"a": {"b": ["x"]}}), "json: cannot unmarshal array into Go struct field a.b of type string"),
            (json!({"a": "x"}), "json: cannot unmarshal string into Go struct field a of type struct"),
            (json!({"list": {}}), "json: cannot unmarshal object into Go struct field list of type slice"),
            (
                json!({"list": [{"on": "x"}]}),
                "json: cannot unmarshal string into Go struct field list[0].on of type bool",
            ),
            (json!({"names": {"x": 1}}), "json: cannot unmarshal number into Go struct field names.x of type bool"),
            (json!([1]), "json: cannot unmarshal array into Go struct"),
        ] {
            assert_eq!(check(&document, FIELDS), Err(wanted.to_owned()), "{document}");
        }
        let places: Vec<String> = misspelt(&good).into_iter().map(|(path, _)| path).collect();
        assert_eq!(places.len(), 5, "{places:?}");
        let found = misspelt(&good).iter().filter(|(_, changed)| !unknown(changed, FIELDS).is_empty()).count();
        assert_eq!(found, 4, "keys of a map are free, and a value of any shape has no fields");
    }
}
