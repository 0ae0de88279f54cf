//! A real registry (Debian's `docker-registry`) on loopback, with passwords, and images that are written directly into
//! its storage, without a push.
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{free_port, repo_root};

/// The maximum time until the registry listens.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A user who may pull.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// The user name.
    pub name: &'static str,
    /// The password in plain text.
    pub password: &'static str,
    /// Its bcrypt hash, the only kind the registry accepts.
    hash: &'static str,
}

/// The user whose images most tests pull.
pub const PULLER: User = User {
    name: "puller",
    password: "sw0rdfish-Puller-7Qx2",
    hash: "$2b$05$abcdefghijklmnopqrstuuiyEFtkl1dMy/KS1rXq4TeNzcsqafEhy",
};
/// A second user, so that one can request the images of the other.
pub const TENANT: User = User {
    name: "tenant",
    password: "hunter2-Tenant-9Zk4",
    hash: "$2b$05$abcdefghijklmnopqrstuu/.XLKnhKQlv5WCkYpYs5rX97wnnw0y.",
};

impl User {
    /// Returns the user with another password, which the registry rejects.
    pub fn with_password(self, password: &'static str) -> Self {
        Self { password, ..self }
    }

    /// Returns `name:password` for the header.
    pub fn basic(&self) -> String {
        base64(format!("{}:{}", self.name, self.password).as_bytes())
    }
}

/// A running registry; ends when dropped.
pub struct Registry {
    /// Address and port in names of images.
    pub host: String,
    dir: tempfile::TempDir,
    child: Child,
}

/// The blobs of an image derived from the test image.
pub struct DerivedImage {
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
    /// The configuration's bytes.
    pub config: Vec<u8>,
    /// The bytes of the only layer.
    pub layer: Vec<u8>,
}

impl Registry {
    /// Starts it; every user of this module may pull everything.
    pub fn start() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("kelson-registry-").tempdir()?;
        let port = free_port()?;
        let host = format!("127.0.0.1:{port}");
        let users: String = [PULLER, TENANT].iter().map(|u| format!("{}:{}\n", u.name, u.hash)).collect();
        fs::write(dir.path().join("htpasswd"), users)?;
        let config = json!({
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": dir.path().join("storage")}},
            "http": {"addr": host},
            "auth": {"htpasswd": {"realm": "test", "path": dir.path().join("htpasswd")}},
        });
        // JSON is also YAML.
        fs::write(dir.path().join("config.yml"), config.to_string())?;
        let log = fs::File::create(dir.path().join("log"))?;
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start docker-registry (Debian package of this name)")?;
        let mut registry = Self { host, dir, child };
        let started = Instant::now();
        while TcpStream::connect(&registry.host).is_err() {
            if registry.child.try_wait()?.is_some() || started.elapsed() > START_LIMIT {
                let log = fs::read_to_string(registry.dir.path().join("log")).unwrap_or_default();
                bail!("the registry does not listen\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(registry)
    }

    /// Adds a distinct image (the test image with another digest) as `repository:1`; returns its full name.
    pub fn add(&self, repository: &str) -> anyhow::Result<String> {
        let image = make(repository, &["sh"])?;
        let root = self.dir.path().join("storage/docker/registry/v2");
        for blob in [&image.manifest, &image.config, &image.layer] {
            let hex = hex(blob);
            let at = root.join("blobs/sha256").join(&hex[..2]).join(&hex);
            fs::create_dir_all(&at)?;
            fs::write(at.join("data"), blob)?;
        }
        let link = |path: &str, blob: &[u8]| -> anyhow::Result<()> {
            let at = root.join("repositories").join(repository).join(path.replace("HEX", &hex(blob)));
            fs::create_dir_all(&at)?;
            Ok(fs::write(at.join("link"), format!("sha256:{}", hex(blob)))?)
        };
        link("_layers/sha256/HEX", &image.config)?;
        link("_layers/sha256/HEX", &image.layer)?;
        link("_manifests/revisions/sha256/HEX", &image.manifest)?;
        link("_manifests/tags/1/current", &image.manifest)?;
        link("_manifests/tags/1/index/sha256/HEX", &image.manifest)?;
        Ok(format!("{}/{repository}:1", self.host))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates an image with a distinct digest.
pub fn make(label: &str, cmd: &[&str]) -> anyhow::Result<DerivedImage> {
    make_with(label, cmd, &[])
}

/// Creates an image with more programs, each at its path in the image.
pub fn make_with(label: &str, cmd: &[&str], programs: &[(String, Vec<u8>)]) -> anyhow::Result<DerivedImage> {
    let archive = repo_root().join(".cache/images/busybox.tar");
    let entries = tar_entries(&archive).with_context(|| format!("{} (make images)", archive.display()))?;
    let find = |name: &str| entries.iter().find(|(n, _)| n == name).map(|(_, d)| d.as_slice());
    let blob = |digest: &Value| -> anyhow::Result<Vec<u8>> {
        let digest = digest.as_str().context("digest")?.replace(':', "/");
        Ok(find(&format!("blobs/{digest}")).context("blob")?.to_vec())
    };
    let index: Value = serde_json::from_slice(find("index.json").context("index.json")?)?;
    let mut manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0]["digest"])?)?;
    let mut config: Value = serde_json::from_slice(&blob(&manifest["config"]["digest"])?)?;
    let mut layer = open(blob(&manifest["layers"][0]["digest"])?);
    add(&mut layer, "label", "0000644", label.as_bytes());
    for (path, content) in programs {
        add(&mut layer, path.trim_start_matches('/'), "0000755", content);
    }
    layer.extend([0; 1024]);
    let digest = format!("sha256:{}", hex(&layer));
    config["rootfs"]["diff_ids"] = json!([digest]);
    manifest["layers"][0]["digest"] = json!(digest);
    manifest["layers"][0]["size"] = json!(layer.len());
    config["config"]["Labels"] = json!({"test": label});
    config["config"]["Cmd"] = json!(cmd);
    let config = config.to_string().into_bytes();
    manifest["config"]["digest"] = json!(format!("sha256:{}", hex(&config)));
    manifest["config"]["size"] = json!(config.len());
    Ok(DerivedImage { manifest: manifest.to_string().into_bytes(), config, layer })
}

/// Returns a layer without the blocks that end it, so that files can be appended.
fn open(mut layer: Vec<u8>) -> Vec<u8> {
    let content = layer.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1).div_ceil(512) * 512;
    layer.truncate(content);
    layer
}

