//! Tests of `kelson snapshot`.
use std::io::Write as _;

use kelson_store::{Body, Key, RecordMeta, Resource, Store, StoreOptions, Write};

use super::*;

/// Writes a snapshot as releases before bundles wrote it.
fn pack(store: &Path, file: &Path) -> anyhow::Result<()> {
    let packed = || -> std::io::Result<()> {
        let mut from = File::open(store)?;
        let mut to = private(OpenOptions::new().write(true).create_new(true)).open(file)?;
        let digest = copy(&mut from, &mut to, u64::MAX)?;
        to.write_all(&digest)?;
        to.sync_all()
    };
    packed().with_context(|| format!("write {}", file.display()))
}

#[test]
fn a_store_has_its_name_all_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let holds = |name: &str| fs::read_to_string(at(name).join(STORE_FILE)).ok();
    let make = |name: &str| {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join(STORE_FILE), name).unwrap();
    };
    let never = |_: &Path, _: &Path| -> std::io::Result<()> { panic!("there is nothing to exchange") };
    make("fresh");
    assert!(!put_in_place(&at("fresh"), &at("store"), &at("aside"), never).unwrap());
    make("second");
    let seen = |one: &Path, other: &Path| {
        assert!(one.exists() && other.exists(), "no name was given up before");
        exchange(one, other)
    };
    assert!(put_in_place(&at("second"), &at("store"), &at("aside"), seen).unwrap());
    assert_eq!((holds("store"), holds("aside")), (Some("second".into()), Some("fresh".into())));
    make("third");
    let unsupported = |_: &Path, _: &Path| Err(std::io::ErrorKind::Unsupported.into());
    assert!(put_in_place(&at("third"), &at("store"), &at("other"), unsupported).unwrap());
    assert_eq!((holds("store"), holds("other")), (Some("third".into()), Some("second".into())));
    make("fourth");
    let broken = |_: &Path, _: &Path| Err(std::io::ErrorKind::PermissionDenied.into());
    assert!(put_in_place(&at("fourth"), &at("store"), &at("more"), broken).is_err());
    assert_eq!(holds("store"), Some("third".into()), "nothing was moved");
    fs::create_dir_all(at(DIR).join("x")).unwrap();
    discard_unfetched(dir.path());
    discard_unfetched(dir.path());
    assert!(!at(DIR).exists());
}

#[tokio::test]
async fn a_copy_is_restored_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (dir.path().join("data"), dir.path().join("copy"));
    let store = Store::open_dir(&data.join("store"), StoreOptions::default()).unwrap();
    let body = Body::locate(r#"{"metadata":{"name":"a","resourceVersion":""}}"#).unwrap();
    let key = Key::new(Resource::parse("pods"), "default", "a");
    store.commit(Write::create(key, body, RecordMeta::with_uid("u"))).await.unwrap();
    store.save(&dir.path().join("made")).unwrap();
    store.close().await;
    pack(&dir.path().join("made").join(STORE_FILE), &file).unwrap();

    restore(&file, None, false, &data).unwrap();
    let restored = Store::open_dir(&data.join("store"), StoreOptions::default()).unwrap();
    assert_eq!(restored.count(Resource::parse("pods")), 1);
    restored.close().await;
    let aside = fs::read_dir(&data).unwrap().filter_map(Result::ok);
    assert_eq!(aside.filter(|e| e.file_name().to_string_lossy().starts_with("store.before-")).count(), 1);

    let whole = fs::read(&file).unwrap();
    let before = fs::read(data.join("store").join(STORE_FILE)).unwrap();
    for damage in [whole[..whole.len() - 1].to_vec(), whole[..20].to_vec(), {
        let mut flipped = whole.clone();
        flipped[5000] ^= 1;
        flipped
    }] {
        fs::write(&file, damage).unwrap();
        assert!(restore(&file, None, false, &data).is_err());
        assert_eq!(fs::read(data.join("store").join(STORE_FILE)).unwrap(), before, "nothing was touched");
    }
    let _lock = DataDirLock::take(&data).unwrap();
    fs::write(&file, &whole).unwrap();
    assert!(restore(&file, None, false, &data).unwrap_err().to_string().contains("in use"), "a server runs");
}

