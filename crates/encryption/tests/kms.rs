//! Tests with a simulated key service on a Unix socket and a store on disk: rotation, expiry, health, decryption after
//! a restart, and reload of the configuration.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_store::{Body, Key, RecordMeta, Resource, SealError, Store, StoreError, StoreOptions, Write};
use kelson_tasks::Tasks;

mod service;

use service::KeyService;

fn key(resource: &str, name: &str) -> Key {
    Key::new(Resource::parse(resource), "default", name)
}

fn create(resource: &str, name: &str) -> Write {
    let json = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"data":"hidden-{name}"}}"#);
    Write::create(key(resource, name), Body::locate(json).unwrap(), RecordMeta::with_uid("u"))
}

fn config(resources: &str, providers: &[String]) -> String {
    let providers: String = providers.iter().map(|p| format!("  - {p}\n")).collect();
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: {resources}\n  providers:\n{providers}"
    )
}

fn cbc(name: &str) -> String {
    format!("aescbc: {{keys: [{{name: {name}, secret: AAECAwQFBgcICQoLDA0ODw==}}]}}")
}

async fn encryption(file: &Path, reload: bool) -> Result<Arc<Encryption>, kelson_encryption::ConfigError> {
    let (file, tasks) = (file.to_path_buf(), Tasks::root("test"));
    Encryption::start(EncryptionOptions {
        file,
        automatic_reload: reload,
        server_id: "a".into(),
        prefix: "/registry".into(),
        tasks,
    })
    .await
}

async fn open(dir: &Path, encryption: Arc<Encryption>) -> Result<Store, StoreError> {
    let (dir, options) = (dir.to_path_buf(), StoreOptions { at_rest: Some(encryption), ..StoreOptions::default() });
    kelson_tasks::FILES.run(move || Store::open_dir(&dir, options)).await.unwrap()
}

/// Everything on the disk.
fn bytes_of(dir: &Path) -> Vec<u8> {
    ["store.db", "store.db-wal"].iter().flat_map(|f| std::fs::read(dir.join(f)).unwrap_or_default()).collect()
}

