//! The keyring of one pull: pull secrets, the node's own configuration and what plugins answered, in one order. All that
//! matches the image is tried, the most specific first; of equals, the pod's secrets before the node's and the plugins'.
pub mod docker;
mod node;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

pub use docker::{Auth, DockerConfig, DockerConfigFormat};
pub use node::NodeConfig;

use crate::pattern::{Pattern, Target};
use crate::plugin::{Coordinates, Provided};

/// Key of a `kubernetes.io/dockerconfigjson` secret.
pub const CONFIG_JSON_KEY: &str = ".dockerconfigjson";
/// Key of a `kubernetes.io/dockercfg` secret.
pub const DOCKERCFG_KEY: &str = ".dockercfg";
/// Candidates tried for one pull.
pub const CANDIDATES_MAX: usize = 100;

/// The source of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A pull secret of the pod or of its service account.
    Secret(Coordinates),
    /// A configuration file of the node.
    Node,
    /// A plugin that was called without an identity: all pods of the node may use the credentials.
    Plugin(String),
    /// A plugin, asked in the name of the pod's service account.
    ServiceAccount(String, Coordinates),
}

impl fmt::Display for Source {
    /// The kind and the name, for errors that pod owners read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(c) => write!(f, "image pull secret {:?}", c.name),
            Self::Node => f.write_str("docker configuration of the node"),
            Self::Plugin(p) => write!(f, "credential provider {p:?}"),
            Self::ServiceAccount(p, c) => write!(f, "credential provider {p:?} for service account {:?}", c.name),
        }
    }
}

/// Credentials to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The credentials for the registry.
    pub auth: Auth,
    /// The configured server or image pattern.
    pub server: String,
    /// The source of the credentials.
    pub source: Source,
}

#[derive(Serialize)]
struct Hashed<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    password: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    email: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    identitytoken: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    registrytoken: &'a str,
}

impl Candidate {
    /// Hex SHA-256 over the credentials, as pulled-image records keep it (KEP-2535).
    pub fn hash(&self) -> String {
        let a = &self.auth;
        let hashed = Hashed {
            username: &a.username,
            password: a.password.reveal(),
            email: &a.email,
            identitytoken: a.identity_token.reveal(),
            registrytoken: a.registry_token.reveal(),
        };
        // Strings can always be serialized. Go's encoder escapes these five characters, and the hash must be equal.
        let mut text = Zeroizing::new(serde_json::to_string(&hashed).unwrap_or_default());
        let escapes =
            [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
        for (c, escape) in escapes {
            if text.contains(c) {
                text = Zeroizing::new(text.replace(c, escape));
            }
        }
        format!("{:x}", Sha256::digest(text.as_bytes()))
    }
}

/// A pull secret, as the API has it. Debug shows no data.
#[derive(Clone, Default)]
pub struct PullSecret {
    /// The Secret's coordinates, for the record of a pull.
    pub coordinates: Coordinates,
    /// `type`; where it is unknown, empty: the data says.
    pub kind: String,
    /// `data` of the Secret, decoded from base64; wiped when it goes.
    pub data: BTreeMap<String, Zeroizing<Vec<u8>>>,
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PullSecret({:?})", self.coordinates)
    }
}

#[derive(Debug)]
struct Entry {
    /// Order of what matches: reversed, so that longer ones and such without globs come first.
    key: String,
    pattern: Pattern,
    candidate: Candidate,
    group: Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Secrets,
    Node,
    Plugins,
}

/// All credentials that a pull may use.
#[derive(Debug, Default)]
pub struct Keyring {
    entries: Vec<Entry>,
    /// Errors by source, without credentials.
    pub faults: Vec<String>,
}

impl Keyring {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pull secret; other types and empty ones add nothing.
    pub fn add_secret(&mut self, secret: &PullSecret) {
        let found = [
            ("kubernetes.io/dockerconfigjson", CONFIG_JSON_KEY, DockerConfigFormat::ConfigJson),
            ("kubernetes.io/dockercfg", DOCKERCFG_KEY, DockerConfigFormat::Dockercfg),
        ]
        .into_iter()
        .filter(|(kind, ..)| secret.kind.is_empty() || secret.kind == *kind)
        .find_map(|(_, key, form)| secret.data.get(key).filter(|d| !d.is_empty()).map(|d| (d, form)));
        let Some((data, form)) = found else { return };
        let config = docker::parse(form, data);
        let source = Source::Secret(secret.coordinates.clone());
        self.faults.extend(config.faults.iter().map(|f| format!("{source}: {f}")));
        for (what, auth) in config.entries {
            self.add(Group::Secrets, &what, auth, source.clone());
        }
    }

