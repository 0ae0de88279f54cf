//! Reads a configuration's tree field by field and collects every fault: wrong types, unknown fields, broken rules
//! (upstream: `pkg/credentialprovider/plugin/config.go`, with an index in each path). Offending values of `args` and
//! `env` are never repeated.
use std::collections::BTreeSet;
use std::time::Duration;

use kelson_meta::{DurationError, FieldError, FieldErrorKind, FieldErrors, FieldPath, is_qualified_name};
use serde_json::{Map, Value};

use super::{ApiVersion, CacheType, PROVIDERS_MAX, ProviderConfig, TokenAttributes};
use crate::pattern::Pattern;
use crate::secret::Secret;

const GROUP: &str = "kubelet.config.k8s.io";
const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];
const TOKEN_FIELDS: [&str; 5] = [
    "serviceAccountTokenAudience",
    "cacheType",
    "requireServiceAccount",
    "requiredServiceAccountAnnotationKeys",
    "optionalServiceAccountAnnotationKeys",
];

type Object = Map<String, Value>;

/// Collects faults while a tree is read.
#[derive(Default)]
pub(super) struct Reader {
    pub faults: FieldErrors,
}

fn type_name(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A field that is set: `null` is the same as absent.
fn get<'a>(o: &'a Object, name: &str) -> Option<&'a Value> {
    o.get(name).filter(|v| !v.is_null())
}

impl Reader {
    fn wrong_type(&mut self, path: &FieldPath, found: &Value, wanted: &str) {
        let detail = format!("must be {wanted}, not {}", type_name(found));
        self.faults.0.push(FieldError {
            kind: FieldErrorKind::TypeInvalid,
            path: path.to_string(),
            value: None,
            detail,
        });
    }

    fn known(&mut self, path: &FieldPath, o: &Object, fields: &[&str]) {
        for name in o.keys().filter(|k| !fields.contains(&k.as_str())) {
            self.faults.forbidden(&path.child(name), "unknown field");
        }
    }

