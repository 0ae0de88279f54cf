//! Runs kubectl as a process.
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// A kubectl with one kubeconfig and, optionally, one namespace.
#[derive(Clone, Debug)]
pub struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
    namespace: Option<String>,
}

/// The output of a command, and its exit code.
#[derive(Clone, Debug)]
pub struct Output {
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
    /// The exit code; -1 after a signal.
    pub code: i32,
}

impl Output {
    /// Runs a command to its end, whatever the exit code.
    pub fn of(mut command: Command) -> anyhow::Result<Self> {
        let out = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Self { stdout: text(&out.stdout), stderr: text(&out.stderr), code: out.status.code().unwrap_or(-1) })
    }
}

impl Kubectl {
    /// Uses the kubectl that `make test` installed, else the one in PATH.
    pub fn new(kubeconfig: PathBuf) -> Self {
        let local = crate::repo_root().join(".cache/bin/kubectl");
        let binary = std::env::var_os("KUBECTL").map(PathBuf::from);
        let binary = binary.unwrap_or_else(|| if local.exists() { local } else { "kubectl".into() });
        Self { binary, kubeconfig, namespace: None }
    }

    /// Returns a kubectl for this namespace.
    pub fn namespaced(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// Creates a new namespace and returns a kubectl for it.
    pub fn fresh_namespace(&self, name: &str) -> anyhow::Result<Self> {
        self.ok(&["create", "namespace", name])?;
        Ok(self.namespaced(name))
    }

    /// Returns a command that can be changed and spawned.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(&self.binary);
        c.env("KUBECONFIG", &self.kubeconfig).env("HOME", self.kubeconfig.parent().unwrap_or(&self.kubeconfig));
        if let Some(n) = &self.namespace {
            c.arg("--namespace").arg(n);
        }
        c.args(args);
        c
    }

    /// Returns a command of another program, with the same kubeconfig.
    pub fn other_program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", self.kubeconfig.parent().unwrap_or(&self.kubeconfig));
        command
    }

    /// Runs to the end, whatever the exit code.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        self.with_input(args, b"")
    }

    /// Runs with this standard input.
    pub fn with_input(&self, args: &[&str], input: &[u8]) -> anyhow::Result<Output> {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        let mut stdin = child.stdin.take().context("stdin")?;
        let input = input.to_vec();
        // A child that does not read must not block; it may also end before it has read all.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let out = child.wait_with_output()?;
        writer.join().ok();
        Ok(Output {
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
            code: out.status.code().unwrap_or(-1),
        })
    }

    /// Runs and returns standard output; any exit code except 0 is an error that contains everything.
    pub fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let out = self.run(args)?;
        if out.code != 0 {
            bail!("kubectl {} exited with {}\n{}{}", args.join(" "), out.code, out.stdout, out.stderr);
        }
        Ok(out.stdout)
    }

    /// Runs a command that must fail, and returns its output.
    pub fn fails(&self, args: &[&str]) -> anyhow::Result<Output> {
        let out = self.run(args)?;
        if out.code == 0 {
            bail!("kubectl {} succeeded, which it must not\n{}", args.join(" "), out.stdout);
        }
        Ok(out)
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) -> anyhow::Result<String> {
        let out = self.with_input(&["apply", "-f", "-"], manifest.as_bytes())?;
        if out.code != 0 {
            bail!("kubectl apply exited with {}\n{}{}", out.code, out.stdout, out.stderr);
        }
        Ok(out.stdout)
    }

    /// Runs kubectl and parses its output as JSON.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let mut all = args.to_vec();
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.ok(&all)?)?)
    }

    /// Starts a command in the background.
    pub fn spawn(&self, args: &[&str]) -> anyhow::Result<Child> {
        Ok(self.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }
}

/// Returns the lines a child prints, as they come; the reader can wait for one with a limit.
pub fn lines_of(child: &mut Child) -> anyhow::Result<Receiver<String>> {
    let stdout = child.stdout.take().context("stdout")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Polls until `check` returns a value; the last error is part of the failure.
pub fn eventually<T>(what: &str, limit: Duration, mut check: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        match check() {
            Ok(v) => return Ok(v),
            Err(e) if started.elapsed() > limit => {
                return Err(e.context(format!("{what}: not within {limit:?}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}
