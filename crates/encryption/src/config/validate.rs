//! Validates a configuration as upstream does (apiserver `ValidateEncryptionConfiguration`) and names the field of each
//! fault.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_meta::{FieldErrors, FieldPath, parse_duration};
use zeroize::Zeroizing;

use super::file::{self, Document, Identity, KeyEntry, Keys, KmsEntry, ProviderEntry, ResourceEntry};
use super::{Config, ConfigError, GroupResource, NamedKey, Provider, ResourceConfig};

/// The default timeout of a call to a key service.
const KMS_TIMEOUT: Duration = Duration::from_secs(3);
const AES_KEY_BYTES: &[usize] = &[16, 24, 32];
const SECRETBOX_KEY_BYTES: &[usize] = &[32];
const NO_PROVIDER: &str =
    "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity";
const MANY_PROVIDERS: &str =
    "more than one provider specified in a single element, should split into different list elements";
const OVERLAP: &str = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked";

/// Decodes and validates the bytes of a file.
///
/// # Errors
/// Returns all errors of the file at once.
pub(crate) fn read(path: &Path, bytes: &[u8], hash: String) -> Result<Config, ConfigError> {
    let document = file::decode(bytes);
    let document = document.map_err(|why| ConfigError::Decode { path: path.display().to_string(), why })?;
    let mut judge = Judge { errors: FieldErrors::new(), kms_names: HashSet::new() };
    let resources = judge.document(document);
    match judge.errors.0.as_slice() {
        [] => Ok(Config { resources, hash }),
        [one] => Err(ConfigError::Invalid(one.to_string())),
        many => {
            let all: Vec<String> = many.iter().map(ToString::to_string).collect();
            Err(ConfigError::Invalid(format!("[{}]", all.join(", "))))
        }
    }
}

struct Judge {
    errors: FieldErrors,
    kms_names: HashSet<String>,
}

impl Judge {
    fn document(&mut self, document: Document) -> Vec<ResourceConfig> {
        let root = FieldPath::new("resources");
        let entries = document.resources.unwrap_or_default();
        if entries.is_empty() {
            self.errors.required(&root, "at least one resources is required");
        }
        entries.into_iter().enumerate().map(|(i, entry)| self.entry(entry, &root.index(i))).collect()
    }

    fn entry(&mut self, entry: ResourceEntry, at: &FieldPath) -> ResourceConfig {
        let (names_at, providers_at) = (at.child("resources"), at.child("providers"));
        let names = entry.resources.unwrap_or_default();
        if names.is_empty() {
            self.errors.required(&names_at, format!("at least one {names_at} is required"));
        }
        self.overlap(&names, &names_at);
        for (i, name) in names.iter().enumerate() {
            if let Some(why) = bad_name(name) {
                self.errors.invalid(&names_at.index(i), name, why);
            }
        }
        let providers = entry.providers.unwrap_or_default();
        if providers.is_empty() {
            self.errors.required(&providers_at, format!("at least one {providers_at} is required"));
        }
        let providers = providers.into_iter().enumerate();
        let providers = providers.filter_map(|(i, provider)| self.provider(provider, &providers_at.index(i))).collect();
        ResourceConfig { resources: names.iter().map(|name| GroupResource::parse(name)).collect(), providers }
    }

    fn overlap(&mut self, names: &[String], at: &FieldPath) {
        let all: Vec<GroupResource> = names.iter().map(|name| GroupResource::parse(name)).collect();
        let every = GroupResource::new("*", "*");
        let mut distinct = HashSet::new();
        if !all.iter().all(|name| distinct.insert(name)) {
            self.errors.invalid(at, names, "the same resource cannot be specified multiple times");
        }
        let masks =
            |a: &GroupResource, b: &GroupResource| a != b && (*a == every || (a.group == b.group && a.resource == "*"));
        if all.iter().any(|a| all.iter().any(|b| masks(a, b))) {
            self.errors.invalid(at, names, OVERLAP);
        }
    }

    fn provider(&mut self, entry: ProviderEntry, at: &FieldPath) -> Option<Provider> {
        let ProviderEntry { aesgcm, aescbc, secretbox, identity, kms } = entry;
        let said = [aesgcm.is_some(), aescbc.is_some(), secretbox.is_some(), identity.is_some(), kms.is_some()];
        match said.iter().filter(|said| **said).count() {
            0 => self.errors.invalid(at, "REDACTED", NO_PROVIDER),
            1 => {}
            _ => self.errors.invalid(at, "REDACTED", MANY_PROVIDERS),
        }
        // Of an element with several, the reference looks at one in this order.
        if let Some(kms) = kms {
            return Some(self.kms(kms, &at.child("kms")));
        }
        if let Some(keys) = aesgcm {
            return self.keys(keys, &at.child("aesgcm").child("keys"), AES_KEY_BYTES).map(Provider::AesGcm);
        }
        if let Some(keys) = aescbc {
            return self.keys(keys, &at.child("aescbc").child("keys"), AES_KEY_BYTES).map(Provider::AesCbc);
        }
        if let Some(keys) = secretbox {
            return self.keys(keys, &at.child("secretbox").child("keys"), SECRETBOX_KEY_BYTES).map(Provider::SecretBox);
        }
        identity.map(|Identity {}| Provider::Identity)
    }

