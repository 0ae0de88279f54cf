//! CRI `runtime.v1` messages: the generated types, and code that is not generated (a `Debug` that hides passwords).

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod generated;

pub use generated::*;

impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let auth = AuthConfig {
            username: "u".into(),
            password: "hunter2".into(),
            auth: "aHVudGVyMg".into(),
            identity_token: "idtok".into(),
            registry_token: "regtok".into(),
            ..Default::default()
        };
        let request = PullImageRequest { auth: Some(auth), ..Default::default() };
        let printed = format!("{request:?}");
        for secret in ["hunter2", "aHVudGVyMg", "idtok", "regtok"] {
            assert!(!printed.contains(secret), "{printed}");
        }
        assert!(printed.contains("username: \"u\""), "{printed}");
    }
}
