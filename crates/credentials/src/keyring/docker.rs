//! Docker's configuration files: `config.json` (`kubernetes.io/dockerconfigjson`) and the older `.dockercfg`
//! (`kubernetes.io/dockercfg`). Faults name entries, never their content.
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::secret::Secret;

/// Entries read from one file.
pub const ENTRIES_MAX: usize = 10_000;
/// Bytes of one file.
pub const FILE_BYTES_MAX: usize = 10 * 1024 * 1024;

/// The forms of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DockerConfigFormat {
    /// The whole file, `{"auths": {…}}`.
    ConfigJson,
    /// The older format: only the content of `auths`.
    Dockercfg,
}

/// Credentials for a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// The registry's user; `<token>` and the like for tokens.
    pub username: String,
    /// The user's password or token.
    pub password: Secret,
    /// Mail address; only part of what records are made of.
    pub email: String,
    /// OAuth2 refresh token, used to get access tokens.
    pub identity_token: Secret,
    /// Bearer token to send as it is.
    pub registry_token: Secret,
}

/// The entries of a file, by what they are for, and what was wrong with the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerConfig {
    /// Credentials by pattern of image, of the entries that could be read.
    pub entries: BTreeMap<String, Auth>,
    /// Errors of the other entries, without their content.
    pub faults: Vec<String>,
}

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: Option<BTreeMap<String, DockerEntry>>,
}

#[derive(Deserialize)]
struct DockerEntry {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Secret,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    auth: Secret,
    #[serde(default)]
    identitytoken: Secret,
    #[serde(default)]
    registrytoken: Secret,
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Reads a file of the given form. A file that cannot be read at all has one fault and no entries.
pub fn parse(form: DockerConfigFormat, data: &[u8]) -> DockerConfig {
    let mut config = DockerConfig::default();
    if data.len() > FILE_BYTES_MAX {
        config.faults.push(format!("is larger than {FILE_BYTES_MAX} bytes"));
        return config;
    }
    // The parser would also take a list of the fields' values.
    let object = data.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    let entries = match form {
        _ if !object => Err(()),
        DockerConfigFormat::ConfigJson => {
            serde_json::from_slice::<ConfigJson>(data).map(|c| c.auths.unwrap_or_default()).map_err(drop)
        }
        DockerConfigFormat::Dockercfg => serde_json::from_slice(data).map_err(drop),
    };
    // The parser's own words may hold what it read.
    let Ok(entries) = entries else {
        config.faults.push("is not JSON of a docker configuration".to_owned());
        return config;
    };
    if entries.len() > ENTRIES_MAX {
        config.faults.push(format!("has more than {ENTRIES_MAX} entries"));
    }
    for (what, entry) in entries.into_iter().take(ENTRIES_MAX) {
        match auth(entry) {
            Ok(auth) => drop(config.entries.insert(what, auth)),
            Err(why) => config.faults.push(format!("entry {what:?}: {why}")),
        }
    }
    config
}

fn auth(entry: DockerEntry) -> Result<Auth, &'static str> {
    let (mut username, mut password) = (entry.username.unwrap_or_default(), entry.password);
    if !entry.auth.is_empty() {
        let text: Zeroizing<String> =
            Zeroizing::new(entry.auth.reveal().chars().filter(|c| !c.is_ascii_whitespace()).collect());
        let decoded = BASE64.decode(text.as_bytes()).map_err(|_| "auth is not base64")?;
        let decoded = Zeroizing::new(String::from_utf8(decoded).map_err(|_| "auth must be base64 of UTF-8")?);
        let (u, p) = decoded
            .split_once(':')
            .ok_or("unable to parse auth field, must be formatted as base64(username:password)")?;
        (username, password) = (u.to_owned(), Secret::from(p.trim_end_matches('\0')));
    }
    Ok(Auth {
        username,
        password,
        email: entry.email.unwrap_or_default(),
        identity_token: entry.identitytoken,
        registry_token: entry.registrytoken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let c = parse(
            DockerConfigFormat::ConfigJson,
            br#"{"auths":{"a":{"auth":"dXNlcjpwYTpzcw=="},"b":{"auth":"dXNlcjpwYTpzcw"},"c":{"username":"u","password":"p","email":"e"},
                "d":{"identitytoken":"it","registrytoken":"rt","auth":""},"e":{}},"HttpHeaders":{"x":"y"},"credsStore":"z"}"#,
        );
        assert_eq!(c.faults, Vec::<String>::new());
        for k in ["a", "b"] {
            assert_eq!((c.entries[k].username.as_str(), c.entries[k].password.reveal()), ("user", "pa:ss"));
        }
        assert_eq!((c.entries["c"].username.as_str(), c.entries["c"].email.as_str()), ("u", "e"));
        assert_eq!((c.entries["d"].identity_token.reveal(), c.entries["d"].registry_token.reveal()), ("it", "rt"));
        let old = parse(DockerConfigFormat::Dockercfg, br#"{"r.io":{"username":"u","password":"p"}}"#);
        assert_eq!(old.entries["r.io"].password.reveal(), "p");
        assert!(parse(DockerConfigFormat::ConfigJson, b"{\"auths\":null}").entries.is_empty());
    }

    #[test]
    fn faults_name_the_entry_only() {
        let c = parse(
            DockerConfigFormat::ConfigJson,
            br#"{"auths":{"a":{"auth":"hunter2!"},"b":{"auth":"aHVudGVyMg=="},"c":{"username":"u"}}}"#,
        );
        assert_eq!(c.entries.keys().collect::<Vec<_>>(), ["c"]);
        assert_eq!(
            c.faults,
            [
                "entry \"a\": auth is not base64",
                "entry \"b\": unable to parse auth field, must be formatted as base64(username:password)"
            ]
        );
        for bad in [&b"hunter2"[..], br#"{"auths":{"a":"hunter2"}}"#, b"[]"] {
            let c = parse(DockerConfigFormat::ConfigJson, bad);
            assert_eq!(c.faults, ["is not JSON of a docker configuration"]);
        }
    }
}