    /// Adds the node's own configuration.
    pub fn add_node(&mut self, config: &DockerConfig) {
        self.faults.extend(config.faults.iter().map(|f| format!("{}: {f}", Source::Node)));
        for (what, auth) in &config.entries {
            self.add(Group::Node, what, auth.clone(), Source::Node);
        }
    }

    /// Adds what a plugin answered.
    pub fn add_provided(&mut self, provided: &Provided) {
        let plugin = provided.plugin.clone();
        let source = match &provided.service_account {
            Some(c) => Source::ServiceAccount(plugin, c.clone()),
            None => Source::Plugin(plugin),
        };
        for (what, login) in &provided.answer.logins {
            let auth =
                Auth { username: login.username.clone(), password: login.password.clone(), ..Default::default() };
            self.add(Group::Plugins, what, auth, source.clone());
        }
    }

    fn add(&mut self, group: Group, what: &str, auth: Auth, source: Source) {
        let bare = what.strip_prefix("https://").or_else(|| what.strip_prefix("http://")).unwrap_or(what);
        let (host, path) = bare.find('/').map_or((bare, ""), |i| bare.split_at(i));
        // Docker takes these paths of the registry's API for the registry itself.
        let path = path
            .strip_prefix("/v1")
            .or_else(|| path.strip_prefix("/v2"))
            .filter(|p| p.starts_with('/'))
            .unwrap_or(path);
        let key = if path == "/" { host.to_owned() } else { format!("{host}{path}") };
        match Pattern::parse(&key) {
            Ok(pattern) => {
                let candidate = Candidate { auth, server: what.to_owned(), source };
                self.entries.push(Entry { key, pattern, candidate, group });
            }
            Err(e) => self.faults.push(format!("{source}: entry {what:?}: {e}")),
        }
    }

    /// Returns the credentials to try for an image (a normalized repository), in order. Equal credentials of the same
    /// source are returned once.
    pub fn lookup(&self, image: &str) -> Vec<Candidate> {
        let Ok(target) = Target::parse(image) else { return Vec::new() };
        let mut found: Vec<&Entry> = Vec::new();
        for group in [Group::Secrets, Group::Node, Group::Plugins] {
            let own = || self.entries.iter().filter(|e| e.group == group);
            let before = found.len();
            found.extend(own().filter(|e| e.pattern.matches(&target)));
            if found.len() == before && is_default_registry(image) {
                found.extend(own().filter(|e| e.key == "index.docker.io"));
            }
        }
        found.sort_by(|a, b| b.key.cmp(&a.key).then(a.group.cmp(&b.group)));
        let mut candidates: Vec<Candidate> = Vec::new();
        for e in found {
            let c = &e.candidate;
            if candidates.len() < CANDIDATES_MAX && !candidates.iter().any(|o| o.auth == c.auth && o.source == c.source)
            {
                candidates.push(c.clone());
            }
        }
        candidates
    }
}

