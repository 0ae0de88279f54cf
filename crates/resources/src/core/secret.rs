//! Secrets: stringData, keys by type, size, immutability. Messages never contain values.
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kelson_meta::is_config_map_key;
use serde_json::{Value, json};

use super::config_map::{DATA_BYTES_MAX, check_immutable, decoded_len};
use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::options::{Options, columns, texts};
use crate::parts::{IDENTITY, Parts};
use crate::path::{Errors, Path};
use crate::strategy::Strategy;
use crate::table::{age, name};
use crate::tree::{default_zero, ensure, entries, len, set, text};

/// The strategy of secrets.
pub struct Secrets;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Type", "What the entries are for."),
        Column::text("Data", "Number of entries."),
        AGE,
    ],
    fields: texts!["type"],
    ..Options::of("", "secrets")
});

impl Strategy for Secrets {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        default_zero(obj, "type", "Opaque");
        // Write-only plain text, which is merged into data and overrides it.
        if let Some(Value::Object(plain)) = obj.as_object_mut().and_then(|o| o.remove("stringData"))
            && !plain.is_empty()
            && let Some(data) = ensure(obj, "data")
        {
            for (k, v) in plain {
                set(data, &k, STANDARD.encode(text(&v)));
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let data = Path::new("data");
        let mut total = 0;
        for (k, v) in entries(&obj["data"]) {
            e.invalid_each(&data.key(k), k, is_config_map_key(k));
            total += decoded_len(text(v));
        }
        if total > DATA_BYTES_MAX {
            e.too_long(&data, DATA_BYTES_MAX);
        }
        check_type(obj, &data, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        immutable(&new["type"], &old["type"], &Path::new("type"), e);
        check_immutable(new, old, &["data"], e);
        self.check(new, e);
    }
    fn row_parts(&self) -> Parts {
        Parts::Only(&[("metadata", IDENTITY), ("type", Parts::All), ("data", Parts::Names)])
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), obj["type"].clone(), json!(len(&obj["data"])), age(obj, now)]
    }
}

fn check_type(obj: &Value, data: &Path<'_>, e: &mut Errors) {
    let has = |k: &str| obj["data"].get(k).is_some();
    let mut must = |keys: &[&str]| {
        for k in keys.iter().filter(|k| !has(k)) {
            e.required(&data.key(k), "");
        }
    };
    match text(&obj["type"]) {
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            if text(&obj["metadata"]["annotations"][NAME]).is_empty() {
                let meta = Path::new("metadata");
                e.required(&meta.child("annotations").key(NAME), "");
            }
        }
        "kubernetes.io/dockercfg" => docker_config(obj, ".dockercfg", data, e),
        "kubernetes.io/dockerconfigjson" => docker_config(obj, ".dockerconfigjson", data, e),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => must(&["username", "password"]),
        "kubernetes.io/ssh-auth" if text(&obj["data"]["ssh-privatekey"]).is_empty() => {
            e.required(&data.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => must(&["tls.crt", "tls.key"]),
        _ => {}
    }
}

fn docker_config(obj: &Value, key: &str, data: &Path<'_>, e: &mut Errors) {
    let Some(encoded) = obj["data"].get(key) else {
        e.required(&data.key(key), "");
        return;
    };
    let decoded = STANDARD.decode(text(encoded)).unwrap_or_default();
    if let Some(why) = no_object(&decoded) {
        e.invalid(&data.key(key), "<secret contents redacted>", why);
    }
}

/// Returns why bytes are not a JSON object, with Go's message.
fn no_object(json: &[u8]) -> Option<String> {
    let found = match kelson_codec::json::decode(None, json, false) {
        Ok(decoded) => match decoded.value {
            Value::Object(_) | Value::Null => return None,
            other => kelson_codec::go_kind(&other, "null"),
        },
        Err(why) => return Some(why.to_string()),
    };
    Some(format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_data_moves() {
        let mut s = json!({"data": {"a": "eA=="}, "stringData": {"a": "y", "b": "z"}});
        Secrets.set_defaults("v1", &mut s);
        assert_eq!(s, json!({"type": "Opaque", "data": {"a": "eQ==", "b": "eg=="}}));
    }

    #[test]
    fn types_want_their_keys() {
        let check = |s: Value, want: &[&str]| {
            let mut e = Errors::new();
            Secrets.check(&s, &mut e);
            let got: Vec<String> = e.finish().0.iter().map(ToString::to_string).collect();
            assert_eq!(got, want);
        };
        check(json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}), &["data[tls.key]: Required value"]);
        for (written, why) in [
            ("eA==", "invalid character 'x' looking for beginning of value"),
            ("W10=", "json: cannot unmarshal array into Go value of type map[string]interface {}"),
            ("", "unexpected end of JSON input"),
        ] {
            check(
                json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": written}}),
                &[&format!("data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": {why}")],
            );
        }
        check(json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}}), &[]);
        check(json!({"data": {"ok": "eA=="}}), &[]);
    }
}
