//! Bundles are read as they were written, or rejected with a typed error.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;

use kelson_bundle::{BundleError, FORMAT, Manifest, Passphrase, StoreSummary, Writer, extract};
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};

fn manifest() -> Manifest {
    Manifest {
        format: FORMAT,
        kelson_version: "0.1.0".into(),
        kubernetes_version: "v1.36.2".into(),
        created: "2026-11-28T06:00:00Z".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
        store: Some(StoreSummary { revision: 7, objects: 3, kinds: 2, encrypted: 1 }),
    }
}

fn secret() -> Passphrase {
    Passphrase::random("correct horse battery staple").unwrap()
}

fn packed(key: Option<&Passphrase>, entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), key, &manifest()).unwrap();
    for (name, bytes) in entries {
        writer.add_bytes(name, bytes).unwrap();
    }
    writer.finish().unwrap()
}

fn read(bundle: &[u8], key: Option<&Passphrase>) -> Result<Vec<(String, Vec<u8>)>, BundleError> {
    let dir = tempfile::tempdir().unwrap();
    let extracted = extract(bundle, key, dir.path())?;
    assert_eq!(extracted.manifest, manifest());
    let files = extracted.entries.iter().skip(1);
    Ok(files.map(|e| (e.name.clone(), fs::read(dir.path().join(&e.name)).unwrap())).collect())
}

fn some(rng: &mut StdRng) -> Vec<(String, Vec<u8>)> {
    // Sizes around the limits of blocks, chunks and buffers.
    let sizes = [0, 1, 511, 512, 513, 65_535, 65_536, 65_537, 130_000, 262_144, 300_001];
    let count = rng.random_range(0..5);
    (0..count)
        .map(|i| {
            let mut bytes = vec![0; sizes[rng.random_range(0..sizes.len())]];
            rng.fill_bytes(&mut bytes);
            (format!("pki/d{i}/file-{i}.key"), bytes)
        })
        .collect()
}

#[test]
fn any_content_is_read_as_it_was_written() {
    let mut rng = StdRng::seed_from_u64(41);
    let key = secret();
    for _ in 0..40 {
        let entries = some(&mut rng);
        for key in [Some(&key), None] {
            assert_eq!(read(&packed(key, &entries), key).unwrap(), entries);
        }
    }
}

#[test]
fn no_changed_or_truncated_bundle_is_read_and_none_panics() {
    let mut rng = StdRng::seed_from_u64(42);
    let key = secret();
    for round in 0..300 {
        let key = (round % 2 == 0).then_some(&key);
        let whole = packed(key, &some(&mut rng));
        let mut bad = whole.clone();
        match rng.random_range(0..3) {
            0 => bad.truncate(rng.random_range(0..whole.len())),
            1 => bad[rng.random_range(0..whole.len())] ^= 1 << rng.random_range(0..8),
            _ => bad.push(0),
        }
        let result = read(&bad, key);
        // The padding and the owner of a file in an unsealed archive may change; what is read then is what was written.
        match (key, result) {
            (Some(_), Ok(_)) => panic!("round {round}: a changed sealed bundle was read"),
            (None, Ok(entries)) => assert_eq!(entries, read(&whole, None).unwrap(), "round {round}"),
            (_, Err(_)) => {}
        }
    }
}

#[test]
fn the_error_says_what_is_wrong() {
    let key = secret();
    let entries = [("pki/ca.key".to_owned(), vec![7; 200_000])];
    let sealed = packed(Some(&key), &entries);
    let other = Passphrase::random("another").unwrap();
    assert!(matches!(read(&sealed, Some(&other)), Err(BundleError::WrongPassphrase)));
    assert!(matches!(read(&sealed, None), Err(BundleError::Sealed)));
    assert!(matches!(read(&sealed[..sealed.len() - 1], Some(&key)), Err(BundleError::Damaged(_))));
    assert!(matches!(read(&sealed[..40], Some(&key)), Err(BundleError::Truncated)));
    assert!(matches!(read(b"", None), Err(BundleError::Truncated)));
    assert!(matches!(read(&[b'x'; 4096], None), Err(BundleError::Malformed(_))));
    let open = packed(None, &entries);
    assert!(matches!(read(&open[..open.len() - 2048], None), Err(BundleError::Truncated)));
    let mut flipped = open.clone();
    let at = flipped.windows(4).position(|w| w == [7; 4]).unwrap();
    flipped[at] = 8;
    assert!(matches!(read(&flipped, None), Err(BundleError::Damaged(_))));
    // A work factor that would take all memory.
    let text = String::from_utf8_lossy(&sealed[..120]).into_owned();
    let at = text.find(" 10\n").unwrap();
    let huge = [&sealed[..at], b" 63\n", &sealed[at + 4..]].concat();
    assert!(matches!(read(&huge, Some(&key)), Err(BundleError::Limit { .. })));
    let newer =
        Writer::new(Vec::new(), None, &Manifest { format: FORMAT + 1, ..manifest() }).unwrap().finish().unwrap();
    assert!(matches!(read(&newer, None), Err(BundleError::Format { .. })));
}

/// An archive with one header as a hostile file has it.
fn hostile(name: &str, size: u64, kind: tar::EntryType) -> Vec<u8> {
    let whole = packed(None, &[]);
    let manifest_blocks = 512 + 512;
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header.set_entry_type(kind);
    header.set_cksum();
    [&whole[..manifest_blocks], header.as_bytes(), &[0; 2048]].concat()
}

#[test]
fn hostile_entries_are_rejected_and_nothing_is_written_outside() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("inner");
    fs::create_dir(&dir).unwrap();
    let regular = tar::EntryType::Regular;
    for name in ["../evil", "/tmp/evil", "pki/../../evil", "..", "bundle.json"] {
        let result = extract(&hostile(name, 3, regular)[..], None, &dir);
        assert!(matches!(result, Err(BundleError::Name(_))), "{name}: {result:?}");
    }
    let huge = extract(&hostile("pki/big", u64::MAX >> 2, regular)[..], None, &dir);
    assert!(matches!(huge, Err(BundleError::Limit { .. })), "{huge:?}");
    let sums = extract(&hostile("SHA256SUMS", 1 << 30, regular)[..], None, &dir);
    assert!(matches!(sums, Err(BundleError::Limit { .. })), "{sums:?}");
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::Directory, tar::EntryType::GNULongName]
    {
        let result = extract(&hostile("pki/x", 3, kind)[..], None, &dir);
        assert!(matches!(result, Err(BundleError::Malformed(_))), "{kind:?}: {result:?}");
    }
    assert!(!Path::new("/tmp/evil").exists() && fs::read_dir(outer.path()).unwrap().count() == 1);
}

#[test]
fn a_name_is_used_once_and_never_that_of_the_digests() {
    let mut writer = Writer::new(Vec::new(), None, &manifest()).unwrap();
    writer.add_bytes("pki/a", b"1").unwrap();
    for name in ["pki/a", "SHA256SUMS", "bundle.json", "../a"] {
        assert!(matches!(writer.add_bytes(name, b"2"), Err(BundleError::Name(_))), "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    let gone = writer.add_file("pki/b", &dir.path().join("none"));
    assert!(matches!(gone, Err(BundleError::Io { .. })));
}