fn shows(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_asked_for_seeds_and_for_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let service = KeyService::start(&dir.path().join("kms.sock")).await;
    let file = dir.path().join("encryption.yaml");
    std::fs::write(&file, config("[secrets]", &[service.provider()])).unwrap();
    let store_dir = dir.path().join("store");

    let with = encryption(&file, false).await.unwrap();
    assert!(with.has_check());
    assert_eq!(with.check(), Ok(()));
    let store = open(&store_dir, with).await.unwrap();
    for n in 0..20 {
        store.commit(create("secrets", &format!("s{n}"))).await.unwrap();
    }
    store.commit(create("configmaps", "c")).await.unwrap();
    assert_eq!(service.calls(), (1, 0), "one seed for all of them");
    store.close().await;
    let disk = bytes_of(&store_dir);
    assert!(shows(&disk, "k8s:enc:kms:v2:tests:") && !shows(&disk, "hidden-s") && shows(&disk, "hidden-c"));

    // After a restart the service decrypts that seed once.
    let with = encryption(&file, false).await.unwrap();
    let store = open(&store_dir, Arc::clone(&with)).await.unwrap();
    assert_eq!((store.count(Resource::parse("secrets")), service.calls()), (20, (2, 1)));
    let record = store.get(Resource::parse("secrets"), "default", "s3").unwrap();
    assert!(!store.is_stale(&record), "a new seed under the same key does not make values stale");
    let text = with.metrics().text();
    for series in [
        "apiserver_storage_transformation_operations_total{resource=\"secrets\",status=\"OK\",transformation_type=\"from_storage\",transformer_prefix=\"k8s:enc:kms:v2:tests:\"} 20",
        "apiserver_envelope_encryption_kms_operations_latency_seconds_count{grpc_status_code=\"OK\",method_name=\"/v2.KeyManagementService/Decrypt\",provider_name=\"tests\"} 1",
    ] {
        assert!(text.contains(series), "{series}\n{text}");
    }
    store.close().await;

    // Without the service nothing is served that it alone can decrypt; everything else is.
    service.refuse(true);
    let with = encryption(&file, false).await.unwrap();
    assert!(with.check().unwrap_err().starts_with("kms-provider-0: "));
    let store = open(&store_dir, Arc::clone(&with)).await.unwrap();
    let secrets = Resource::parse("secrets");
    assert_eq!((store.count(Resource::parse("configmaps")), store.count(secrets)), (1, 0));
    let why = store.locked(secrets).unwrap();
    assert!(matches!(&why, SealError::Unavailable(why) if why.contains("failed to decrypt DEK")), "{why:?}");
    assert!(matches!(store.commit(create("secrets", "more")).await, Err(StoreError::Sealed(_))));
    service.refuse(false);
    store.run_unlock().await;
    assert_eq!((store.count(secrets), store.locked(secrets)), (20, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_an_older_key_are_stale() {
    let dir = tempfile::tempdir().unwrap();
    let service = KeyService::start(&dir.path().join("kms.sock")).await;
    let file = dir.path().join("encryption.yaml");
    std::fs::write(&file, config("['*.*']", &[service.provider()])).unwrap();
    let with = encryption(&file, true).await.unwrap();
    let store = open(&dir.path().join("store"), Arc::clone(&with)).await.unwrap();
    let old = store.commit(create("example.com/things", "t")).await.unwrap().record;
    assert!(!store.is_stale(&old));
    service.rotate("key-2");
    // Reading the health check starts a new check of the service once the status is outdated; here the file has
    // changed.
    std::fs::write(&file, config("['*.*']", &[service.provider()]) + "\n# again\n").unwrap();
    with.reload().await;
    assert!(store.is_stale(&old), "written under key-1");
    let new = store.commit(create("example.com/things", "u")).await.unwrap().record;
    assert!(!store.is_stale(&new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_taken_up_when_it_is_sound_and_its_services_are_well() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("encryption.yaml");
    std::fs::write(&file, config("[secrets]", &["identity: {}".to_owned()])).unwrap();
    let with = encryption(&file, true).await.unwrap();
    let store_dir = dir.path().join("store");
    let store = open(&store_dir, Arc::clone(&with)).await.unwrap();
    let clear = store.commit(create("secrets", "one")).await.unwrap().record;
    assert!(!store.is_stale(&clear));

    for broken in ["", "kind: x", &config("[secrets]", &["aescbc: {keys: []}".to_owned()])] {
        std::fs::write(&file, broken).unwrap();
        with.reload().await;
        assert!(!store.is_stale(&clear), "{broken:?} was taken up");
    }
    let failures = "automatic_reloads_total{apiserver_id_hash=\"sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\",status=\"failure\"} 3";
    assert!(with.metrics().text().contains(failures), "{}", with.metrics().text());

    std::fs::write(&file, config("[secrets]", &[cbc("k1"), "identity: {}".to_owned()])).unwrap();
    with.reload().await;
    assert!(store.is_stale(&clear), "it lies there in the clear");
    store.commit(create("secrets", "two")).await.unwrap();
    store.close().await;
    let disk = bytes_of(&store_dir);
    assert!(shows(&disk, "k8s:enc:aescbc:v1:k1:") && shows(&disk, "hidden-one") && !shows(&disk, "hidden-two"));

    // The reverse order, and back: any key in the list decrypts stored values, at any position.
    std::fs::write(&file, config("[secrets]", &["identity: {}".to_owned(), cbc("k0"), cbc("k1")])).unwrap();
    let store = open(&store_dir, encryption(&file, false).await.unwrap()).await.unwrap();
    let two = store.get(Resource::parse("secrets"), "default", "two").unwrap();
    assert!(store.is_stale(&two), "new values are in the clear now");
    store.close().await;
    std::fs::write(&file, config("[secrets]", &[cbc("k9"), "identity: {}".to_owned()])).unwrap();
    let Err(StoreError::Open(why)) = open(&store_dir, encryption(&file, false).await.unwrap()).await else {
        panic!("opened without the key")
    };
    assert!(why.to_string().contains("k8s:enc:aescbc:v1:k1"), "{why}");
}

#[tokio::test]
async fn an_entry_that_an_earlier_one_masks_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("encryption.yaml");
    let both = format!(
        "{}- resources: [secrets]\n  providers: [{{identity: {{}}}}]\n",
        config("['*.*']", &["identity: {}".to_owned()])
    );
    std::fs::write(&file, both).unwrap();
    let why = encryption(&file, false).await.err().unwrap().to_string();
    assert!(why.ends_with("resource \"secrets\" is masked by earlier rule \"*.*\""), "{why}");
}
