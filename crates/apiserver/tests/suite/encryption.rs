//! Encryption at rest in the whole request path: the stored bytes, rewriting by updates, the health check, and snapshots of the running
//! server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::Api;
use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_store::{AtRest, Key, Opened, Resource, SealError, Sealed, Store, StoreOptions, Writer};
use kelson_tasks::{FILES, Tasks};
use serde_json::{Value, json};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn configuration(keys: &[&str]) -> String {
    let keys: String = keys.iter().map(|k| format!("{{name: {k}, secret: AAECAwQFBgcICQoLDA0ODw==}}, ")).collect();
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets, '*.example.com']\n  providers:\n  - aesgcm: {{keys: [{keys}]}}\n  - identity: {{}}\n"
    )
}

/// All bytes of a store on disk.
fn disk(dir: &Path) -> Vec<u8> {
    ["store.db", "store.db-wal"].iter().flat_map(|f| std::fs::read(dir.join(f)).unwrap_or_default()).collect()
}

fn shows(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

async fn start(file: &Path, dir: &Path) -> (Api, Arc<Encryption>) {
    let (file, tasks) = (file.to_path_buf(), Tasks::root("test"));
    let options =
        EncryptionOptions { file, automatic_reload: true, server_id: "a".into(), prefix: "/registry".into(), tasks };
    let encryption = Encryption::start(options).await.expect("a valid configuration");
    let (store_dir, at_rest) = (dir.join("store"), Arc::clone(&encryption));
    let open = move || {
        Store::open_dir(&store_dir, StoreOptions { at_rest: Some(at_rest), ..StoreOptions::default() }).expect("opens")
    };
    let store = FILES.run(open).await.expect("a lane");
    let check = Arc::clone(&encryption);
    let snapshots = dir.join("snapshots");
    let api = Api::on(store, |config| {
        config.checks.push(("kms-providers", Arc::new(move || check.check())));
        config.registries.push(encryption.metrics());
        config.snapshots = Some(snapshots);
    })
    .await;
    (api, encryption)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_and_custom_resources_are_encrypted_and_rewritten_under_a_new_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("encryption.yaml");
    std::fs::write(&file, configuration(&["k1"])).expect("writes");
    let (api, encryption) = start(&file, dir.path()).await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let secret = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {"l": "hidden-label"}},
            "type": "hidden/type", "stringData": {"k": "hidden-secret"}})
    };
    api.create(SECRETS, secret("s")).await;
    let things = "/apis/example.com/v1/namespaces/default/things";
    api.create(
        things,
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"},
        "spec": "hidden-thing"}),
    )
    .await;
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "in the clear"}});
    api.create("/api/v1/namespaces/default/configmaps", map).await;
    let bytes = disk(&dir.path().join("store"));
    for hidden in ["hidden-label", "hidden/type", "hidden-thing", "aGlkZGVuLXNlY3JldA"] {
        assert!(!shows(&bytes, hidden), "{hidden} is on the disk");
    }
    assert!(shows(&bytes, "k8s:enc:aesgcm:v1:k1:") && shows(&bytes, "in the clear"));

    // An update without changes writes nothing, unless the stored object is encrypted with another key.
    let uri = format!("{SECRETS}/s");
    let before = api.get(&uri).await;
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    let (code, same) = api.call("PUT", &uri, before.clone()).await;
    assert_eq!((code, version(&same)), (200, version(&before)));
    std::fs::write(&file, configuration(&["k2", "k1"])).expect("writes");
    encryption.reload().await;
    let (code, rewritten) = api.call("PUT", &uri, before.clone()).await;
    assert_eq!(code, 200, "{rewritten}");
    assert_ne!(version(&rewritten), version(&before), "rewritten");
    let (_, same) = api.call("PUT", &uri, rewritten.clone()).await;
    assert_eq!(version(&same), version(&rewritten));
    assert!(shows(&disk(&dir.path().join("store")), "k8s:enc:aesgcm:v1:k2:"));

    assert_eq!(api.call("GET", "/healthz/kms-providers", Value::Null).await, (200, "ok".into()));
    let metrics = api.call("GET", "/metrics", Value::Null).await.1;
    let series = "apiserver_storage_transformation_operations_total{resource=\"things.example.com\",status=\"OK\",\
                  transformation_type=\"to_storage\",transformer_prefix=\"k8s:enc:aesgcm:v1:\"} 1";
    assert!(metrics.as_str().is_some_and(|text| text.contains(series)), "{metrics}");

    // A snapshot of the running server is encrypted like its store.
    let (code, copy) = api.call("POST", "/kelson/snapshots", Value::Null).await;
    assert_eq!(code, 201, "{copy}");
    let made = Path::new(copy["path"].as_str().expect("a path"));
    let contents = kelson_store::verify(made).expect("a complete snapshot");
    assert_eq!((contents.records["secrets"], contents.encrypted), (1, 2));
    assert!(!shows(&disk(made), "hidden-thing"));
    let jane = kelson_auth::UserInfo::new("jane", ["system:authenticated"]);
    let request = http::Request::builder().method("POST").uri("/kelson/snapshots").body(Default::default());
    assert_eq!(api.send(jane, request.expect("a request")).await.status(), 403, "only administrators");

    api.store.close().await;
    drop(api);
    std::fs::write(&file, configuration(&["k2"])).expect("writes");
    let options = EncryptionOptions {
        file,
        automatic_reload: false,
        server_id: "a".into(),
        prefix: "/registry".into(),
        tasks: Tasks::root("test"),
    };
    let encryption = Encryption::start(options).await.expect("a valid configuration");
    let store_dir = dir.path().join("store");
    let open =
        move || Store::open_dir(&store_dir, StoreOptions { at_rest: Some(encryption), ..StoreOptions::default() });
    let refused =
        FILES.run(open).await.expect("a lane").err().expect("objects under k1 cannot be read without the key");
    assert!(refused.to_string().contains("example.com/things/default/t"), "{refused}");
}

