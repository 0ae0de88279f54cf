//! kill -9 in the middle of acknowledged writes, repeatedly: every acknowledged write exists with its revision, nothing
//! else does, and watches resume or must list again.
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kelson_blackbox::{
    ChildGuard, Kubectl, Needs::OwnAgent, Needs::OwnServer, Outcome, Process, Subject, Test, binary, eventually,
    free_port, lines_of,
};
use serde_json::Value;

/// The number of kills; each happens after a different number of acknowledged writes.
const KILLS: u32 = 20;
/// The minimum number of objects acknowledged over the whole test.
const OBJECTS: u32 = 10_000;
/// The number of objects of one writer; more than a round waits for, so that the kill always happens in the middle.
const BURST: u32 = 2 * OBJECTS / KILLS;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "durability::kill_9_loses_nothing_acknowledged", needs: OwnServer, run: kill_9 },
        Test { name: "durability::sigterm_and_start_again", needs: OwnServer, run: sigterm },
        Test { name: "durability::a_log_on_a_full_disk", needs: OwnServer, run: full_log },
        Test { name: "durability::a_start_on_a_full_disk", needs: OwnAgent, run: start_on_a_full_disk },
    ]
}

fn kill_9(_: &Subject) -> Outcome {
    let server = Process::start(&["--disable-agent"], std::path::Path::new("/nonexistent"))?;
    server.kubectl().ok(&["create", "namespace", "kill"])?;
    let mut acknowledged: BTreeMap<String, String> = BTreeMap::new();
    let mut asked = 0;
    for round in 1..=KILLS {
        let goal = (OBJECTS * round / KILLS) as usize;
        let mut writer = Writer::start(&server, asked..asked + BURST)?;
        asked += BURST;
        while acknowledged.len() < goal
            && let Some((name, revision)) = writer.next(Duration::from_secs(60))?
        {
            acknowledged.insert(name, revision);
        }
        ensure!(acknowledged.len() >= goal, "round {round}: {} of {goal} acknowledged", acknowledged.len());
        server.kill()?;
        // What was acknowledged before the kill may still be in the pipe.
        while let Some((name, revision)) = writer.next(Duration::from_secs(60))? {
            acknowledged.insert(name, revision);
        }
        writer.finish()?;
        server.launch()?;
        verify(&server, &acknowledged, asked)?;
        let newest = acknowledged.values().filter_map(|r| r.parse::<u64>().ok()).max().unwrap_or(0);
        resumes_or_expires(&server, newest)?;
    }
    server.finish(false)
}

/// A curl process that creates objects one after the other over one connection.
struct Writer {
    child: ChildGuard,
    lines: Receiver<String>,
    _scratch: tempfile::TempDir,
}

impl Writer {
    fn start(server: &Process, numbers: Range<u32>) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir()?;
        let k = server.kubectl();
        let mut config = String::from("silent\ninsecure\n");
        for (option, field) in [("cert", "client-certificate-data"), ("key", "client-key-data")] {
            let data = k.ok(&["config", "view", "--raw", "-o", &format!("jsonpath={{.users[0].user.{field}}}")])?;
            let file = scratch.path().join(option);
            let mut decode =
                Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(File::create(&file)?).spawn()?;
            decode.stdin.take().context("stdin")?.write_all(data.as_bytes())?;
            ensure!(decode.wait()?.success(), "base64");
            config.push_str(&format!("{option} = {}\n", file.display()));
        }
        let login = config.clone();
        config.clear();
        for i in numbers {
            let body = format!(
                "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"c{i:05}\"}},\"data\":{{\"n\":\"{i}\"}}}}"
            );
            config.push_str(&login);
            config.push_str("header = \"Content-Type: application/json\"\nwrite-out = \"\\n\"\n");
            config.push_str(&format!("data = {}\n", serde_json::Value::from(body)));
            config.push_str(&format!(
                "url = https://127.0.0.1:{}/api/v1/namespaces/kill/configmaps?pretty=false\nnext\n",
                server.port
            ));
        }
        let file = scratch.path().join("requests");
        std::fs::write(&file, config.trim_end_matches("next\n"))?;
        let child = Command::new("curl")
            .arg("-K")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut child = ChildGuard(child);
        let lines = lines_of(&mut child)?;
        Ok(Self { child, lines, _scratch: scratch })
    }

    /// Returns the next acknowledged object's name and revision; `None` when the writer has ended.
    fn next(&mut self, limit: Duration) -> anyhow::Result<Option<(String, String)>> {
        loop {
            let line = match self.lines.recv_timeout(limit) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => bail!("no answer within {limit:?}"),
            };
            // Requests without an answer print nothing, and a truncated body is not an acknowledgement.
            let Ok(o) = serde_json::from_str::<Value>(&line) else { continue };
            ensure!(o["kind"] == "ConfigMap", "refused: {line}");
            let meta = &o["metadata"];
            let text = |v: &Value| v.as_str().map(str::to_owned).context("a string");
            return Ok(Some((text(&meta["name"])?, text(&meta["resourceVersion"])?)));
        }
    }

    fn finish(mut self) -> Outcome {
        self.child.kill().ok();
        self.child.wait()?;
        Ok(())
    }
}

