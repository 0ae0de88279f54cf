//! Removes secrets from strings: known values, and values that look like secrets. Pure.
use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

/// Put in a secret's place.
pub const MASK: &str = "(hidden)";
/// A shorter value occurs by chance in too much text; fields of Secrets and of containers are left out whatever they hold.
const KNOWN_MIN: usize = 6;
/// A limit for the compiled form of all known values.
const COMPILED_BYTES_MAX: usize = 256 << 20;
/// The number of known values in one expression.
const KNOWN_AT_ONCE: usize = 2000;
/// Fields of objects that are left out: in annotations there may be a copy of anything, as `kubectl apply` makes.
const HIDDEN_FIELDS: [&str; 11] = [
    "annotations",
    "managedFields",
    "args",
    "command",
    "data",
    "stringData",
    "binaryData",
    "httpHeaders",
    "options",
    "parameters",
    "volumeAttributes",
];
/// Fields that are shown whatever their parent is: environment variables keep their names.
const SHOWN_OF_ENV: &str = "name";

/// Removes secrets from strings.
pub struct Redactor {
    known: Vec<Regex>,
    shapes: Vec<(Regex, &'static str)>,
}

impl Redactor {
    /// For these values; those that are too short, or are only a word of configuration, are left out.
    ///
    /// # Errors
    /// There are too many of them.
    pub fn new(values: impl IntoIterator<Item = String>) -> Result<Self, regex::Error> {
        let lines: BTreeSet<String> = values.into_iter().flat_map(|value| parts(&value)).collect();
        // The longest first: a value may be the beginning of another one.
        let mut lines: Vec<String> = lines.into_iter().collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.len()));
        let compiled = lines.chunks(KNOWN_AT_ONCE).map(|chunk| {
            let all: Vec<String> = chunk.iter().map(|line| regex::escape(line)).collect();
            RegexBuilder::new(&all.join("|")).size_limit(COMPILED_BYTES_MAX).build()
        });
        let shape = |pattern: &str, to: &'static str| -> Result<(Regex, &'static str), regex::Error> {
            Ok((RegexBuilder::new(pattern).build()?, to))
        };
        let shapes = vec![
            shape(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)", MASK)?,
            // JSON web tokens.
            shape(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*", MASK)?,
            // Bootstrap tokens.
            shape(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b", MASK)?,
            shape(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}", "$1 (hidden)")?,
            // Users in URLs.
            shape(r"://[^/\s:@]+:[^/\s@]+@", "://(hidden)@")?,
            shape(
                r#"(?i)([A-Za-z0-9_.-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|credential|client-key-data|private[_-]?key)[A-Za-z0-9_.-]*["']?\s*[=:]\s*["']?)[^\s"',;&}]{4,}"#,
                "${1}(hidden)",
            )?,
        ];
        Ok(Self { known: compiled.collect::<Result<_, _>>()?, shapes })
    }

    /// Returns the string without secrets.
    pub fn text(&self, text: &str) -> String {
        let mut text = without_end_of_key(text);
        for known in &self.known {
            text = known.replace_all(&text, MASK).into_owned();
        }
        for (shape, to) in &self.shapes {
            text = shape.replace_all(&text, *to).into_owned();
        }
        text
    }
}

/// A log that was cut may begin within a private key.
fn without_end_of_key(text: &str) -> String {
    let end = text.find("-----END ").filter(|end| text.find("-----BEGIN ").is_none_or(|begin| begin > *end));
    let key = end.and_then(|end| {
        let line = &text[end..];
        line.lines().next().filter(|line| line.contains("PRIVATE KEY-----")).map(|line| end + line.len())
    });
    key.map_or_else(|| text.to_owned(), |end| format!("{MASK}{}", &text[end..]))
}

/// Returns the strings to search for a value: each of its lines, since logs break values at line ends.
fn parts(value: &str) -> Vec<String> {
    let lines = value.split(['\n', '\r']).map(str::trim).filter(|line| line.len() >= KNOWN_MIN && !is_plain(line));
    lines.map(str::to_owned).collect()
}

