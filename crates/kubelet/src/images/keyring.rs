//! Registry credentials from image pull secrets, the most specific entry first (upstream: `pkg/credentialprovider`).
//! Provider plugins are not asked here.
use base64::Engine as _;
use kelson_cri::proto::AuthConfig;
use serde::Deserialize;

use super::name;
use crate::volumes::objects::Data;

/// Entries read from one secret.
const ENTRIES_MAX: usize = 1000;

/// Credentials by what they are for; does not print them.
#[derive(Default)]
pub struct Keyring {
    entries: Vec<(String, AuthConfig)>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyring({} entries)", self.entries.len())
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DockerConfig {
    auths: std::collections::BTreeMap<String, Entry>,
}

impl Keyring {
    /// Adds the entries of a `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg` secret.
    pub fn add_secret(&mut self, data: &Data) {
        let config = data.get(".dockerconfigjson").and_then(|b| serde_json::from_slice::<DockerConfig>(b).ok());
        let old = data.get(".dockercfg").and_then(|b| serde_json::from_slice(b).ok());
        let auths = config.map(|c| c.auths).or(old).unwrap_or_default();
        for (what, e) in auths.into_iter().take(ENTRIES_MAX) {
            let (mut username, mut password) = (e.username, e.password);
            if let Some((u, p)) = decode(&e.auth) {
                (username, password) = (u, p);
            }
            let auth = AuthConfig {
                username,
                password,
                identity_token: e.identitytoken,
                registry_token: e.registrytoken,
                server_address: what.clone(),
                ..Default::default()
            };
            self.entries.push((normal(&what), auth));
        }
        // Longest first: the most specific path wins.
        self.entries.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| b.0.cmp(&a.0)));
    }

    /// What may open this image, the most specific first.
    pub fn lookup(&self, image: &str) -> Vec<AuthConfig> {
        let full = match name::registry(image) {
            "docker.io" if !image.starts_with("docker.io/") => format!("docker.io/{image}"),
            _ => image.to_owned(),
        };
        self.entries.iter().filter(|(what, _)| matches(what, &full)).map(|(_, a)| a.clone()).collect()
    }
}

fn decode(auth: &str) -> Option<(String, String)> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.trim_matches('\0').to_owned()))
}

fn normal(what: &str) -> String {
    let bare = what.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let bare = bare.trim_end_matches("/v1").trim_end_matches("/v2");
    match bare {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        other => other.to_owned(),
    }
}

/// Labels of the host may be globs, as many labels as the image's; the port is equal; the path is a prefix.
fn matches(what: &str, image: &str) -> bool {
    let (host, path) = what.split_once('/').map_or((what, ""), |(h, p)| (h, p));
    let (image_host, image_path) = image.split_once('/').unwrap_or((image, ""));
    let split =
        |h: &str| h.rsplit_once(':').map_or((h.to_owned(), String::new()), |(h, p)| (h.to_owned(), p.to_owned()));
    let ((host, port), (image_host, image_port)) = (split(host), split(image_host));
    let labels: Vec<&str> = host.split('.').collect();
    let image_labels: Vec<&str> = image_host.split('.').collect();
    labels.len() == image_labels.len()
        && port == image_port
        && labels.iter().zip(&image_labels).all(|(g, l)| glob(g, l))
        && image_path.starts_with(path)
}

fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text
            .strip_prefix(head)
            .is_some_and(|rest| (0..=rest.len()).any(|i| rest.is_char_boundary(i) && glob(tail, &rest[i..]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_comes_first() {
        let json = br#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"r.io":{"username":"a","password":"b"},
            "r.io/team":{"username":"t","password":"b"},"*.x.io":{"username":"g","password":"b"},"p.io:5000":{"username":"p"}}}"#;
        let mut ring = Keyring::default();
        ring.add_secret(&[(".dockerconfigjson".to_owned(), json.to_vec())].into());
        let users = |i: &str| ring.lookup(i).into_iter().map(|a| a.username).collect::<Vec<_>>();
        assert_eq!(users("r.io/team/app:1"), ["t", "a"]);
        assert_eq!(users("r.io/other"), ["a"]);
        assert_eq!(users("nginx"), ["u"]);
        assert_eq!(users("a.x.io/b"), ["g"]);
        assert!(users("a.b.x.io/b").is_empty() && users("p.io/x").is_empty());
        assert_eq!(users("p.io:5000/x"), ["p"]);
    }
}