/// Appends a file to such a layer; `path` has at most 100 bytes.
fn add(layer: &mut Vec<u8>, path: &str, mode: &str, content: &[u8]) {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, &format!("{mode}\x000000000\x000000000\x00"));
    put(124, &format!("{:011o}\0{:011o}\0        0", content.len(), 0));
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    layer.extend(header);
    layer.extend(content);
    layer.resize(layer.len().div_ceil(512) * 512, 0);
}

/// Returns a program and everything that the loader needs to start it, at the same paths.
pub fn program(path: &Path, inside: &str) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let out = Command::new("ldd").arg(path).output().context("start ldd")?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    // Lines `name => /path (address)` and, for the loader, `/path (address)`.
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    let mut files = vec![(inside.to_owned(), fs::read(path)?)];
    for library in libraries {
        files.push((library.to_owned(), fs::read(library)?));
    }
    Ok(files)
}

/// Returns the files of a tar archive without links and long names, as in the test image's archive.
fn tar_entries(path: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut data = Vec::new();
    fs::File::open(path)?.read_to_end(&mut data)?;
    let (mut at, mut found) = (0, Vec::new());
    while let Some(header) = data.get(at..at + 512).filter(|h| h[0] != 0) {
        let text = |range: std::ops::Range<usize>| {
            String::from_utf8_lossy(&header[range]).trim_matches(|c| c == '\0' || c == ' ').to_owned()
        };
        let size = usize::from_str_radix(&text(124..136), 8)?;
        let content = data.get(at + 512..at + 512 + size).context("cut short")?;
        found.push((text(0..100), content.to_vec()));
        at += 512 + size.div_ceil(512) * 512;
    }
    Ok(found)
}

/// Returns SHA-256 in hexadecimal digits, as in digests.
pub fn hex(data: &[u8]) -> String {
    format!("{:x}", Sha256::digest(data))
}

/// Encodes base64 with the standard alphabet and padding.
pub fn base64(data: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in data.chunks(3) {
        let n = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let letter = ALPHABET[(n >> (18 - 6 * i)) as usize & 63] as char;
            out.push(if i <= chunk.len() { letter } else { '=' });
        }
    }
    out
}

/// Decodes a base64 string.
pub fn unbase64(text: &str) -> anyhow::Result<Vec<u8>> {
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for letter in text.bytes().filter(|b| *b != b'=') {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => bail!("{other} is not of base64"),
        };
        (bits, held) = (bits << 6 | u32::from(value), held + 6);
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    Ok(out)
}

/// Writes an OCI archive of an image with a name, for import.
pub fn archive(image: &DerivedImage, name: &str, to: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let blobs: PathBuf = dir.path().join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    for blob in [&image.manifest, &image.config, &image.layer] {
        fs::write(blobs.join(hex(blob)), blob)?;
    }
    let manifest: Value = serde_json::from_slice(&image.manifest)?;
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": manifest["mediaType"], "digest": format!("sha256:{}", hex(&image.manifest)),
        "size": image.manifest.len(), "annotations": {"io.containerd.image.name": name}}]});
    fs::write(dir.path().join("index.json"), index.to_string())?;
    fs::write(dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let made = Command::new("tar")
        .arg("-C")
        .arg(dir.path())
        .arg("-cf")
        .arg(to)
        .args(["oci-layout", "index.json", "blobs"])
        .status()?;
    if !made.success() {
        bail!("tar ended with {made}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_published() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(unbase64(coded).expect("base64"), plain.as_bytes());
        }
    }
}