/// Whether a value is a word that configuration is full of. Hiding it would hide the bundle's content, and shows nothing.
fn is_plain(line: &str) -> bool {
    let word = line.trim_matches('"');
    const WORDS: [&str; 8] =
        ["default", "signing", "kubelet", "cluster", "authentication", "kube-system", "kube-public", "system:masters"];
    word == "true" || word == "false" || WORDS.contains(&word) || word.starts_with("-----")
}

/// An object, or a list of them, without what may hold secrets: contents of Secrets and ConfigMaps, values of environment variables,
/// command lines, annotations. Names and all else stay.
pub fn object(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                match name.as_str() {
                    "env" => environment(field),
                    // A field of that name that is one word is something else, such as an event's.
                    name if HIDDEN_FIELDS.contains(&name) && !field.is_string() => *field = Value::from(MASK),
                    _ => object(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(object),
        _ => {}
    }
}

fn environment(variables: &mut Value) {
    for variable in variables.as_array_mut().into_iter().flatten() {
        let Some(fields) = variable.as_object_mut() else { continue };
        for (name, field) in fields.iter_mut().filter(|(name, _)| *name != SHOWN_OF_ENV) {
            match name.as_str() {
                // Which object it comes from, by name and key.
                "valueFrom" => object(field),
                _ => *field = Value::from(MASK),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn known_values_and_what_looks_like_a_secret_are_hidden() {
        let redactor = Redactor::new([
            "hunter2!".to_owned(),
            "two lines\nof a value".to_owned(),
            "abc".to_owned(),
            "default".to_owned(),
        ])
        .unwrap();
        let rows = [
            ("login with hunter2! failed", "login with (hidden) failed"),
            ("two lines, of a value", "(hidden), (hidden)"),
            ("abc in default stays", "abc in default stays"),
            ("token abcdef.0123456789abcdef expired", "token (hidden) expired"),
            ("Authorization: Bearer x1y2z3.4", "Authorization: Bearer (hidden)"),
            ("a eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln b", "a (hidden) b"),
            ("GET https://me:pass@registry/v2", "GET https://(hidden)@registry/v2"),
            ("DB_PASSWORD=abcd1234 x", "DB_PASSWORD=(hidden) x"),
            (r#"{"apiKey": "abcd1234", "n": 1}"#, r#"{"apiKey": "(hidden)", "n": 1}"#),
            ("-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nrest", "(hidden)\nrest"),
            ("MHc\n-----END EC PRIVATE KEY-----\nrest", "(hidden)\nrest"),
            ("cut: -----BEGIN PRIVATE KEY-----\nMHc", "cut: (hidden)"),
            ("apiserver_request_total{code=\"200\"} 7", "apiserver_request_total{code=\"200\"} 7"),
        ];
        for (text, want) in rows {
            assert_eq!(redactor.text(text), want, "{text}");
        }
    }

    #[test]
    fn objects_keep_their_names_and_states_alone() {
        let mut pod = json!({
            "kind": "Pod", "metadata": {"name": "p", "annotations": {"a": "s3cret"}, "managedFields": [1]},
            "spec": {"containers": [{
                "name": "c", "image": "i", "command": ["sh", "-c", "login s3cret"], "args": ["s3cret"],
                "env": [{"name": "PASSWORD", "value": "s3cret"},
                        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            }]},
            "status": {"phase": "Running"},
        });
        object(&mut pod);
        assert!(!pod.to_string().contains("s3cret"), "{pod}");
        let container = &pod["spec"]["containers"][0];
        assert_eq!((&container["image"], &container["env"][0]["name"]), (&json!("i"), &json!("PASSWORD")));
        assert_eq!(container["env"][1]["valueFrom"]["secretKeyRef"]["key"], "k");
        assert_eq!((&pod["status"]["phase"], &pod["metadata"]["name"]), (&json!("Running"), &json!("p")));
        let mut event = json!({"kind": "Event", "message": "m", "reason": "Failed", "command": "kubectl"});
        object(&mut event);
        assert_eq!(event["command"], "kubectl");
    }

    #[test]
    fn many_values_are_searched_for() {
        let values: Vec<String> = (0..5000).map(|n| format!("value-{n:06}-of-a-secret")).collect();
        let redactor = Redactor::new(values.clone()).unwrap();
        let text = redactor.text(&values.join(" "));
        assert!(!text.contains("value-"), "{}", &text[..200]);
    }
}
