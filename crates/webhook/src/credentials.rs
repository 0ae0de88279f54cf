//! The credentials that the API server presents to webhooks: the users of a kubeconfig, chosen by the webhook's host
//! (`kubeConfigFile` of a `WebhookAdmission`; upstream `util/webhook/authentication.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::BTreeMap;
use std::path::Path;

use http::HeaderValue;
use kelson_pki::kubeconfig::{self, KubeconfigError, KubeconfigFile, NamedUser, Source};

/// The user name that applies to every host without a more specific user.
const ANY: &str = "*";

/// The users of a kubeconfig, by the hosts that they apply to. Without users, calls are anonymous.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    users: BTreeMap<String, User>,
    /// The user of the current context, for hosts without a specific user.
    current: Option<String>,
}

/// The credentials of one user. `Debug` does not print secrets.
#[derive(Clone, Default)]
pub(crate) struct User {
    pub token: Source,
    pub cert: Source,
    pub key: Source,
    /// The encoded value of a `Basic` authorization header.
    pub basic: Option<String>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("User(..)")
    }
}

impl User {
    fn new(user: &kubeconfig::User, base: &Path) -> Result<Self, String> {
        if user.asks_elsewhere() {
            return Err("auth provider not supported".to_owned());
        }
        if user.impersonation().map_err(|e| e.to_string())?.is_some() {
            return Err("as: impersonation is not supported for webhooks".to_owned());
        }
        let read = |source: Result<Source, KubeconfigError>| source.map_err(|e| e.to_string());
        let (cert, key) = (read(user.certificate(base))?, read(user.key(base))?);
        Ok(Self { token: user.token(base), cert, key, basic: user.basic() })
    }
    /// Returns whether any credential is in a file, which may change.
    pub fn has_files(&self) -> bool {
        [&self.token, &self.cert, &self.key].iter().any(|s| matches!(s, Source::File(_)))
    }
    /// Returns the `Authorization` header, or `None` for users without one.
    pub fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let text = match (self.token.load().map_err(|e| e.to_string())?, &self.basic) {
            (Some(token), _) => format!("Bearer {}", String::from_utf8_lossy(&token).trim()),
            (None, Some(basic)) => format!("Basic {basic}"),
            (None, None) => return Ok(None),
        };
        let header = HeaderValue::from_str(&text);
        let mut header = header.map_err(|_| "the token has characters that are not valid in a header".to_owned())?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl Credentials {
    /// Reads a kubeconfig. Relative paths in it are relative to its directory.
    ///
    /// # Errors
    /// Fails when the file cannot be read, is no kubeconfig, or has a user with an unsupported authentication method
    /// (exec plug-ins and auth providers).
    pub fn load(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let bytes = std::fs::read(path).map_err(|e| format!("{name}: {e}"))?;
        Self::parse(&bytes, path.parent().unwrap_or(Path::new("."))).map_err(|e| format!("{name}: {e}"))
    }

    fn parse(bytes: &[u8], base: &Path) -> Result<Self, String> {
        let file = KubeconfigFile::parse(bytes).map_err(|e| e.to_string())?;
        Self::of_file(&file, base)
    }

    /// Returns the users of a kubeconfig whose paths are relative to `base`.
    pub(crate) fn of_file(file: &KubeconfigFile, base: &Path) -> Result<Self, String> {
        let mut users = BTreeMap::new();
        for NamedUser { name, user } in &file.users {
            users.insert(name.clone(), User::new(user, base).map_err(|e| format!("user {name:?}: {e}"))?);
        }
        let context = file.contexts.iter().find(|c| !c.name.is_empty() && c.name == file.current_context);
        let current = context.map(|c| c.context.user.clone()).filter(|u| !u.is_empty());
        Ok(Self { users, current })
    }

    /// Returns the user for `host:port`. The order is: the exact name, `*.` with a suffix of the host (both first with
    /// the port, then without it if it is 443), `*`, and the user of the current context.
    pub(crate) fn of(&self, host: &str, port: u16) -> Option<&User> {
        let whole = format!("{host}:{port}");
        let bare = (port == 443).then_some(host);
        let named = [Some(whole.as_str()), bare].into_iter().flatten().find_map(|target| {
            let tails = target.match_indices('.').map(|(i, _)| format!("*{}", &target[i..]));
            self.users.get(target).or_else(|| tails.into_iter().find_map(|tail| self.users.get(&tail)))
        });
        named.or_else(|| self.users.get(ANY)).or_else(|| self.users.get(self.current.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {user: fallback}}]
users:
- {name: 'a.n.svc', user: {token: exact}}
- {name: '*.n.svc:8443', user: {token: port}}
- {name: '*.svc', user: {username: u, password: p}}
- {name: 'fallback', user: {tokenFile: token}}
";

    #[test]
    fn users_by_host() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\n").unwrap();
        let credentials = Credentials::parse(FILE.as_bytes(), dir.path()).unwrap();
        let of = |host: &str, port| {
            let header = credentials.of(host, port).unwrap().authorization().unwrap().unwrap();
            header.to_str().unwrap().to_owned()
        };
        assert_eq!(of("a.n.svc", 443), "Bearer exact");
        assert_eq!(of("b.n.svc", 8443), "Bearer port");
        assert_eq!(of("b.m.svc", 443), "Basic dTpw");
        assert_eq!(of("example.com", 443), "Bearer from-file");
        assert_eq!(of("b.m.svc", 444), "Bearer from-file", "without its port only 443 is found");
        let any = format!("{FILE}- {{name: '*', user: {{token: any}}}}");
        let credentials = Credentials::parse(any.as_bytes(), dir.path()).unwrap();
        let header = credentials.of("example.com", 1).unwrap().authorization().unwrap().unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer any");
        assert!(header.is_sensitive());
        assert!(Credentials::default().of("h", 1).is_none());
        assert!(Credentials::parse(b"users: [{name: x, user: {exec: {command: c}}}]", dir.path()).is_err());
        let acting = Credentials::parse(b"users: [{name: x, user: {token: t, as: jane}}]", dir.path()).unwrap_err();
        assert_eq!(acting, "user \"x\": as: impersonation is not supported for webhooks");
        assert!(!format!("{credentials:?}").contains("exact"));
    }
}