/// Checks that everything acknowledged exists with its revision, and that other objects were at least requested.
fn verify(server: &Process, acknowledged: &BTreeMap<String, String>, asked: u32) -> Outcome {
    let list = server.kubectl().ok(&["get", "--raw", "/api/v1/namespaces/kill/configmaps"])?;
    let list: Value = serde_json::from_str(&list)?;
    let mut there: BTreeMap<&str, &str> = BTreeMap::new();
    for o in list["items"].as_array().context("items")? {
        let name = o["metadata"]["name"].as_str().context("name")?;
        if name != "kube-root-ca.crt" {
            there.insert(name, o["metadata"]["resourceVersion"].as_str().context("revision")?);
            let n: u32 = name[1..].parse()?;
            ensure!(
                n < asked && o["data"]["n"].as_str() == Some(n.to_string().as_str()),
                "{name} was never asked for: {o}"
            );
        }
    }
    for (name, revision) in acknowledged {
        ensure!(
            there.get(name.as_str()) == Some(&revision.as_str()),
            "{name}: acknowledged at {revision}, found {:?}",
            there.get(name.as_str())
        );
    }
    let revision: u64 = list["metadata"]["resourceVersion"].as_str().context("revision")?.parse()?;
    let newest = acknowledged.values().filter_map(|r| r.parse().ok()).max().unwrap_or(0);
    ensure!(revision >= newest, "revisions went back: {revision} < {newest}");
    Ok(())
}

fn resumes_or_expires(server: &Process, revision: u64) -> Outcome {
    let uri = format!("/api/v1/namespaces/kill/configmaps?watch=true&timeoutSeconds=1&resourceVersion={revision}");
    let out = server.kubectl().run(&["get", "--raw", &uri])?;
    let expired = out.stdout.contains("\"code\":410") || out.stderr.contains("too old resource version");
    ensure!(out.code == 0 || expired, "{} {}", out.stdout, out.stderr);
    Ok(())
}

fn sigterm(_: &Subject) -> Outcome {
    let server = Process::start(&["--disable-agent"], std::path::Path::new("/nonexistent"))?;
    let k = server.kubectl();
    k.ok(&["create", "configmap", "a", "--from-literal=x=1"])?;
    let took = server.terminate()?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    server.launch()?;
    ensure!(k.ok(&["get", "cm", "a", "-o", "jsonpath={.data.x}"])? == "1", "after a clean stop");
    server.finish(false)
}

/// If the log cannot be written its lines are lost, and nothing else: the server starts and works.
fn full_log(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let full = File::options().write(true).open("/dev/full")?;
    let server = Command::new(binary())
        .args(["server", "--disable-agent", "--log-level", "debug", "--bind-address", "127.0.0.1"])
        .args(["--secure-port", &free_port()?.to_string(), "--data-dir"])
        .arg(scratch.path())
        .stdin(Stdio::null())
        .stdout(full.try_clone()?)
        .stderr(full)
        .spawn()?;
    let mut server = ChildGuard(server);
    let k = Kubectl::new(scratch.path().join("admin.kubeconfig"));
    let works = || k.ok(&["create", "configmap", "a", "--dry-run=server"]);
    let outcome = eventually("the server answers", Duration::from_secs(60), works);
    let _ = server.kill();
    let ended = server.wait()?;
    outcome.map(drop).with_context(|| format!("the server ended with {ended}"))
}

/// A small file system, in a mount namespace that a sleeping process keeps.
struct SmallDisk {
    keeper: ChildGuard,
    scratch: tempfile::TempDir,
}

/// The size of the file system in bytes.
const DISK_BYTES: u64 = 40 << 20;

