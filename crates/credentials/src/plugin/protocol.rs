//! The words that the node agent and a plugin exchange: `CredentialProviderRequest` and `CredentialProviderResponse`
//! (`credentialprovider.kubelet.k8s.io` v1alpha1, v1beta1, v1). An error about a response never repeats any of it.
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::config::ApiVersion;
use crate::secret::Secret;

/// Entries of one response.
pub const AUTH_ENTRIES_MAX: usize = 1000;

/// The request to a plugin.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Repository, without tag and digest.
    pub image: String,
    /// Token of the pod's service account, if the provider wants one.
    pub token: Option<Secret>,
    /// Annotations of the service account that the provider wants.
    pub annotations: BTreeMap<String, String>,
}

/// The scope of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// The one repository.
    Image,
    /// All of the registry.
    Registry,
    /// Everything the provider is asked for.
    Global,
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "Image",
            Self::Registry => "Registry",
            Self::Global => "Global",
        })
    }
}

/// User and password for what one pattern matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// May be empty.
    pub username: String,
    /// May be empty.
    pub password: Secret,
}

/// A plugin's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The images for which the answer may be used (`cacheKeyType`).
    pub key_type: KeyType,
    /// The time to cache it; `None` uses the configuration.
    pub cache_duration: Option<Duration>,
    /// Logins by image pattern; none says that the plugin has no credentials for the image.
    pub auth: BTreeMap<String, Login>,
}

/// The fault of a response, without its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// No JSON object with `apiVersion` and `kind`.
    #[error("error reading apiVersion and kind from the plugin's response: not a JSON object of that form")]
    NotJson,
    /// Another version, or another group.
    #[error("apiVersion from credential plugin response did not match expected apiVersion:{expected}{}", known(.actual))]
    ApiVersion {
        /// The configured one.
        expected: &'static str,
        /// The answered one, where it is another known one.
        actual: Option<&'static str>,
    },
    /// Not a `CredentialProviderResponse`.
    #[error("credential provider plugin response has an unexpected kind, expected CredentialProviderResponse")]
    Kind,
    /// Unknown fields or wrong types.
    #[error("error decoding credential provider plugin response from stdout")]
    Fields,
    /// Not `Image`, `Registry` or `Global`.
    #[error("credential provider plugin did not return a valid cacheKeyType")]
    KeyType,
    /// Not a duration, or less than nothing.
    #[error("credential provider plugin did not return a valid cacheDuration")]
    Duration,
    /// More than [`AUTH_ENTRIES_MAX`].
    #[error("credential provider plugin returned more than {AUTH_ENTRIES_MAX} auth entries")]
    TooMany,
}

fn known(actual: &Option<&'static str>) -> String {
    actual.map(|a| format!(", actual apiVersion:{a}")).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireRequest<'a> {
    kind: &'static str,
    api_version: &'static str,
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_token: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
}

