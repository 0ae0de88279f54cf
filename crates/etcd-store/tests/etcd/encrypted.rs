//! Encryption at rest: in etcd there is what the reference would have put there with the same configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_store::{AtRest, Key, Opened, Resource, SealError, Sealed, Store, StoreError, Write, Writer};
use kelson_tasks::Tasks;
use serde_json::json;
use tempfile::TempDir;

use super::fixture::{Etcd, body, create, key, meta, resource, shown, until, update};

pub const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub async fn encryption(dir: &TempDir, providers: serde_json::Value, tasks: &Tasks) -> Arc<dyn AtRest> {
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

const PREFIX: &[u8] = b"k8s:enc:test:";

/// Encrypts secrets (by turning bits around), and can be away for reads.
#[derive(Default)]
struct KeyService(AtomicBool);

impl AtRest for KeyService {
    fn writer(&self, resource: Resource) -> Option<Writer> {
        Some(if self.reads_clear(resource) { Writer::CLEAR } else { Writer(1) })
    }
    fn reads_clear(&self, resource: Resource) -> bool {
        resource.as_str() != "secrets"
    }
    fn seal(&self, _: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError> {
        let turned: Vec<u8> = plain.iter().map(|b| b ^ 0xff).collect();
        Ok(Some(Sealed { bytes: [PREFIX, &turned].concat(), writer: Writer(1) }))
    }
    fn open(&self, _: &Key, sealed: &[u8]) -> Result<Opened, SealError> {
        if self.0.load(Ordering::SeqCst) {
            return Err(SealError::Unavailable("connection refused".to_owned()));
        }
        Ok(Opened { plain: sealed[PREFIX.len()..].iter().map(|b| b ^ 0xff).collect(), writer: Writer(1) })
    }
}

async fn create_secret(store: &Store, name: &str) -> Result<u64, StoreError> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "namespace": "default", "resourceVersion": ""}});
    let write = Write::create(key("secrets", name), body(&secret), meta());
    store.commit(write).await.map(|committed| committed.revision)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_service_that_is_away_locks_what_it_encrypts_and_nothing_else() {
    let etcd = Etcd::start().await;
    let (service, secrets) = (Arc::new(KeyService::default()), resource("secrets"));
    let follows = etcd.try_open(Some(service.clone())).await.unwrap();
    let made = create(&follows, "m", "1").await.unwrap();
    create_secret(&follows, "s").await.unwrap();

    service.0.store(true, Ordering::SeqCst);
    let late = etcd.try_open(Some(service.clone())).await.unwrap();
    assert_eq!(shown(&late, "m").as_deref(), Some("1"), "it starts, and shows everything else");
    assert!(late.locked(secrets).is_some() && late.get(secrets, "default", "s").is_none());
    assert!(matches!(create_secret(&late, "s").await, Err(StoreError::Sealed(_))));
    assert!(late.health().not_ready().is_some() && late.health().not_alive().is_none());

    // A value that another server writes meanwhile cannot be read, which must not appear as a deletion.
    let mut watch = follows.watch(secrets, follows.current_revision()).unwrap();
    let other = etcd.try_open(Some(Arc::new(KeyService::default()))).await.unwrap();
    create_secret(&other, "t").await.unwrap();
    until("the resource is locked", || follows.locked(secrets).is_some()).await;
    assert!(matches!(watch.next().await, Err(StoreError::Compacted { .. })));
    update(&follows, "m", made.revision, "2").await.unwrap();

    service.0.store(false, Ordering::SeqCst);
    for store in [&follows, &late] {
        until("it is unlocked", || store.locked(secrets).is_none()).await;
        assert_eq!(store.count(secrets), 2);
        assert_eq!(shown(store, "m").as_deref(), Some("2"));
    }
    create_secret(&late, "u").await.unwrap();
    until("the watch goes on", || follows.get(secrets, "default", "u").is_some()).await;
}