/// Encrypts secrets, whose key service can be away.
#[derive(Default)]
struct KeyService(std::sync::atomic::AtomicBool);

impl AtRest for KeyService {
    fn writer(&self, resource: Resource) -> Option<Writer> {
        Some(if self.reads_clear(resource) { Writer::CLEAR } else { Writer(1) })
    }
    fn reads_clear(&self, resource: Resource) -> bool {
        resource.as_str() != "secrets"
    }
    fn seal(&self, _: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError> {
        Ok(Some(Sealed { bytes: plain.iter().map(|b| b ^ 0xff).collect(), writer: Writer(1) }))
    }
    fn open(&self, _: &Key, sealed: &[u8]) -> Result<Opened, SealError> {
        if self.0.load(Ordering::SeqCst) {
            return Err(SealError::Unavailable("failed to decrypt DEK, error: connection refused".to_owned()));
        }
        Ok(Opened { plain: sealed.iter().map(|b| b ^ 0xff).collect(), writer: Writer(1) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_starts_without_its_key_service_and_serves_everything_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = Arc::new(KeyService::default());
    let open = async || {
        let (store_dir, at_rest) = (dir.path().join("store"), Arc::clone(&service));
        let open = move || Store::open_dir(&store_dir, StoreOptions { at_rest: Some(at_rest), ..Default::default() });
        FILES.run(open).await.expect("a lane").expect("opens")
    };
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    let api = Api::on(open().await, |_| {}).await;
    api.create(SECRETS, secret("s")).await;
    api.store.close().await;
    drop(api);

    service.0.store(true, Ordering::SeqCst);
    let api = Api::on(open().await, |_| {}).await;
    let one = format!("{SECRETS}/s");
    let asked = [("GET", SECRETS, Value::Null), ("GET", &one, Value::Null), ("POST", SECRETS, secret("t"))];
    for (method, uri, body) in asked.into_iter().chain([("DELETE", one.as_str(), Value::Null)]) {
        let (code, status) = api.call(method, uri, body).await;
        assert_eq!((code, status["reason"].as_str()), (500, Some("InternalError")), "{method} {uri}: {status}");
        assert!(status["message"].as_str().is_some_and(|why| why.contains("failed to decrypt DEK")), "{status}");
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}});
    api.create("/api/v1/namespaces/default/configmaps", map).await;
    assert_eq!(api.call("GET", "/livez", Value::Null).await.0, 200, "a restart would not help");
    assert_eq!(api.call("GET", "/readyz", Value::Null).await.0, 500);
    let of_storage = "poststarthook/storage-readiness";
    let single = |endpoint: &str| format!("/{endpoint}/{of_storage}");
    assert_eq!(api.call("GET", &single("livez"), Value::Null).await.0, 200);
    let (code, why) = api.call("GET", &single("readyz"), Value::Null).await;
    assert_eq!((code, why), (500, "internal server error: not finished\n".into()));

    service.0.store(false, Ordering::SeqCst);
    while api.store.locked(Resource::parse("secrets")).is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(api.get(&one).await["metadata"]["name"], "s");
    api.create(SECRETS, secret("t")).await;
    assert_eq!(api.call("GET", "/readyz", Value::Null).await.0, 200);
}