/// The request as the plugin reads it.
pub fn encode(version: ApiVersion, request: &Request) -> Zeroizing<Vec<u8>> {
    let wire = WireRequest {
        kind: "CredentialProviderRequest",
        api_version: version.text(),
        image: &request.image,
        service_account_token: request.token.as_ref().map(Secret::reveal),
        service_account_annotations: &request.annotations,
    };
    // Strings and maps of strings serialise without fail.
    let mut text = serde_json::to_vec(&wire).unwrap_or_default();
    text.push(b'\n');
    Zeroizing::new(text)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireResponse {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: Option<String>,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<HashMap<String, WireLogin>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireLogin {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Secret,
}

/// Reads a response that must speak `version`.
pub fn decode(version: ApiVersion, data: &[u8]) -> Result<Response, ResponseError> {
    // The parser would also take a list of the fields' values.
    if data.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(ResponseError::NotJson);
    }
    let about: TypeMeta = serde_json::from_slice(data).map_err(|_| ResponseError::NotJson)?;
    if about.api_version != version.text() {
        let actual = ApiVersion::parse(&about.api_version).map(ApiVersion::text);
        return Err(ResponseError::ApiVersion { expected: version.text(), actual });
    }
    if about.kind != "CredentialProviderResponse" {
        return Err(ResponseError::Kind);
    }
    let wire: WireResponse = serde_json::from_slice(data).map_err(|_| ResponseError::Fields)?;
    let key_type = match wire.cache_key_type.as_deref() {
        Some("Image") => KeyType::Image,
        Some("Registry") => KeyType::Registry,
        Some("Global") => KeyType::Global,
        _ => return Err(ResponseError::KeyType),
    };
    let duration = |text: String| kelson_meta::parse_duration(&text).map_err(|_| ResponseError::Duration);
    let cache_duration = wire.cache_duration.map(duration).transpose()?;
    let auth = wire.auth.unwrap_or_default();
    if auth.len() > AUTH_ENTRIES_MAX {
        return Err(ResponseError::TooMany);
    }
    let login = |w: WireLogin| Login { username: w.username.unwrap_or_default(), password: w.password };
    Ok(Response { key_type, cache_duration, auth: auth.into_iter().map(|(k, w)| (k, login(w))).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(rest: &str) -> String {
        format!(
            "{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\"{rest}}}"
        )
    }

    #[test]
    fn requests() {
        let mut r = Request { image: "r.io/a".into(), ..Default::default() };
        assert_eq!(
            encode(ApiVersion::V1Beta1, &r).as_slice(),
            b"{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1beta1\",\"image\":\"r.io/a\"}\n"
        );
        r.token = Some("tok".into());
        r.annotations = [("a/b".to_owned(), "c".to_owned())].into();
        let text = String::from_utf8(encode(ApiVersion::V1, &r).to_vec()).unwrap();
        assert!(text.contains("\"serviceAccountToken\":\"tok\",\"serviceAccountAnnotations\":{\"a/b\":\"c\"}"));
    }

    #[test]
    fn responses() {
        let text = response(
            ",\"cacheKeyType\":\"Registry\",\"cacheDuration\":\"1h30m\",\"auth\":{\"*.io\":{\"username\":\"u\",\"password\":\"p\"},\"e\":{\"username\":\"\",\"password\":\"\"}}",
        );
        let r = decode(ApiVersion::V1, text.as_bytes()).unwrap();
        assert_eq!((r.key_type, r.cache_duration), (KeyType::Registry, Some(Duration::from_secs(5400))));
        assert_eq!(r.auth["*.io"].password.reveal(), "p");
        let none = decode(ApiVersion::V1, response(",\"cacheKeyType\":\"Image\",\"auth\":null").as_bytes()).unwrap();
        assert!(none.auth.is_empty() && none.cache_duration.is_none());
    }

    #[test]
    fn faults_repeat_nothing() {
        let v1beta1 = response("").replace("/v1", "/v1beta1");
        let cases = [
            ("hunter2".to_owned(), ResponseError::NotJson),
            ("[\"hunter2\"]".to_owned(), ResponseError::NotJson),
            (response(",\"cacheKeyType\":\"hunter2\""), ResponseError::KeyType),
            (response(",\"cacheKeyType\":\"Image\",\"hunter2\":1"), ResponseError::Fields),
            (response(",\"cacheKeyType\":\"Image\",\"auth\":{\"a\":{\"passwd\":\"hunter2\"}}"), ResponseError::Fields),
            (response(",\"cacheKeyType\":\"Image\",\"cacheDuration\":\"hunter2\""), ResponseError::Duration),
            (response(",\"cacheKeyType\":\"Image\",\"cacheDuration\":\"-1s\""), ResponseError::Duration),
            (response("").replace("Response", "hunter2"), ResponseError::Kind),
            (
                response("").replace(".k8s.io", ".hunter2"),
                ResponseError::ApiVersion { expected: ApiVersion::V1.text(), actual: None },
            ),
            (
                v1beta1,
                ResponseError::ApiVersion { expected: ApiVersion::V1.text(), actual: Some(ApiVersion::V1Beta1.text()) },
            ),
        ];
        for (text, want) in cases {
            let e = decode(ApiVersion::V1, text.as_bytes()).expect_err(&text);
            assert_eq!(e, want, "{text}");
            assert!(!format!("{e} {e:?}").contains("hunter2"));
        }
    }
}
