//! A server in memory with its in-process transport: the whole request path without sockets.
#![allow(dead_code)] // each test file uses its own part

use std::sync::Arc;

use http::Method;
use http_body_util::BodyExt as _;
use kelson_apiserver::{ApiServer, Config, Running, RuntimeConfig};
use kelson_auth::{UserInfo, user};
use kelson_meta::gates::FeatureGates;
use kelson_store::{Store, StoreOptions};
use kelson_transport::{Body, Request};
use serde_json::Value;

/// A running server.
pub struct Api {
    pub running: Running,
    pub store: Store,
}

/// Feature gates of kinds.
pub fn features() -> Arc<FeatureGates> {
    let gates = ["ClusterTrustBundle=true,GenericWorkload=true,PodCertificateRequest=true,StorageVersionMigrator=true"];
    Arc::new(FeatureGates::parse(gates).expect("gates"))
}

impl Api {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::built(Store::in_memory(StoreOptions::default()), change).await
    }

    /// Starts another server over an existing store.
    pub async fn over(store: Store) -> Self {
        Self::built(store, |_| {}).await
    }

    /// The same with a changed configuration.
    pub async fn on(store: Store, change: impl FnOnce(&mut Config)) -> Self {
        Self::built(store, change).await
    }

    async fn built(store: Store, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(store.clone());
        // Pods in these tests need no service accounts.
        config.admission.disable = vec!["ServiceAccount".into()];
        // Kinds of all maturities are served.
        config.runtime_config = Arc::new(RuntimeConfig::all());
        config.feature_gates = features();
        change(&mut config);
        let running = ApiServer::start(config).await.expect("starts");
        Self { running, store }
    }

    pub async fn send(&self, user: UserInfo, request: Request) -> http::Response<Body> {
        self.running.in_process(user).send(request).await.expect("answered")
    }

    /// Sends a request as the administrator, with headers.
    pub async fn raw(
        &self,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: impl Into<bytes::Bytes>,
    ) -> http::Response<Body> {
        let mut request = http::Request::builder().method(method.parse::<Method>().expect("method")).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(admin(), request.body(body.into()).expect("request")).await
    }

    pub async fn call(&self, method: &str, uri: &str, body: Value) -> (u16, Value) {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        self.typed(method, uri, kind, body).await
    }

    pub async fn typed(&self, method: &str, uri: &str, kind: &str, body: Value) -> (u16, Value) {
        let bytes = if body.is_null() { String::new() } else { body.to_string() };
        let response = self.raw(method, uri, &[("content-type", kind), ("user-agent", "test/1")], bytes).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("body").to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into())))
    }

    pub async fn get(&self, uri: &str) -> Value {
        let (code, value) = self.call("GET", uri, Value::Null).await;
        assert_eq!(code, 200, "{uri}: {value}");
        value
    }

    /// Waits until an object meets a condition.
    pub async fn until(&self, uri: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let looks = async {
            loop {
                let seen_at = self.store.current_revision();
                let object = self.get(uri).await;
                if wanted(&object) {
                    return object;
                }
                self.store.wait_for_revision(seen_at + 1).await.expect("an open store");
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), looks).await.expect("the object meets the condition")
    }

    pub async fn create(&self, uri: &str, body: Value) -> Value {
        let (code, value) = self.call("POST", uri, body).await;
        assert_eq!(code, 201, "{uri}: {value}");
        value
    }
}

pub fn admin() -> UserInfo {
    UserInfo::new("admin", [user::MASTERS])
}

/// The lines of a watch.
pub struct Lines {
    body: Body,
    buffer: Vec<u8>,
}

impl Lines {
    pub fn new(response: http::Response<Body>) -> Self {
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), buffer: Vec::new() }
    }
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).expect("a JSON line"));
            }
            let frame = self.body.frame().await?.expect("frame");
            self.buffer.extend_from_slice(&frame.into_data().expect("data"));
        }
    }
    /// The next event of the watch as `TYPE name`.
    pub async fn event(&mut self) -> String {
        let event = self.next().await.expect("an event");
        format!(
            "{} {}",
            event["type"].as_str().unwrap_or(""),
            event["object"]["metadata"]["name"].as_str().unwrap_or("-")
        )
    }
}
