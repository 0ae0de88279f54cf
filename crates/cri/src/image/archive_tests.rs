//! Archives in the formats of other tools, and damaged ones.

use std::io::Write as _;

use super::super::build::NewImage;
use super::super::tar::Writer;
use super::*;

fn images(bytes: &[u8], file_name: &str) -> Result<Vec<ArchivedImage>, ArchiveError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file_name);
    std::fs::write(&path, bytes).unwrap();
    Archive::open(&path)?.images()
}

fn built() -> Vec<u8> {
    let mut layer = Writer::new();
    layer.file("x", 0o644, b"content");
    NewImage { name: "a/b:1".into(), layers: vec![layer.finish()], ..Default::default() }.to_archive().unwrap()
}

#[test]
fn what_is_built_is_read_plain_and_packed() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&built()).unwrap();
    for (bytes, name) in [(built(), "i.tar"), (packed.finish().unwrap(), "i.tar.gz")] {
        let images = images(&bytes, name).unwrap();
        assert_eq!(images.len(), 1);
        assert_eq!(images[0].names, ["docker.io/a/b:1"]);
        assert_eq!(images[0].children.len(), 2);
        assert_eq!(gc_labels(&images[0])["containerd.io/gc.ref.content.l.0"], images[0].children[1].digest);
    }
}

#[test]
fn docker_save_is_read() {
    let mut tar = Writer::new();
    tar.file("abc.json", 0o644, b"{}").file("l/layer.tar", 0o644, &[0; 1024]);
    tar.file(
        "manifest.json",
        0o644,
        br#"[{"Config":"abc.json","RepoTags":["web:2","web:latest"],"Layers":["l/layer.tar"]}]"#,
    );
    let images = images(&tar.finish(), "d.tar").unwrap();
    assert_eq!(images[0].names, ["docker.io/library/web:2", "docker.io/library/web:latest"]);
    let BlobContent::Memory(manifest) = &images[0].manifest.content else { panic!("made here") };
    let manifest: Value = serde_json::from_slice(manifest).unwrap();
    assert_eq!(manifest["layers"][0]["digest"], digest(&[0; 1024]));
}

#[test]
fn a_name_is_taken_from_the_file_at_last() {
    let bytes = String::from_utf8(built()).unwrap();
    let plain = bytes.replace("io.containerd.image.name", "io.containerd.image.nope");
    // The names inside tar contents have the same length, so the header checksum of that member is still valid.
    assert_eq!(images(plain.as_bytes(), "web.tar").unwrap()[0].names, ["docker.io/library/web:1"]);
}

#[test]
fn damage_is_named() {
    let mut bytes = built();
    let at = bytes.windows(7).rposition(|w| w == b"content").unwrap();
    bytes[at] ^= 1;
    let message = images(&bytes, "i.tar").expect_err("damaged").to_string();
    assert!(message.contains("is damaged"), "{message}");
    let mut other = Writer::new();
    other.file("hello", 0o644, b"x");
    let message = images(&other.finish(), "i.tar").expect_err("no image").to_string();
    assert!(message.contains("not an image archive"), "{message}");
}

/// The content that a manifest of a layout describes.
enum Content<'a> {
    /// An image for this platform, by its configuration.
    Image(&'a str),
    /// Another artifact stored as a manifest, such as an SBOM.
    Artifact,
}

/// A layout that is being built: blobs by digest.
#[derive(Default)]
struct Layout(BTreeMap<String, Vec<u8>>);

impl Layout {
    fn blob(&mut self, content: Vec<u8>) -> Value {
        let pointer = json!({"digest": digest(&content), "size": content.len()});
        self.0.insert(digest(&content), content);
        pointer
    }

