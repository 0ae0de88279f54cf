//! Credential plugins: a program that says who the client is (`users[].user.exec` of a kubeconfig, KEP-541). What it says is
//! kept until it ends, and the program is asked again shortly before.
#![allow(clippy::disallowed_methods, reason = "blocking: run in the lane for files")]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kelson_pki::kubeconfig::{Cluster, KubeconfigError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::TransportError;

const GROUP: &str = "client.authentication.k8s.io";
/// The timeout of a program.
const LIMIT: Duration = Duration::from_secs(60);
/// The interval of checks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Most that is read of what it says.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A program, and how it is called.
#[derive(Clone, Debug)]
pub struct ExecPlugin {
    /// The version `client.authentication.k8s.io/v1` or `v1beta1`, which the program gets and must use in its answer.
    version: String,
    command: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    install_hint: String,
    /// The server that the credentials are for, where the program wants to know (`provideClusterInfo`).
    cluster: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Described {
    api_version: String,
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    install_hint: String,
    interactive_mode: String,
    provide_cluster_info: bool,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// The answer of a program. It is never printed.
pub(crate) struct Said {
    pub token: Option<String>,
    /// Chain and key, PEM.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub ends: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    token: String,
    client_certificate_data: String,
    client_key_data: String,
}

/// `spec.cluster` of an ExecCredential.
fn cluster_info(cluster: &Cluster, ca_pem: &[u8]) -> Value {
    let mut info = json!({"server": cluster.server});
    let mut put = |name: &str, value: Value| info[name] = value;
    if let Some(name) = &cluster.tls_server_name {
        put("tls-server-name", name.as_str().into());
    }
    if cluster.insecure_skip_tls_verify {
        put("insecure-skip-tls-verify", true.into());
    }
    if !ca_pem.is_empty() {
        put("certificate-authority-data", STANDARD.encode(ca_pem).into());
    }
    if !cluster.proxy_url.is_empty() {
        put("proxy-url", cluster.proxy_url.as_str().into());
    }
    put("config", cluster.exec_configuration().clone());
    info
}

impl ExecPlugin {
    /// Reads `exec` of a kubeconfig; a command with a slash in it is relative to the kubeconfig's directory.
    pub(crate) fn parse(exec: &Value, cluster: &Cluster, ca_pem: &[u8], base: &Path) -> Result<Self, KubeconfigError> {
        let wrong = |why: String| KubeconfigError(format!("exec: {why}"));
        let d: Described = serde_json::from_value(exec.clone()).map_err(|e| wrong(e.to_string()))?;
        let known = ["v1", "v1beta1"].iter().any(|v| d.api_version == format!("{GROUP}/{v}"));
        if !known {
            return Err(wrong(format!("apiVersion {:?} is neither {GROUP}/v1 nor {GROUP}/v1beta1", d.api_version)));
        }
        if d.command.is_empty() {
            return Err(wrong("command is missing".into()));
        }
        if d.interactive_mode == "Always" {
            return Err(wrong("the plugin requires an interactive terminal, which is not available here".into()));
        }
        let command = match d.command.contains('/') {
            true => base.join(&d.command),
            false => d.command.into(),
        };
        let env = d.env.unwrap_or_default().into_iter().map(|v| (v.name, v.value)).collect();
        Ok(Self {
            version: d.api_version,
            command,
            args: d.args.unwrap_or_default(),
            env,
            install_hint: d.install_hint,
            cluster: d.provide_cluster_info.then(|| cluster_info(cluster, ca_pem)),
        })
    }

    /// Runs the program and reads what it says. Blocks.
    pub(crate) fn run(&self) -> Result<Said, TransportError> {
        let name = self.command.display();
        let fail = |why: String| TransportError(format!("credential plugin {name}: {why}"));
        let mut info = json!({"apiVersion": self.version, "kind": "ExecCredential", "spec": {"interactive": false}});
        if let Some(cluster) = &self.cluster {
            info["spec"]["cluster"] = cluster.clone();
        }
        let child = Command::new(&self.command)
            .args(&self.args)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound if !self.install_hint.is_empty() => {
                fail(format!("{e}; {}", self.install_hint))
            }
            _ => fail(e.to_string()),
        })?;
        let Some(out) = child.stdout.take() else { return Err(fail("no output".into())) };
        // A program blocks when its output exceeds the pipe's buffer, so the output is read while it runs.
        let (reported, heard) = std::sync::mpsc::sync_channel(1);
        let reader = std::thread::Builder::new().name("exec-plugin".into()).spawn(move || {
            let mut text = Vec::new();
            let _ = reported.send(out.take(ANSWER_BYTES_MAX).read_to_end(&mut text).map(|_| text));
        });
        reader.map_err(|e| fail(e.to_string()))?;
        let began = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if began.elapsed() < LIMIT => std::thread::sleep(LOOK),
                outcome => {
                    // Whatever it was, it does not run on.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(fail(match outcome {
                        Err(e) => e.to_string(),
                        Ok(_) => format!("timed out after {} s", LIMIT.as_secs()),
                    }));
                }
            }
        };
        if !status.success() {
            return Err(fail(status.to_string()));
        }
        // What it left running may hold its output open.
        let text = heard.recv_timeout(LIMIT).map_err(|_| fail("timed out reading its output".into()))?;
        let text = text.map_err(|e| fail(e.to_string()))?;
        self.read(&text).map_err(fail)
    }

    /// Decodes an answer. Errors contain nothing of it.
    fn read(&self, text: &[u8]) -> Result<Said, String> {
        let answer: Answer =
            kelson_meta::from_json(text).map_err(|_| "its response is not an ExecCredential".to_owned())?;
        if answer.kind != "ExecCredential" || answer.api_version != self.version {
            return Err(format!("its response is not an ExecCredential of {}", self.version));
        }
        let status = answer.status.ok_or("its response has no status")?;
        let some = |text: String| (!text.is_empty()).then_some(text);
        let certificate = match (some(status.client_certificate_data), some(status.client_key_data)) {
            (Some(cert), Some(key)) => Some((cert.into_bytes(), key.into_bytes())),
            (None, None) => None,
            _ => return Err("its response has only one of certificate and key".into()),
        };
        let token = some(status.token);
        if token.is_none() && certificate.is_none() {
            return Err("its response has neither a token nor a certificate".into());
        }
        Ok(Said { token, certificate, ends: status.expiration_timestamp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ExecPlugin {
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "env": [{"name": "WORD", "value": "secret-word"}], "interactiveMode": "Never"});
        ExecPlugin::parse(&exec, &Cluster::default(), b"", Path::new("/")).unwrap()
    }

    #[test]
    fn what_a_program_says_is_believed_in_its_own_version() {
        let answer = |status: &str| {
            format!(r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}"#)
        };
        let said =
            shell(&format!("echo '{}'", answer(r#"{"token":"t","expirationTimestamp":"2026-05-06T07:08:09Z"}"#)));
        let said = said.run().unwrap();
        assert_eq!((said.token.as_deref(), said.certificate.is_none()), (Some("t"), true));
        assert_eq!(said.ends, Some("2026-05-06T07:08:09Z".parse().unwrap()));
        let reported = shell(
            r#"printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$WORD""#,
        );
        assert_eq!(reported.run().unwrap().token.as_deref(), Some("secret-word"), "its environment");
        for (script, part) in [
            ("exit 3".to_owned(), "3"),
            ("echo secret-word".to_owned(), "not an ExecCredential"),
            (format!("echo '{}'", answer("{}")), "neither"),
            (format!("echo '{}'", answer(r#"{"clientCertificateData":"secret-word"}"#)), "only one"),
            (
                r#"echo '{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential"}'"#.to_owned(),
                "/v1",
            ),
        ] {
            let error = shell(&script).run().err().expect(&script).to_string();
            assert!(error.contains(part) && !error.contains("secret-word"), "{script}: {error}");
        }
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./nowhere-to-be-found",
            "installHint": "get it from your cloud"});
        let missing = ExecPlugin::parse(&exec, &Cluster::default(), b"", Path::new("/")).unwrap().run().err().unwrap();
        assert!(missing.to_string().contains("get it from your cloud"), "{missing}");
    }

    #[test]
    fn a_program_gets_the_cluster_if_it_asks_for_it() {
        let text = "clusters: [{name: k, cluster: {server: 'https://h:1', tls-server-name: name, proxy-url: 'http://p:1', \
                    extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: 7}}]}}]";
        let file = kelson_pki::kubeconfig::KubeconfigFile::parse(text.as_bytes()).unwrap();
        let reported = |provide: bool| {
            let script = r#"printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$(printf %s "$KUBERNETES_EXEC_INFO" | base64 -w0)""#;
            let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
                "provideClusterInfo": provide});
            let plugin = ExecPlugin::parse(&exec, &file.clusters[0].cluster, b"CA", Path::new("/")).unwrap();
            let token = plugin.run().unwrap().token.unwrap();
            serde_json::from_slice::<Value>(&STANDARD.decode(token).unwrap()).unwrap()["spec"].take()
        };
        let cluster = json!({"server": "https://h:1", "tls-server-name": "name", "certificate-authority-data": "Q0E=",
            "proxy-url": "http://p:1", "config": {"audience": 7}});
        assert_eq!(reported(true), json!({"interactive": false, "cluster": cluster}));
        assert_eq!(reported(false), json!({"interactive": false}));
    }
}