impl SmallDisk {
    fn mount() -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir()?;
        let dir = scratch.path().join("disk");
        std::fs::create_dir(&dir)?;
        let script =
            format!("mount -t tmpfs -o size={DISK_BYTES} tmpfs {} && echo mounted && exec sleep 600", dir.display());
        let keeper = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut keeper = ChildGuard(keeper);
        let mounted = lines_of(&mut keeper)?.recv_timeout(Duration::from_secs(10));
        ensure!(mounted.as_deref() == Ok("mounted"), "no tmpfs: {mounted:?}");
        Ok(Self { keeper, scratch })
    }

    /// Returns its path within its namespace.
    fn dir(&self) -> std::path::PathBuf {
        self.scratch.path().join("disk")
    }

    /// Returns the path of its files outside of the namespace.
    fn seen(&self) -> std::path::PathBuf {
        let root = format!("/proc/{}/root", self.keeper.id());
        std::path::Path::new(&root).join(self.dir().strip_prefix("/").unwrap_or(&self.dir()))
    }

    /// Fills it until this number of bytes is left.
    fn fill(&self, left: u64) -> Outcome {
        let mut filler = File::create(self.seen().join("filler"))?;
        let block = [0; 4096];
        let mut written = 0;
        while filler.write_all(&block).is_ok() {
            written += 4096;
        }
        filler.set_len(u64::saturating_sub(written, left))?;
        Ok(())
    }

    fn empty(&self) -> Outcome {
        Ok(std::fs::remove_file(self.seen().join("filler"))?)
    }

    /// Removes what a server wrote, as far as it got.
    fn remove_data(&self) -> Outcome {
        match std::fs::remove_dir_all(self.seen().join("data")) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// A server whose data is there, and its log.
    fn server(&self, port: u16) -> anyhow::Result<DiskServer> {
        let log = self.scratch.path().join("log");
        let child = Command::new("nsenter")
            .args(["--mount", "--target", &self.keeper.id().to_string()])
            .arg(binary())
            .args(["server", "--disable-agent", "--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
            .arg("--data-dir")
            .arg(self.dir().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        Ok(DiskServer { child: ChildGuard(child), log })
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.seen().join("data/admin.kubeconfig"))
    }

    /// Starts a server that serves.
    fn serving(&self, port: u16) -> anyhow::Result<DiskServer> {
        let mut server = self.server(port)?;
        let started = eventually("the server serves", Duration::from_secs(60), || {
            if let Some(ended) = server.child.try_wait()? {
                bail!("the server ended with {ended}");
            }
            self.kubectl().ok(&["get", "--raw", "/livez"])
        });
        match started {
            Ok(_) => Ok(server),
            Err(error) => Err(error.context(server.log()?)),
        }
    }
}

/// A server on a small disk.
struct DiskServer {
    child: ChildGuard,
    log: std::path::PathBuf,
}

impl DiskServer {
    fn log(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// Kills the server, and waits for its end.
    fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks the server to end, and waits for its end.
    fn stop(&mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id())?).context("a pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

/// The maximum number of writes of 64 KiB until a full disk of 40 MB rejects one.
const WRITES_MAX: usize = 300;

/// A new server names the file for which there is no room, and starts once there is room. One with data starts without
/// room, serves it, and has lost nothing afterwards.
fn start_on_a_full_disk(_: &Subject) -> Outcome {
    let (disk, port) = (SmallDisk::mount()?, free_port()?);
    for left in [0, 4 << 10, 64 << 10, 256 << 10] {
        disk.fill(left)?;
        let mut server = disk.server(port)?;
        let ended =
            eventually("the server ends", Duration::from_secs(60), || server.child.try_wait()?.context("it runs"));
        let said = server.log()?;
        let error = said.lines().rfind(|line| line.starts_with("Error: ")).unwrap_or_default();
        ensure!(!ended?.success(), "{left} bytes left: {said}");
        let names = error.contains(&disk.dir().join("data").display().to_string());
        ensure!(
            names && (error.contains("No space left") || error.contains("disk is full")),
            "{left} bytes left: {said}"
        );
        disk.empty()?;
        // The next server is a new one as well.
        disk.remove_data()?;
    }
    let mut server = disk.serving(port)?;
    let k = disk.kubectl();
    let mut taken = vec!["a".to_owned(), "b".to_owned(), "c".to_owned()];
    for name in ["a", "b"] {
        k.ok(&["create", "configmap", name, "--from-literal=x=1"])?;
    }
    // Neither a clean stop nor a kill leaves anything that a start on a full disk needs to write.
    for clean in [true, false] {
        disk.fill(0)?;
        if clean {
            server.stop()?
        } else {
            server.kill()?
        }
        server = disk.serving(port)?;
        ensure!(k.ok(&["get", "cm", "a", "-o", "jsonpath={.data.x}"])? == "1", "clean: {clean}");
        // Writes that fit into existing pages succeed; others are rejected with a message, and acknowledged ones stay.
        let refused = (0..WRITES_MAX).find_map(|n| {
            let (name, data) = (format!("more-{clean}-{n}"), format!("--from-literal=x={}", "x".repeat(64 << 10)));
            match k.run(&["create", "configmap", &name, &data]) {
                Ok(out) if out.code == 0 => {
                    taken.push(name);
                    None
                }
                Ok(out) => Some(out.stderr),
                Err(error) => Some(error.to_string()),
            }
        });
        let why = refused.context("a full disk takes no end of writes")?;
        ensure!(why.contains("the storage is not available"), "{why}");
        disk.empty()?;
    }
    eventually("writes are taken again", Duration::from_secs(60), || k.ok(&["create", "configmap", "c"]))?;
    server.kill()?;
    let mut server = disk.serving(port)?;
    let names = k.ok(&["get", "cm", "-o", "jsonpath={.items[*].metadata.name}"])?;
    server.kill()?;
    taken.sort();
    ensure!(names.split(' ').filter(|name| *name != "kube-root-ca.crt").eq(taken.iter()), "{names}");
    Ok(())
}