    /// Adds a manifest, with a distinct layer that identifies it.
    fn manifest(&mut self, mark: &str, content: &Content<'_>) -> Value {
        let (kind, config) = match content {
            Content::Image(platform) => {
                let mut parts = platform.split('/');
                let (os, architecture, variant) = (parts.next(), parts.next(), parts.next());
                let rootfs = json!({"type": "layers", "diff_ids": []});
                let config = json!({"os": os, "architecture": architecture, "variant": variant, "rootfs": rootfs});
                (media_type::CONFIG, config)
            }
            Content::Artifact => ("application/vnd.oci.empty.v1+json", json!({})),
        };
        let mut config = self.blob(config.to_string().into_bytes());
        config["mediaType"] = kind.into();
        let mut layer = self.blob(mark.as_bytes().to_vec());
        layer["mediaType"] = media_type::LAYER.into();
        let manifest =
            json!({"schemaVersion": 2, "mediaType": media_type::MANIFEST, "config": config, "layers": [layer]});
        let mut pointer = self.blob(manifest.to_string().into_bytes());
        pointer["mediaType"] = media_type::MANIFEST.into();
        pointer
    }

    fn index(&mut self, manifests: &[Value]) -> Value {
        let index = json!({"schemaVersion": 2, "mediaType": media_type::INDEX, "manifests": manifests});
        let mut pointer = self.blob(index.to_string().into_bytes());
        pointer["mediaType"] = media_type::INDEX.into();
        pointer
    }

    fn save(&self, top: &[Value]) -> Vec<u8> {
        let mut tar = Writer::new();
        tar.file("index.json", 0o644, json!({"manifests": top}).to_string().as_bytes());
        for (digest, content) in &self.0 {
            tar.file(&format!("blobs/{}", digest.replace(':', "/")), 0o644, content);
        }
        tar.finish()
    }
}

fn named(mut pointer: Value, name: &str) -> Value {
    pointer["annotations"] = json!({"io.containerd.image.name": name});
    pointer
}

fn for_platform(mut pointer: Value, platform: &str) -> Value {
    let mut parts = platform.split('/');
    pointer["platform"] = json!({"os": parts.next(), "architecture": parts.next(), "variant": parts.next()});
    pointer
}

/// Returns the layers' content of the images, which identifies the chosen manifest.
fn chosen(bytes: &[u8]) -> Result<Vec<String>, String> {
    let images = images(bytes, "x.tar").map_err(|e| e.to_string())?;
    let content = |image: &ArchivedImage| {
        let layer = &image.children[1];
        let BlobContent::File(at) = layer.content else { panic!("in the archive") };
        String::from_utf8_lossy(&bytes[at as usize..(at + layer.size) as usize]).into_owned()
    };
    Ok(images.iter().map(content).collect())
}

#[test]
fn the_manifest_is_chosen_as_containerd_chooses() {
    let own = format!("linux/{}", super::super::architecture());
    let foreign = if own == "linux/s390x" { "linux/ppc64le" } else { "linux/s390x" };
    let leveled = format!("{own}/v99");
    // Entries of an index: platform in the index, in the configuration (`-`: an artifact); and the chosen one.
    for (what, entries, expected) in [
        ("an SBOM before the image", &[("", "-"), ("", own.as_str())][..], "1"),
        ("images without a platform", &[("", foreign), ("", &own)], "1"),
        ("an empty platform is none", &[("/", foreign), ("/", &own)], "1"),
        ("a level beyond the plain one", &[(&leveled, &own), (&own, &own)], "1"),
        ("an attestation", &[("unknown/unknown", "-"), (&own, &own)], "1"),
        ("the index goes before the configuration", &[(foreign, &own), (&own, &own)], "1"),
        ("the first of the same", &[(&own, &own), (&own, &own)], "0"),
    ] {
        let mut layout = Layout::default();
        let mut manifests = Vec::new();
        for (at, (platform, config)) in entries.iter().enumerate() {
            let content = if *config == "-" { Content::Artifact } else { Content::Image(config) };
            let pointer = layout.manifest(&at.to_string(), &content);
            manifests.push(if platform.is_empty() { pointer } else { for_platform(pointer, platform) });
        }
        let index = layout.index(&manifests);
        let nested = layout.index(std::slice::from_ref(&index));
        for top in [index, nested] {
            assert_eq!(chosen(&layout.save(&[named(top, "a:1")])), Ok(vec![expected.to_owned()]), "{what}");
        }
    }
    let mut layout = Layout::default();
    let (foreign_image, artifact) =
        (layout.manifest("f", &Content::Image(foreign)), layout.manifest("s", &Content::Artifact));
    let error = chosen(&layout.save(&[named(foreign_image.clone(), "a:1")])).expect_err("for another machine");
    assert!(error.ends_with(&format!("no image for {own} in the archive: it is for {foreign}")), "{error}");
    let error = chosen(&layout.save(std::slice::from_ref(&artifact))).expect_err("no image at all");
    assert!(error.ends_with(&format!("no image for {own} in the archive")), "{error}");
    let image = layout.manifest("i", &Content::Image(&own));
    let both = layout.save(&[artifact, foreign_image, named(image, "a:1")]);
    assert_eq!(chosen(&both), Ok(vec!["i".to_owned()]), "beside others");
}

