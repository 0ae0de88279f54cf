//! Encryption at rest: in etcd there is what the reference would have put there with the same configuration.

use std::sync::Arc;

use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_store::{AtRest, Write};
use kelson_tasks::Tasks;
use serde_json::json;
use tempfile::TempDir;

use super::fixture::{Etcd, body, key, meta, resource};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

async fn encryption(dir: &TempDir, providers: serde_json::Value, tasks: &Tasks) -> Arc<dyn AtRest> {
    let file = dir.path().join("encryption.json");
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}]});
    std::fs::write(&file, config.to_string()).unwrap();
    let options = EncryptionOptions {
        file,
        automatic_reload: false,
        server_id: "a".into(),
        prefix: "/registry".into(),
        tasks: tasks.clone(),
    };
    Encryption::start(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_sealed_in_etcd_and_clear_to_those_who_have_the_key() {
    let etcd = Etcd::start().await;
    let (dir, tasks) = (TempDir::new().unwrap(), Tasks::root("test"));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": "c2VjcmV0"}, "type": "Opaque",
        "metadata": {"name": "s", "namespace": "default", "resourceVersion": ""}});
    let keys = |provider: &str| json!({provider: {"keys": [{"name": "one", "secret": KEY}]}});
    for (provider, prefix) in [
        ("aescbc", "k8s:enc:aescbc:v1:one:"),
        ("aesgcm", "k8s:enc:aesgcm:v1:one:"),
        ("secretbox", "k8s:enc:secretbox:v1:one:"),
    ] {
        let sealer = encryption(&dir, json!([keys(provider), {"identity": {}}]), &tasks).await;
        let store = etcd.try_open(Some(Arc::clone(&sealer))).await.unwrap();
        let name = key("secrets", provider);
        let mut secret = secret.clone();
        secret["metadata"]["name"] = provider.into();
        store.commit(Write::create(name, body(&secret), meta())).await.unwrap();
        let stored = etcd.value(&format!("/registry/secrets/default/{provider}")).await.unwrap();
        let sealed = stored.strip_prefix(prefix.as_bytes()).unwrap();
        assert!(!sealed.windows(6).any(|w| w == b"secret" || w == b"c2Vjcm"), "{provider}");
        let other = etcd.try_open(Some(sealer)).await.unwrap();
        let seen = other.get(resource("secrets"), "default", provider).unwrap();
        // Read from etcd, fields have their declared order, and not that of this test's body.
        let tree = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        let written = store.get(resource("secrets"), "default", provider).unwrap();
        assert_eq!(tree(&seen.bytes()), tree(&written.bytes()));
        assert!(!other.is_stale(&seen));
        // Who lacks the key does not start: it would look as if there were no such secret.
        let refused = etcd.try_open(None).await.err().unwrap().to_string();
        assert!(refused.contains("encryption-provider-config"), "{refused}");
        let delete = Write::delete(key("secrets", provider), kelson_store::Precondition::Any);
        store.commit(delete).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_clear_is_read_where_the_configuration_says_so_alone() {
    let etcd = Etcd::start().await;
    let (dir, tasks) = (TempDir::new().unwrap(), Tasks::root("test"));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "clear", "namespace": "default"}});
    etcd.put("/registry/secrets/default/clear", secret.to_string().as_bytes()).await;
    let keys = json!({"aesgcm": {"keys": [{"name": "one", "secret": KEY}]}});
    let strict = encryption(&dir, json!([keys]), &tasks).await;
    let refused = etcd.try_open(Some(strict)).await.err().unwrap().to_string();
    assert!(refused.contains("no matching prefix found"), "{refused}");
    let migrating = encryption(&dir, json!([keys, {"identity": {}}]), &tasks).await;
    let store = etcd.try_open(Some(migrating)).await.unwrap();
    assert!(store.get(resource("secrets"), "default", "clear").is_some());
}