    fn keys(&mut self, keys: Keys, at: &FieldPath, sizes: &[usize]) -> Option<Vec<NamedKey>> {
        let keys = keys.keys.unwrap_or_default();
        if keys.is_empty() {
            self.errors.required(at, "at least one keys is required");
        }
        let keys: Vec<Option<NamedKey>> =
            keys.into_iter().enumerate().map(|(i, key)| self.key(&key, &at.index(i), sizes)).collect();
        keys.into_iter().collect()
    }

    fn key(&mut self, key: &KeyEntry, at: &FieldPath, sizes: &[usize]) -> Option<NamedKey> {
        if key.name.is_empty() {
            self.errors.required(&at.child("name"), "name is a mandatory field for a key");
        }
        let secret_at = at.child("secret");
        if key.secret.is_empty() {
            self.errors.required(&secret_at, "secret is a mandatory field for a key");
            return None;
        }
        let Ok(bytes) = STANDARD.decode(key.secret.as_bytes()).map(Zeroizing::new) else {
            self.errors.invalid(&secret_at, "REDACTED", "secrets must be base64 encoded");
            return None;
        };
        if !sizes.contains(&bytes.len()) {
            let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
            let (got, sizes) = (bytes.len(), sizes.join(" "));
            let why = format!("secret is not of the expected length, got {got}, expected one of [{sizes}]");
            self.errors.invalid(&secret_at, "REDACTED", why);
        }
        Some(NamedKey { name: key.name.clone(), key: bytes })
    }

    fn kms(&mut self, kms: KmsEntry, at: &FieldPath) -> Provider {
        let name_at = at.child("name");
        if kms.name.is_empty() {
            self.errors.required(&name_at, "name is a mandatory field for a provider");
        }
        if kms.name.contains(':') {
            let why = format!("invalid KMS provider name {}, must not contain ':'", kms.name);
            self.errors.invalid(&name_at, &kms.name, why);
        }
        if !self.kms_names.insert(kms.name.clone()) {
            let why = format!("duplicate KMS provider name {}, names must be unique", kms.name);
            self.errors.invalid(&name_at, &kms.name, why);
        }
        let timeout = match kms.timeout.as_deref().map(parse_duration) {
            None => KMS_TIMEOUT,
            Some(Ok(timeout)) if !timeout.is_zero() => timeout,
            Some(_) => {
                self.errors.invalid(&at.child("timeout"), &kms.timeout, "timeout should be a positive value");
                KMS_TIMEOUT
            }
        };
        if let Some(why) = bad_endpoint(&kms.endpoint) {
            self.errors.invalid(&at.child("endpoint"), &kms.endpoint, why);
        }
        if kms.cachesize.is_some() && kms.api_version == "v2" {
            self.errors.invalid(&at.child("cachesize"), kms.cachesize, "cachesize is not supported in v2");
        }
        // Absent means v1, which upstream serves behind a gate that is off.
        if kms.api_version != "v2" {
            let version = if kms.api_version.is_empty() { "v1" } else { &kms.api_version };
            let why = "unsupported apiVersion for KMS provider: v1 is deprecated and off by default, use v2";
            self.errors.invalid(&at.child("apiVersion"), version, why);
        }
        Provider::Kms { name: kms.name, endpoint: kms.endpoint, timeout }
    }
}