#[test]
fn images_without_a_name_do_not_take_each_others() {
    let own = format!("linux/{}", super::super::architecture());
    let mut layout = Layout::default();
    let (a, b) = (layout.manifest("a", &Content::Image(&own)), layout.manifest("b", &Content::Image(&own)));
    let names = |bytes: &[u8]| -> Vec<String> {
        images(bytes, "Web.tar.gz").unwrap().into_iter().flat_map(|i| i.names).collect()
    };
    let text = |pointer: &Value| format!("docker.io/library/web@{}", pointer["digest"].as_str().unwrap());
    assert_eq!(names(&layout.save(&[a.clone(), b.clone()])), [text(&a), text(&b)]);
    assert_eq!(
        names(&layout.save(&[a.clone(), named(b, "b:1")])),
        ["docker.io/library/web:latest", "docker.io/library/b:1"]
    );
    // The same rule for `docker save NAME ID`, and for skopeo's docker archives, which have no names.
    let docker = |tags: [Value; 2]| {
        let mut tar = Writer::new();
        let mut entries = Vec::new();
        for (at, tags) in tags.into_iter().enumerate() {
            tar.file(&format!("{at}.json"), 0o644, format!("{{\"n\": {at}}}").as_bytes());
            entries.push(json!({"Config": format!("{at}.json"), "RepoTags": tags, "Layers": []}));
        }
        tar.file("manifest.json", 0o644, json!(entries).to_string().as_bytes());
        names(&tar.finish())
    };
    assert_eq!(docker([json!(["a:1"]), json!(null)]), ["docker.io/library/a:1", "docker.io/library/web:latest"]);
    let nameless = docker([json!([]), json!(null)]);
    assert!(nameless.iter().all(|n| n.starts_with("docker.io/library/web@sha256:")) && nameless[0] != nameless[1]);
}

#[test]
fn images_are_known_by_their_digests_too() {
    let own = format!("linux/{}", super::super::architecture());
    let mut layout = Layout::default();
    let manifest = layout.manifest("a", &Content::Image(&own));
    let index = layout.index(std::slice::from_ref(&manifest));
    let mut expected: Vec<String> = [&manifest, &index]
        .map(|pointer| format!("localhost:5000/a/b@{}", pointer["digest"].as_str().unwrap()))
        .to_vec();
    expected.sort();
    let found = images(&layout.save(&[named(index, "localhost:5000/a/b:1")]), "x.tar").unwrap();
    assert_eq!(found[0].by_digest, expected);
}

#[test]
fn faults_name_the_file_once() {
    for (bytes, words) in [
        (&b"a text, and no archive at all"[..], "not a tar archive, or truncated"),
        (b"BZh91AY&SY", "bzip2 compression is not supported; decompress the archive first"),
        (&[0x1f, 0x8b, 8, 0, 1, 2], "its gzip content is truncated or damaged"),
    ] {
        let message = images(bytes, "x.tar").expect_err("no archive").to_string();
        assert!(message.contains(words) && message.matches("x.tar").count() == 1, "{message}");
        assert!(message.chars().all(|c| !c.is_control()), "{message:?}");
    }
}
