//! Servers that are configured like the reference, each with an initial state for cases.
use std::collections::BTreeMap;

use http_body_util::BodyExt as _;
use kelson_apiserver::ServiceAccountConfig;
use kelson_pki::Key;
use serde_json::{Value, json};

use crate::common::{Api, admin};

/// Retries of a request whose object the server itself wrote meanwhile.
pub const CONFLICTS_MAX: usize = 5;

/// The objects that are stored before the cases are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No base, for creates.
    Empty,
    /// All bases, for updates, status writes and other subresources.
    Stored,
    /// All bases with their status.
    Status,
}

/// A server and its stored bases by name.
pub struct Subject {
    api: Api,
    stored: BTreeMap<String, Value>,
}

/// The server's answer.
pub struct Answer {
    pub code: u64,
    pub body: Value,
}

impl Subject {
    pub async fn start(state: State, bases: &[Value]) -> Self {
        let key = Key::generate().expect("a key");
        let accounts = ServiceAccountConfig {
            issuer: "https://kubernetes.default.svc".into(),
            issuers_before: Vec::new(),
            verifiers: vec![key.public().clone()],
            key,
            audiences: Vec::new(),
            terms: Default::default(),
        };
        let api = Api::with(|config| {
            config.admission.disable.clear();
            config.runtime_config = Default::default();
            config.feature_gates = Default::default();
            config.service_cidrs = vec!["10.97.0.0/16".parse().expect("a range")];
            config.service_accounts = Some(accounts);
        })
        .await;
        let mut subject = Self { api, stored: BTreeMap::new() };
        subject.set_up().await;
        if state != State::Empty {
            for base in bases.iter().filter(|base| base.get("stored").is_some()) {
                subject.store(base, state).await;
            }
            subject.settle(bases).await;
        }
        subject
    }

    async fn set_up(&self) {
        for name in ["apidiff", "apidiff-q"] {
            self.must("POST", "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
            let account = json!({"metadata": {"name": "default"}});
            self.must("POST", &format!("/api/v1/namespaces/{name}/serviceaccounts"), &account).await;
        }
        let class = json!({"metadata": {"name": "apidiff-rc"}, "handler": "x",
            "overhead": {"podFixed": {"cpu": "100m", "memory": "64Mi"}}});
        self.must("POST", "/apis/node.k8s.io/v1/runtimeclasses", &class).await;
        let class =
            json!({"metadata": {"name": "apidiff-sc"}, "provisioner": "example.com/p", "allowVolumeExpansion": true});
        self.must("POST", "/apis/storage.k8s.io/v1/storageclasses", &class).await;
    }

    async fn store(&self, base: &Value, state: State) {
        let path = base["path"].as_str().expect("a path");
        let made = self.must("POST", path, &base["object"]).await;
        if state == State::Status && base.get("restatus").is_some() {
            let at = format!("{path}/{}", name(base));
            let mut object = made;
            object["status"] = base["status"].clone();
            for _ in 0..CONFLICTS_MAX {
                let answer = self.ask("PUT", &format!("{at}/status"), object.to_string()).await;
                match answer.code {
                    // A controller of the server itself wrote it meanwhile.
                    409 => object["metadata"]["resourceVersion"] = self.revision(&at).await,
                    200 => return,
                    code => panic!("PUT {at}/status: {code} {}", answer.body),
                }
            }
            panic!("PUT {at}/status conflicts again and again");
        }
    }

    /// Reads the bases after all are stored.
    async fn settle(&mut self, bases: &[Value]) {
        for base in bases.iter().filter(|base| base.get("stored").is_some()) {
            let path = base["path"].as_str().expect("a path");
            let at = format!("{path}/{}", name(base));
            self.stored
                .insert(base["base"].as_str().expect("a name").to_owned(), self.must("GET", &at, &Value::Null).await);
        }
    }

    /// A stored base.
    pub fn stored(&self, base: &str) -> &Value {
        self.stored.get(base).unwrap_or_else(|| panic!("{base} is not stored"))
    }

    /// The newest revision of a stored object.
    pub async fn revision(&self, at: &str) -> Value {
        self.must("GET", at, &Value::Null).await["metadata"]["resourceVersion"].clone()
    }

    async fn must(&self, method: &str, uri: &str, object: &Value) -> Value {
        let text = if object.is_null() { String::new() } else { object.to_string() };
        let answer = self.ask(method, uri, text).await;
        assert!((200..300).contains(&answer.code), "{method} {uri}: {}", answer.body);
        answer.body
    }

    pub async fn ask(&self, method: &str, uri: &str, text: String) -> Answer {
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", "application/json")
            .body(text.into())
            .expect("a request");
        let mut user = admin();
        // The reference authenticated its client by certificate.
        let digest = "X509SHA256=36ba74fca9c161cb00face9394f3edbae0d9e2ef3cffe3cf94b1f4ffe5bbacdc";
        user.extra.insert("authentication.kubernetes.io/credential-id".into(), vec![digest.into()]);
        let answer = self.api.send(user, request).await;
        let code = u64::from(answer.status().as_u16());
        let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { code, body }
    }
}

/// The name of a stored base.
pub fn name(base: &Value) -> &str {
    base["stored"]["metadata"]["name"].as_str().expect("a name")
}