fn bad_endpoint(endpoint: &str) -> Option<String> {
    match endpoint.split_once("://") {
        _ if endpoint.is_empty() => Some("endpoint is a mandatory field for a kms".to_owned()),
        Some(("unix", path)) if path.starts_with('/') && !path.starts_with("/@") => None,
        Some(("unix", _)) => Some("only sockets with an absolute path are supported".to_owned()),
        scheme => {
            let scheme = scheme.map_or("", |(scheme, _)| scheme);
            Some(format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported"))
        }
    }
}

fn bad_name(name: &str) -> Option<&'static str> {
    let GroupResource { group, resource } = GroupResource::parse(name);
    Some(match () {
        () if name.to_lowercase() != name => "resource name should not contain capital letters",
        () if name == "*" => {
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
        }
        () if matches!(name, "apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations") => {
            "resources which do not have REST API/s cannot be encrypted"
        }
        () if group == "events.k8s.io" => {
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
        }
        () if group == "extensions" => "'extensions' group has been removed and cannot be used for encryption",
        () if group == "*" && resource != "*" => "encrypting the same resource across groups is not supported",
        () => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        match read(Path::new("f"), text.as_bytes(), String::new()) {
            Ok(_) => String::new(),
            Err(e) => e.to_string(),
        }
    }

    fn with(resources: &str, provider: &str) -> String {
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
             - resources: {resources}\n  providers:\n  - {provider}\n"
        )
    }

    const KEY: &str = "aescbc: {keys: [{name: k, secret: AAAAAAAAAAAAAAAAAAAAAA==}]}";

    #[test]
    fn sound_files() {
        for (resources, provider) in [
            ("[secrets, configmaps, things.example.com]", KEY),
            ("['*.', '*.apps']", "identity: {}"),
            ("['*.*']", "aesgcm: {keys: [{name: k, secret: AAAAAAAAAAAAAAAAAAAAAA==}]}"),
            ("[secrets]", "secretbox: {keys: [{name: k, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]}"),
            ("[secrets]", "kms: {apiVersion: v2, name: keys, endpoint: 'unix:///run/k.sock', timeout: 1m0.5s}"),
        ] {
            assert_eq!(fault(&with(resources, provider)), "", "{resources} {provider}");
        }
        assert_eq!(
            fault(
                &with("[secrets]", KEY).replace("apiserver.config.k8s.io/v1", "v1").replace("Configuration", "Config")
            ),
            ""
        );
    }

    #[test]
    fn faults_are_named_by_field_and_show_no_key() {
        let secrets = "[secrets]";
        for (resources, provider, want) in [
            ("[]", KEY, "resources[0].resources: Required value: at least one resources[0].resources is required"),
            (
                "[Secrets]",
                KEY,
                "resources[0].resources[0]: Invalid value: \"Secrets\": resource name should not contain capital letters",
            ),
            ("['*']", KEY, "use '*.' to encrypt"),
            ("[pods.extensions]", KEY, "'extensions' group has been removed"),
            ("['*.events.k8s.io']", KEY, "Use 'events' instead"),
            ("['pods.*']", KEY, "across groups is not supported"),
            ("[secrets, secrets]", KEY, "specified multiple times"),
            ("[secrets, '*.']", KEY, "as they will be masked"),
            ("[secrets, '*.*']", KEY, "as they will be masked"),
            (secrets, "{}", "does not contain any of the expected providers"),
            (secrets, "{identity: {}, aescbc: {keys: []}}", "more than one provider specified"),
            (
                secrets,
                "aescbc: {keys: []}",
                "resources[0].providers[0].aescbc.keys: Required value: at least one keys is required",
            ),
            (
                secrets,
                "aescbc: {keys: [{name: k, secret: '!'}]}",
                "keys[0].secret: Invalid value: \"REDACTED\": secrets must be base64 encoded",
            ),
            (secrets, "aescbc: {keys: [{name: k, secret: AAAA}]}", "got 3, expected one of [16 24 32]"),
            (
                secrets,
                "aescbc: {keys: [{secret: AAAAAAAAAAAAAAAAAAAAAA==}]}",
                "keys[0].name: Required value: name is a mandatory field for a key",
            ),
            (secrets, "aescbc: {keys: [{name: k}]}", "secret is a mandatory field for a key"),
            (secrets, "kms: {apiVersion: v2, name: 'a:b', endpoint: 'unix:///k'}", "must not contain ':'"),
            (secrets, "kms: {apiVersion: v2, name: keys, endpoint: 'tcp://h:1'}", "unsupported scheme \"tcp\""),
            (secrets, "kms: {apiVersion: v2, name: keys}", "endpoint is a mandatory field for a kms"),
            (
                secrets,
                "kms: {apiVersion: v2, name: keys, endpoint: 'unix:///k', timeout: -1s}",
                "timeout should be a positive value",
            ),
            (
                secrets,
                "kms: {apiVersion: v2, name: keys, endpoint: 'unix:///k', cachesize: 5}",
                "cachesize is not supported in v2",
            ),
            (secrets, "kms: {name: keys, endpoint: 'unix:///k'}", "use v2"),
        ] {
            let said = fault(&with(resources, provider));
            assert!(said.contains(want), "{provider}\n{said}\nlacks {want}");
        }
        assert!(fault("kind: Pod\napiVersion: v1\n").contains("no kind \"Pod\""));
        for key_elsewhere in
            ["aescbc: 'topsecret'", "aescbc: {keys: 'topsecret'}", "aescbc: {keys: [{name: k, secret: [topsecret]}]}"]
        {
            let said = fault(&with("[secrets]", key_elsewhere));
            assert!(!said.is_empty() && !said.contains("topsecret"), "{said}");
        }
    }

    #[test]
    fn a_misspelt_field_at_any_level_is_refused() {
        let keys = serde_json::json!({"keys": [{"name": "k", "secret": "MDEyMzQ1Njc4OWFiY2RlZg=="}]});
        let kms = serde_json::json!({"apiVersion": "v2", "name": "n", "endpoint": "unix:///k.sock", "timeout": "3s"});
        let document = serde_json::json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
            "resources": [{"resources": ["secrets"], "providers": [
                {"aesgcm": keys}, {"aescbc": keys}, {"kms": kms}, {"identity": {}}]}]});
        let read = |document: &serde_json::Value| {
            super::read(Path::new("/f"), document.to_string().as_bytes(), String::new()).map(drop)
        };
        assert!(read(&document).is_ok(), "{:?}", read(&document));
        for (at, misspelt) in kelson_codec::strict::misspelt(&document) {
            let why = read(&misspelt).expect_err(&at).to_string();
            assert!(why.contains("misspelt"), "{at}: {why}");
        }
    }
}
