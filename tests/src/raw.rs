//! Raw requests that kubectl would not send: with curl, through `kubectl proxy`, which adds credentials.
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{Kubectl, lines_of};

/// A proxy to the subject's API on this machine; ends when dropped.
pub struct Raw {
    base: String,
    child: Child,
}

/// The answer of the subject to one request.
pub struct Answer {
    /// The HTTP status code.
    pub code: u16,
    /// The `Content-Type` header.
    pub kind: String,
    /// The body as received.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
    /// Returns `message` of a `Status`.
    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }
}

impl Raw {
    /// Starts the proxy and waits until it listens.
    pub fn open(kubectl: &Kubectl) -> anyhow::Result<Self> {
        let mut child = kubectl.spawn(&["proxy", "--port=0"])?;
        let lines = lines_of(&mut child)?;
        let line = lines.recv_timeout(Duration::from_secs(30)).context("kubectl proxy says nothing")?;
        let address = line.rsplit(' ').next().unwrap_or_default();
        Ok(Self { base: format!("http://{address}"), child })
    }

    /// Returns the URL for clients without credentials, with `http://`.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Sends a request. `headers` are whole lines.
    pub fn send(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> anyhow::Result<Answer> {
        let mut command = Command::new("curl");
        command.args(["-sS", "-m", "60", "-X", method, "-w", "\n%{http_code} %{content_type}", "--data-binary", "@-"]);
        // Otherwise curl adds its own type for forms.
        let typed = headers.iter().any(|h| h.to_ascii_lowercase().starts_with("content-type:"));
        if !typed {
            command.args(["-H", "Content-Type: application/json"]);
        }
        command.args(["-H", "Expect:", "-H", "User-Agent: blackbox"]);
        for header in headers {
            command.args(["-H", header]);
        }
        command.arg(format!("{}{path}", self.base));
        let mut curl = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start curl")?;
        curl.stdin.take().context("stdin")?.write_all(body)?;
        let out = curl.wait_with_output()?;
        if !out.status.success() {
            bail!("{method} {path}: {}", String::from_utf8_lossy(&out.stderr));
        }
        let at = out.stdout.iter().rposition(|b| *b == b'\n').context("curl's last line")?;
        let last = String::from_utf8_lossy(&out.stdout[at + 1..]).into_owned();
        let (code, kind) = last.split_once(' ').unwrap_or((&last, ""));
        Ok(Answer { code: code.parse().context("status")?, kind: kind.to_owned(), body: out.stdout[..at].to_vec() })
    }

    /// Sends a request with a JSON body.
    pub fn json(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send(method, path, &[], body.to_string().as_bytes())
    }

    /// Sends a patch of this media type.
    pub fn patch(&self, path: &str, kind: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send("PATCH", path, &[&format!("Content-Type: {kind}")], body.to_string().as_bytes())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