/// Whether the image comes from the registry that needs no name.
fn is_default_registry(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some((first, _)) => {
            matches!(first, "docker.io" | "index.docker.io") || !(first.is_empty() || first.contains(['.', ':']))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plugin::cache::Answer;
    use crate::plugin::protocol::{KeyType, Login};

    fn secret(name: &str, json: &str) -> PullSecret {
        let coordinates = Coordinates { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}") };
        let data = [(CONFIG_JSON_KEY.to_owned(), Zeroizing::new(json.as_bytes().to_vec()))].into();
        PullSecret { coordinates, kind: "kubernetes.io/dockerconfigjson".into(), data }
    }

    fn users(ring: &Keyring, image: &str) -> Vec<String> {
        ring.lookup(image).into_iter().map(|c| c.auth.username).collect()
    }

    #[test]
    fn the_most_specific_comes_first() {
        let mut ring = Keyring::new();
        ring.add_secret(&secret(
            "s",
            r#"{"auths":{"https://index.docker.io/v1/":{"username":"hub"},"r.io":{"username":"all"},"http://r.io/v2/team":{"username":"team"},
                "r.io/team/app":{"username":"app"},"*.io":{"username":"glob"},"r.io:5000":{"username":"port"},"*.r.io/x":{"username":"sub"}}}"#,
        ));
        assert_eq!(users(&ring, "r.io/team/app"), ["app", "team", "all", "glob"]);
        assert_eq!(users(&ring, "r.io/teamwork"), ["team", "all", "glob"]);
        assert_eq!(users(&ring, "r.io:5000/team"), ["port"]);
        assert_eq!(users(&ring, "a.r.io/x/y"), ["sub"]);
        assert_eq!(users(&ring, "a.r.io/y"), Vec::<String>::new());
        // "docker.io" matches "*.io": the default registry's entry is for what nothing else matches.
        assert_eq!(users(&ring, "docker.io/library/nginx"), ["glob"]);
        assert_eq!(users(&ring, "index.docker.io/library/nginx"), ["hub"]);
        assert!(ring.faults.is_empty());
    }

    #[test]
    fn the_default_registry_of_each_source() {
        let mut ring = Keyring::new();
        ring.add_secret(&secret("s", r#"{"auths":{"https://index.docker.io/v1/":{"username":"mine"}}}"#));
        ring.add_node(&docker::parse(
            DockerConfigFormat::ConfigJson,
            br#"{"auths":{"docker.io":{"username":"node"},"index.docker.io":{"username":"unused"}}}"#,
        ));
        assert_eq!(users(&ring, "docker.io/library/nginx"), ["mine", "node"]);
        assert_eq!(users(&ring, "r.io/nginx"), Vec::<String>::new());
    }

    #[test]
    fn sources_merge_into_one_order() {
        let mut ring = Keyring::new();
        ring.add_node(&docker::parse(
            DockerConfigFormat::Dockercfg,
            br#"{"r.io":{"username":"node"},"r.io/team":{"username":"node-team"}}"#,
        ));
        let login = |u: &str| Login { username: u.into(), password: "p".into() };
        let logins = vec![("*.io".to_owned(), login("plugin-glob")), ("r.io".to_owned(), login("plugin"))];
        let answer = Arc::new(Answer { key_type: KeyType::Registry, cache_duration: None, logins });
        let coordinates = Coordinates { namespace: "ns".into(), name: "sa".into(), uid: "u".into() };
        ring.add_provided(&Provided {
            plugin: "ecr".into(),
            answer,
            service_account: Some(coordinates),
            cached: false,
        });
        ring.add_secret(&secret("s", r#"{"auths":{"r.io":{"username":"pod"}}}"#));
        ring.add_secret(&secret("again", r#"{"auths":{"r.io":{"username":"pod2"}}}"#));
        let found = ring.lookup("r.io/team/app");
        let shown: Vec<String> = found.iter().map(|c| format!("{}: {}", c.auth.username, c.source)).collect();
        assert_eq!(
            shown,
            [
                "node-team: docker configuration of the node",
                "pod: image pull secret \"s\"",
                "pod2: image pull secret \"again\"",
                "node: docker configuration of the node",
                "plugin: credential provider \"ecr\" for service account \"sa\"",
                "plugin-glob: credential provider \"ecr\" for service account \"sa\"",
            ]
        );
    }

    #[test]
    fn other_secrets_add_nothing() {
        let mut ring = Keyring::new();
        let mut s = secret("s", r#"{"auths":{"r.io":{"username":"u"}}}"#);
        s.kind = "Opaque".into();
        ring.add_secret(&s);
        ring.add_secret(&secret("empty", ""));
        assert!(ring.lookup("r.io/x").is_empty() && ring.faults.is_empty());
        ring.add_secret(&secret("bad", "{"));
        ring.add_secret(&secret("host", r#"{"auths":{"a b":{"username":"u"}}}"#));
        assert_eq!(ring.faults[0], "image pull secret \"bad\": is not JSON of a docker configuration");
        assert!(ring.faults[1].starts_with("image pull secret \"host\": entry \"a b\": parse"));
    }

    #[test]
    fn the_hash_is_of_the_published_form() {
        let auth = Auth { username: "u".into(), password: "a<b&c".into(), ..Default::default() };
        let c = Candidate { auth, server: "r.io".into(), source: Source::Node };
        let want = format!("{:x}", Sha256::digest(br#"{"username":"u","password":"a\u003cb\u0026c"}"#));
        assert_eq!(c.hash(), want);
        assert!(!format!("{c:?}").contains("a<b"));
    }
}