/// Makes a data directory with a store of one object and keys; returns its certificate of the CA.
async fn cluster(data: &Path) -> String {
    let store = Store::open_dir(&data.join("store"), StoreOptions::default()).unwrap();
    let body = Body::locate(r#"{"metadata":{"name":"a","resourceVersion":""}}"#).unwrap();
    let key = Key::new(Resource::parse("pods"), "default", "a");
    store.commit(Write::create(key, body, RecordMeta::with_uid("u"))).await.unwrap();
    store.save(&data.join("made")).unwrap();
    store.close().await;
    let options = kelson_pki::PkiOptions::new(data.join("pki"));
    let pki = kelson_pki::ClusterPki::open(&options, Timestamp::now()).unwrap();
    fs::write(data.join("network.json"), "{}").unwrap();
    pki.ca_bundle()
}

#[tokio::test]
async fn a_bundle_makes_an_empty_directory_the_same_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let (data, fresh, file) = (dir.path().join("data"), dir.path().join("fresh"), dir.path().join("bundle"));
    let ca = cluster(&data).await;
    let key = Passphrase::random("secret").unwrap();
    let contents = verify(&data.join("made"), &data).unwrap();
    write(&data, &data.join("made").join(STORE_FILE), &contents, Some(&key), &file).unwrap();
    assert!(write(&data, &data.join("made").join(STORE_FILE), &contents, Some(&key), &file).is_err(), "it exists");
    check(&file, Some(&key)).unwrap();
    let sealed = format!("{:#}", check(&file, None).unwrap_err());
    assert!(sealed.contains("its passphrase is required"), "{sealed}");

    for _ in 0..2 {
        restore(&file, Some(&key), false, &fresh).unwrap();
        let options = kelson_pki::PkiOptions::new(fresh.join("pki"));
        assert_eq!(kelson_pki::ClusterPki::open(&options, Timestamp::now()).unwrap().ca_bundle(), ca);
        let restored = Store::open_dir(&fresh.join("store"), StoreOptions::default()).unwrap();
        assert_eq!(restored.count(Resource::parse("pods")), 1);
        restored.close().await;
        assert_eq!(fs::read_to_string(fresh.join("network.json")).unwrap(), "{}");
        assert_eq!(kelson_platform::files::open_to_others(&fresh.join("pki").join("ca.key")), None);
    }
    // A server with an etcd member: the member is kept aside, and nothing is restored beside it.
    fs::create_dir_all(place::member_data(&fresh).join("member").join("wal")).unwrap();
    let beside = restore(&file, Some(&key), true, &fresh).unwrap_err().to_string();
    assert!(beside.contains("are in etcd"), "{beside}");
    restore(&file, Some(&key), false, &fresh).unwrap();
    assert!(!place::has_member(&fresh) && place::has_store(&fresh));
    let mut names = fs::read_dir(&fresh).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.starts_with("etcd.before-") && place::wal(&fresh.join(name).join("data")).exists()));

    let other = dir.path().join("other");
    let others = cluster(&other).await;
    fs::remove_dir_all(other.join("made")).unwrap();
    restore(&file, Some(&key), true, &other).unwrap();
    let options = kelson_pki::PkiOptions::new(other.join("pki"));
    assert_eq!(kelson_pki::ClusterPki::open(&options, Timestamp::now()).unwrap().ca_bundle(), others, "keys are kept");
    let mut bad = fs::read(&file).unwrap();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    fs::write(&file, bad).unwrap();
    let before = fs::read_dir(&fresh).unwrap().count();
    assert!(restore(&file, Some(&key), false, &fresh).is_err());
    assert_eq!(fs::read_dir(&fresh).unwrap().count(), before, "nothing was touched");
}
