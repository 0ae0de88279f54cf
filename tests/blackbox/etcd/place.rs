//! An etcd with the files of the API servers on it: ours, and upstream's.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Outcome, binary, free_port, reference, sh};
use serde_json::Value;

use crate::envtest::{Running, ask};

/// An etcd and the files of its servers.
pub struct EtcdFiles {
    dir: PathBuf,
    client: u16,
    peer: u16,
}

impl EtcdFiles {
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        fs::write(dir.join("tokens.csv"), "t0k3n,admin,1,\"system:masters\"\n")?;
        sh(&format!("openssl genrsa -out {0}/sa.key 2048 2>/dev/null && chmod 600 {0}/tokens.csv", dir.display()))?;
        Ok(Self { dir: dir.to_owned(), client: free_port()?, peer: free_port()? })
    }

    pub fn etcd(&self) -> anyhow::Result<Running> {
        let (client, peer) = (format!("http://127.0.0.1:{}", self.client), format!("http://127.0.0.1:{}", self.peer));
        let flags = [
            format!("--data-dir={}", self.dir.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ];
        let mut etcd = Running::start(Path::new("etcd"), &flags, self.dir.join("etcd.log"))?;
        let health = format!("{client}/health");
        etcd.until("etcd is healthy", || ask(&[&health]).is_ok_and(|(code, _)| code == 200))?;
        Ok(etcd)
    }

    pub fn server(&self, name: &str) -> anyhow::Result<Server> {
        self.server_with(name, &[])
    }

    pub fn server_with(&self, name: &str, more: &[&str]) -> anyhow::Result<Server> {
        let mut server = self.start(&binary(), &["kube-apiserver"], name, more)?;
        server.until_ready()?;
        Ok(server)
    }

    /// Starts upstream's API server.
    pub fn reference(&self, name: &str, more: &[&str]) -> anyhow::Result<Server> {
        let program = reference().context("KELSON_REFERENCE")?;
        let mut server = self.start(&program, &[], name, more)?;
        server.until_ready()?;
        Ok(server)
    }

    fn start(&self, program: &Path, words: &[&str], name: &str, more: &[&str]) -> anyhow::Result<Server> {
        let (dir, port) = (self.dir.display(), free_port()?);
        let mut flags: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        flags.extend([
            format!("--etcd-servers=http://127.0.0.1:{}", self.client),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={dir}/{name}"),
            format!("--token-auth-file={dir}/tokens.csv"),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={dir}/sa.key"),
            format!("--service-account-signing-key-file={dir}/sa.key"),
        ]);
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let running = Running::start(program, &flags, self.dir.join(format!("{name}.log")))?;
        Ok(Server { running, port })
    }

    /// Returns the text of the value of a key, without bytes that are not text.
    pub fn stored(&self, key: &str) -> anyhow::Result<String> {
        let out = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &format!("127.0.0.1:{}", self.client), "get", key, "--print-value-only"])
            .output()
            .context("etcdctl")?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

/// One API server.
pub struct Server {
    pub running: Running,
    port: u16,
}

impl Server {
    pub fn call(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let (url, body) = (format!("https://127.0.0.1:{}{path}", self.port), body.to_string());
        let mut args = vec!["-X", method, "-H", "Authorization: Bearer t0k3n", &url];
        if body != "null" {
            args.extend(["-H", "Content-Type: application/json", "-d", &body]);
        }
        let (code, text) = ask(&args)?;
        Ok((code, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let (code, object) = self.call("GET", path, &Value::Null)?;
        ensure!(code == 200, "GET {path}: {code} {object}");
        Ok(object)
    }

    pub fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        let (code, made) = self.call("POST", path, object)?;
        ensure!(code == 201, "POST {path}: {code} {made}");
        Ok(made)
    }

    /// Sends a patch as JSON, of which YAML is a superset.
    pub fn patch(&self, kind: &str, path: &str, patch: &Value) -> anyhow::Result<Value> {
        let url = format!("https://127.0.0.1:{}{path}", self.port);
        let (kind, body) = (format!("Content-Type: {kind}"), patch.to_string());
        let args = ["-X", "PATCH", "-H", "Authorization: Bearer t0k3n", "-H", &kind, "-d", &body, &url];
        let (code, text) = ask(&args)?;
        ensure!((200..300).contains(&code), "PATCH {path}: {code} {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Patches many objects, whose paths are a curl pattern: each must be answered.
    pub fn patch_all(&self, kind: &str, paths: &str, count: usize, patch: &Value) -> Outcome {
        const AT_ONCE: &str = "16";
        let url = format!("https://127.0.0.1:{}{paths}", self.port);
        let (kind, body) = (format!("Content-Type: {kind}"), patch.to_string());
        let out = Command::new("curl")
            .args(["-sSk", "-Z", "--parallel-max", AT_ONCE, "-m", "600", "-o", "/dev/null", "-w", "%{http_code}\n"])
            .args(["-X", "PATCH", "-H", "Authorization: Bearer t0k3n", "-H", &kind, "-d", &body, &url])
            .output()?;
        let codes = String::from_utf8_lossy(&out.stdout);
        let done = codes.lines().filter(|code| *code == "200").count();
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(done == count, "{done} of {count} patches of {paths} were done; {}", said.lines().next().unwrap_or(""));
        Ok(())
    }

    /// Returns the current revision of the cluster.
    pub fn revision(&self) -> anyhow::Result<u64> {
        let list = self.get("/api/v1/namespaces?limit=1")?;
        Ok(list["metadata"]["resourceVersion"].as_str().context("a list's revision")?.parse()?)
    }

    /// Waits until a defined kind is served.
    pub fn until_served(&self, path: &str) -> Outcome {
        kelson_blackbox::eventually(path, crate::envtest::PATIENCE, || self.get(path).map(drop))
    }

    pub fn is_ready(&self) -> bool {
        self.call("GET", "/readyz", &Value::Null).is_ok_and(|(code, _)| code == 200)
    }

    pub fn until_ready(&mut self) -> Outcome {
        let port = self.port;
        let url = format!("https://127.0.0.1:{port}/readyz");
        let ready = || ask(&["-H", "Authorization: Bearer t0k3n", &url]).is_ok_and(|(code, _)| code == 200);
        self.running.until("the API is ready", ready)
    }
}