    fn object<'a>(&mut self, path: &FieldPath, v: &'a Value) -> Option<&'a Object> {
        let o = v.as_object();
        if o.is_none() {
            self.wrong_type(path, v, "an object");
        }
        o
    }

    fn string<'a>(&mut self, path: &FieldPath, o: &'a Object, name: &str) -> Option<&'a str> {
        let v = get(o, name)?;
        let s = v.as_str();
        if s.is_none() {
            self.wrong_type(&path.child(name), v, "a string");
        }
        s
    }

    fn list<'a>(&mut self, path: &FieldPath, o: &'a Object, name: &str) -> &'a [Value] {
        match get(o, name) {
            None => &[],
            Some(Value::Array(a)) => a,
            Some(v) => {
                self.wrong_type(&path.child(name), v, "a list");
                &[]
            }
        }
    }

    fn strings<'a>(&mut self, path: &FieldPath, o: &'a Object, name: &str) -> Vec<&'a str> {
        let mut found = Vec::new();
        for (i, v) in self.list(path, o, name).iter().enumerate() {
            match v.as_str() {
                Some(s) => found.push(s),
                None => self.wrong_type(&path.child(name).index(i), v, "a string"),
            }
        }
        found
    }

    /// The whole document. What comes back is complete only if no fault was found.
    pub fn config(&mut self, document: &Value) -> Vec<ProviderConfig> {
        let root = FieldPath::new("");
        let Some(o) = self.object(&root, document) else { return Vec::new() };
        self.known(&root, o, &["apiVersion", "kind", "providers"]);
        let version = self.string(&root, o, "apiVersion").unwrap_or_default();
        let versions = [format!("{GROUP}/v1"), format!("{GROUP}/v1alpha1"), format!("{GROUP}/v1beta1")];
        if version.is_empty() {
            self.faults.required(&root.child("apiVersion"), "");
        } else if !versions.iter().any(|v| v == version) {
            let known: Vec<&str> = versions.iter().map(String::as_str).collect();
            self.faults.not_supported(&root.child("apiVersion"), version, &known);
        }
        match self.string(&root, o, "kind").unwrap_or_default() {
            "CredentialProviderConfig" => {}
            "" => self.faults.required(&root.child("kind"), ""),
            other => self.faults.not_supported(&root.child("kind"), other, &["CredentialProviderConfig"]),
        }
        let path = root.child("providers");
        let list = self.list(&root, o, "providers");
        if list.is_empty() && !self.faults.0.iter().any(|e| e.path == "providers") {
            self.faults.required(&path, "at least 1 item in plugins is required");
        }
        if list.len() > PROVIDERS_MAX {
            self.faults.too_many(&path, list.len(), PROVIDERS_MAX);
            return Vec::new();
        }
        let tokens = version == versions[0];
        list.iter().enumerate().filter_map(|(i, v)| self.provider(&path.index(i), v, tokens)).collect()
    }

    fn provider(&mut self, path: &FieldPath, v: &Value, tokens: bool) -> Option<ProviderConfig> {
        let o = self.object(path, v)?;
        let mut fields = vec!["name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env"];
        if tokens {
            fields.push("tokenAttributes");
        }
        self.known(path, o, &fields);
        let name = self.name(path, o);
        let match_images = self.match_images(path, o);
        let default_cache_duration = self.duration(path, o);
        let version = self.string(path, o, "apiVersion").unwrap_or_default();
        let api_version = ApiVersion::parse(version);
        if version.is_empty() {
            self.faults.required(&path.child("apiVersion"), "");
        } else if api_version.is_none() {
            let known: Vec<&str> = ApiVersion::ALL.iter().map(|v| v.text()).collect();
            self.faults.not_supported(&path.child("apiVersion"), version, &known);
        }
        let args = self.strings(path, o, "args").into_iter().map(Secret::from).collect();
        let env = self.env(path, o);
        let token_attributes = match get(o, "tokenAttributes").filter(|_| tokens) {
            Some(v) => self.token_attributes(&path.child("tokenAttributes"), v, api_version),
            None => None,
        };
        let api_version = api_version?;
        Some(ProviderConfig { name, match_images, default_cache_duration, api_version, args, env, token_attributes })
    }

    fn name(&mut self, path: &FieldPath, o: &Object) -> String {
        let name = self.string(path, o, "name").unwrap_or_default();
        let at = path.child("name");
        if name.is_empty() && get(o, "name").is_none_or(Value::is_string) {
            self.faults.required(&at, "");
        }
        let rules = [
            (name.contains('/'), "provider name cannot contain '/'"),
            (name.contains(' '), "provider name cannot contain spaces"),
            (name.contains('\0'), "provider name cannot contain zero bytes"),
            (name == ".", "provider name cannot be '.'"),
            (name == "..", "provider name cannot be '..'"),
        ];
        for (_, why) in rules.into_iter().filter(|(broken, _)| *broken) {
            self.faults.invalid(&at, name, why);
        }
        name.to_owned()
    }

    fn match_images(&mut self, path: &FieldPath, o: &Object) -> Vec<(String, Pattern)> {
        let at = path.child("matchImages");
        let images = self.strings(path, o, "matchImages");
        if self.list_is_empty(o, "matchImages") {
            self.faults.required(&at, "at least 1 item in matchImages is required");
        }
        let mut found = Vec::new();
        for (i, image) in images.into_iter().enumerate() {
            match Pattern::parse(image) {
                Ok(p) => found.push((image.to_owned(), p)),
                Err(e) => self.faults.invalid(&at.index(i), image, format!("match image is invalid: {e}")),
            }
        }
        found
    }

    fn list_is_empty(&self, o: &Object, name: &str) -> bool {
        get(o, name).is_none_or(|v| v.as_array().is_some_and(Vec::is_empty))
    }

    fn duration(&mut self, path: &FieldPath, o: &Object) -> Duration {
        let at = path.child("defaultCacheDuration");
        let Some(text) = self.string(path, o, "defaultCacheDuration") else {
            if get(o, "defaultCacheDuration").is_none() {
                self.faults.required(&at, "");
            }
            return Duration::ZERO;
        };
        match kelson_meta::parse_duration(text) {
            Ok(duration) => return duration,
            Err(DurationError::Negative) => self.faults.invalid(&at, text, "must be greater than or equal to 0"),
            Err(e) => self.faults.invalid(&at, text, e.to_string()),
        }
        Duration::ZERO
    }

    fn env(&mut self, path: &FieldPath, o: &Object) -> Vec<(String, Secret)> {
        let mut found = Vec::new();
        for (i, v) in self.list(path, o, "env").iter().enumerate() {
            let at = path.child("env").index(i);
            let Some(o) = self.object(&at, v) else { continue };
            self.known(&at, o, &["name", "value"]);
            let name = self.string(&at, o, "name").unwrap_or_default();
            let value = self.string(&at, o, "value").unwrap_or_default();
            // Such a variable cannot be given to a process at all.
            if name.is_empty() {
                self.faults.required(&at.child("name"), "");
            } else if name.contains(['=', '\0']) {
                self.faults.invalid(&at.child("name"), name, "must not contain '=' or zero bytes");
            }
            if value.contains('\0') {
                self.faults.forbidden(&at.child("value"), "must not contain zero bytes");
            }
            found.push((name.to_owned(), Secret::from(value)));
        }
        found
    }

    fn token_attributes(
        &mut self,
        path: &FieldPath,
        v: &Value,
        version: Option<ApiVersion>,
    ) -> Option<TokenAttributes> {
        let o = self.object(path, v)?;
        self.known(path, o, &TOKEN_FIELDS);
        let audience = self.string(path, o, "serviceAccountTokenAudience").unwrap_or_default();
        if audience.is_empty() {
            self.faults.required(&path.child("serviceAccountTokenAudience"), "");
        }
        if version.is_some_and(|v| v != ApiVersion::V1) {
            let why = format!("tokenAttributes is only supported for {} API version", ApiVersion::V1.text());
            self.faults.forbidden(path, why);
        }
        let require = self.require_service_account(path, o);
        let required = self.annotation_keys(path, o, "requiredServiceAccountAnnotationKeys");
        let optional = self.annotation_keys(path, o, "optionalServiceAccountAnnotationKeys");
        if require == Some(false) && !required.is_empty() {
            let why = "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set";
            self.faults.forbidden(&path.child("requiredServiceAccountAnnotationKeys"), why);
        }
        let both: BTreeSet<&String> = required.iter().filter(|k| optional.contains(k)).collect();
        if !both.is_empty() {
            self.faults.invalid(path, both, "annotation keys cannot be both required and optional");
        }
        let cache_type = self.cache_type(path, o);
        Some(TokenAttributes {
            audience: audience.to_owned(),
            cache_type: cache_type?,
            require_service_account: require?,
            required_annotation_keys: required,
            optional_annotation_keys: optional,
        })
    }

    fn require_service_account(&mut self, path: &FieldPath, o: &Object) -> Option<bool> {
        let at = path.child("requireServiceAccount");
        match get(o, "requireServiceAccount") {
            None => self.faults.required(&at, ""),
            Some(Value::Bool(b)) => return Some(*b),
            Some(v) => self.wrong_type(&at, v, "a boolean"),
        }
        None
    }

    fn cache_type(&mut self, path: &FieldPath, o: &Object) -> Option<CacheType> {
        let at = path.child("cacheType");
        match self.string(path, o, "cacheType").unwrap_or_default() {
            "Token" => return Some(CacheType::Token),
            "ServiceAccount" => return Some(CacheType::ServiceAccount),
            "" => {
                let why = "cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token";
                self.faults.required(&at, why);
            }
            other => self.faults.not_supported(&at, other, &CACHE_TYPES),
        }
        None
    }

    fn annotation_keys(&mut self, path: &FieldPath, o: &Object, name: &str) -> Vec<String> {
        let at = path.child(name);
        let mut seen = BTreeSet::new();
        let keys = self.strings(path, o, name);
        for (i, key) in keys.iter().enumerate() {
            // A qualified name, but that case does not matter.
            for why in is_qualified_name(&key.to_lowercase()).err().into_iter().flatten() {
                self.faults.invalid(&at.index(i), key, why);
            }
            if !seen.insert(*key) {
                self.faults.duplicate(&at.index(i), key);
            }
        }
        keys.into_iter().map(str::to_owned).collect()
    }
}
