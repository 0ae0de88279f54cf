//! Servers join a server with an etcd member by a token, survive the loss of the first one, and are rejected where they must be.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kelson_blackbox::servers::{Https, Network, Program, TOKEN, etcd, trust};
use kelson_blackbox::{
    Needs::{OwnNode, OwnServer},
    Outcome, Output, Process, Subject, Test, binary, eventually, free_port,
};
use rustls::ClientConfig;
use serde_json::{Value, json};

/// The time limit of a start, a join and a failover.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The port of each server.
pub(crate) const PORT: u16 = 6443;
/// The port of etcd members.
const PEER_PORT: u16 = 2380;
/// The lines of a server's log in an error.
const TAIL: usize = 30;
/// The number of servers, and of members of etcd.
pub(crate) const SERVERS: usize = 3;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "joining_servers::three_servers_by_tokens", needs: OwnNode, run: three },
        Test { name: "joining_servers::two_servers_and_a_vote", needs: OwnNode, run: vote },
        Test { name: "joining_servers::what_must_not_join_is_rejected", needs: OwnServer, run: rejected },
    ]
}

fn three(_: &Subject) -> Outcome {
    // Its own thread, since it moves to the network of the servers.
    std::thread::spawn(three_servers).join().map_err(|_| anyhow::anyhow!("the test panicked"))?
}

/// Machines with one server each.
pub(crate) struct Servers {
    pub(crate) network: Network,
    pub(crate) programs: Vec<Program>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    // The last field: removed after all processes have ended.
    scratch: tempfile::TempDir,
}

impl Servers {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let network = Network::start(SERVERS)?;
        network.enter()?;
        let scratch = tempfile::Builder::new().prefix("kelson-test-").tempdir()?;
        std::fs::write(scratch.path().join("tokens.csv"), format!("{TOKEN},admin,1,\"system:masters\"\n"))?;
        let mut servers = Self { network, programs: Vec::new(), tls: None, scratch };
        for n in 0..SERVERS {
            let log = servers.scratch.path().join(format!("m{n}.log"));
            let args = servers.args(n, &[]);
            servers.programs.push(Program::new(&servers.network.machine(n), &format!("m{n}"), &binary(), args, log));
        }
        Ok(servers)
    }

    pub(crate) fn dir(&self, n: usize) -> PathBuf {
        self.scratch.path().join(format!("m{n}"))
    }

    /// Returns the arguments of a server, with more of them.
    fn args(&self, n: usize, more: &[&str]) -> Vec<String> {
        let (dir, address) = (self.dir(n).display().to_string(), Network::address(n).to_string());
        let tokens = self.scratch.path().join("tokens.csv").display().to_string();
        let etcd = etcd("etcd").display().to_string();
        let words = ["server", "--disable-agent", "--data-dir", &dir, "--advertise-address", &address];
        let words = [&words[..], &["--token-auth-file", &tokens, "--etcd-binary", &etcd], more].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn start(&mut self, n: usize, more: &[&str]) -> Outcome {
        let args = self.args(n, more);
        self.programs[n].set_args(args);
        self.programs[n].start()
    }

    pub(crate) fn until_ready(&mut self, n: usize) -> Outcome {
        if self.tls.is_none() {
            let ca = self.dir(n).join("pki/ca.crt");
            let read = eventually("the first server has a CA", PATIENCE, || trust(&ca));
            self.tls = Some(read.with_context(|| self.programs[n].log_tail(TAIL))?);
        }
        let ready = eventually(&format!("server {n} is ready"), PATIENCE, || {
            let (code, answer) = self.client(n)?.call("GET", "/readyz", &Value::Null)?;
            ensure!(code == 200, "{code} {answer}");
            Ok(())
        });
        ready.with_context(|| self.programs[n].log_tail(TAIL))
    }

    /// Returns a client of one server. All of them have certificates of the first server's CA.
    pub(crate) fn client(&self, n: usize) -> anyhow::Result<Https> {
        let tls = self.tls.clone().context("no server has started yet")?;
        Ok(Https::new(Network::address(n).into(), PORT, tls))
    }

    /// Runs a command of ours on a machine, for the server there.
    pub(crate) fn command(&self, n: usize, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.network.machine(n))).arg(binary()).args(words);
        command.arg("--data-dir").arg(self.dir(n));
        let out = Output::of(command)?;
        ensure!(out.code == 0, "{words:?}: {}", out.stderr);
        Ok(out.stdout.trim().to_owned())
    }

    pub(crate) fn members(&self, n: usize) -> anyhow::Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.command(n, &["member", "list", "-o", "json"])?)?)
    }

    pub(crate) fn write(&self, n: usize, name: &str) -> Outcome {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
        let path = "/api/v1/namespaces/default/configmaps";
        eventually(&format!("server {n} stores {name}"), PATIENCE, || {
            let (code, answer) = self.client(n)?.call("POST", path, &map)?;
            // A write without an answer may have been stored.
            ensure!(code == 201 || code == 409, "{code} {answer}");
            Ok(())
        })
    }

    pub(crate) fn read(&self, n: usize, name: &str) -> Outcome {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        let (code, answer) = self.client(n)?.call("GET", &path, &Value::Null)?;
        ensure!(code == 200 && answer["data"]["a"] == "1", "server {n}: {code} {answer}");
        Ok(())
    }

    fn log(&self, n: usize) -> String {
        self.programs[n].log_tail(usize::MAX)
    }
}

fn three_servers() -> Outcome {
    let mut servers = Servers::new()?;
    servers.start(0, &["--cluster-init"])?;
    servers.until_ready(0)?;
    servers.write(0, "first")?;
    let command = servers.command(0, &["token", "create", "--server", "--print-join-command"])?;
    let words: Vec<&str> = command.split_whitespace().collect();
    let ["kelson", "server", join @ ..] = &words[..] else { bail!("the command is {command:?}") };
    ensure!(join[..2] == ["--server", &format!("https://{}:{PORT}", Network::address(0))], "{join:?}");

    // A server whose member cannot be reached changes nothing.
    servers.network.close_port(1, PEER_PORT)?;
    servers.start(1, join)?;
    eventually("a server whose peer URL cannot be reached ends", PATIENCE, || {
        ensure!(!servers.programs[1].is_running(), "it runs");
        Ok(())
    })?;
    let log = servers.log(1);
    ensure!(log.contains("cannot be reached from m0") && log.contains("--etcd-peer-port"), "{log}");
    ensure!(servers.members(0)?.len() == 1, "{:?}", servers.members(0));
    servers.network.mend()?;

    // Both at once, one of them continuing; the other with the token in the file of the first server.
    servers.start(1, join)?;
    let token = std::fs::read_to_string(servers.dir(0).join("server-token"))?;
    servers.start(2, &[join[0], join[1], "--token", &token])?;
    for n in 1..SERVERS {
        servers.until_ready(n)?;
    }
    let members = servers.members(2)?;
    ensure!(members.len() == SERVERS, "{members:#?}");
    ensure!(members.iter().all(|member| member["role"] != "learner" && member["isRunning"] == true), "{members:#?}");
    for (from, name) in ["from-0", "from-1", "from-2"].into_iter().enumerate() {
        servers.write(from, name)?;
        for to in 0..SERVERS {
            servers.read(to, name)?;
            servers.read(to, "first")?;
        }
    }

    // The first server is lost: the others continue. It returns without a flag, as does one that has joined.
    servers.programs[0].kill();
    servers.write(1, "without-0")?;
    servers.read(2, "without-0")?;
    servers.programs[1].kill();
    servers.start(0, &[])?;
    servers.start(1, &[])?;
    for n in 0..SERVERS {
        servers.until_ready(n)?;
        servers.read(n, "without-0")?;
    }
    // The same flags again have no effect.
    servers.programs[2].kill();
    servers.start(2, &[join[0], join[1], "--token", &token])?;
    servers.until_ready(2)?;
    ensure!(servers.log(2).contains("is a member of a cluster already"), "{}", servers.programs[2].log_tail(TAIL));
    ensure!(servers.members(2)?.len() == SERVERS, "{:?}", servers.members(2));
    Ok(())
}

fn vote(_: &Subject) -> Outcome {
    // Its own thread, since it moves to the network of the servers.
    std::thread::spawn(two_servers_and_a_vote).join().map_err(|_| anyhow::anyhow!("the test panicked"))?
}

/// The machine of the vote.
const VOTE: usize = 2;

fn two_servers_and_a_vote() -> Outcome {
    let mut servers = Servers::new()?;
    servers.start(0, &["--cluster-init"])?;
    servers.until_ready(0)?;
    let command = servers.command(0, &["token", "create", "--server", "--print-join-command"])?;
    let join: Vec<&str> = command.split_whitespace().skip(2).collect();
    servers.start(1, &join)?;
    servers.until_ready(1)?;

    let command = servers.command(0, &["token", "create", "--vote", "--print-join-command"])?;
    let words: Vec<&str> = command.split_whitespace().collect();
    let ["kelson", "vote", join @ ..] = &words[..] else { bail!("the command is {command:?}") };
    let (dir, address) = (servers.dir(VOTE).display().to_string(), Network::address(VOTE).to_string());
    let etcd = etcd("etcd").display().to_string();
    let own = ["vote", "--data-dir", &dir, "--node-ip", &address, "--etcd-binary", &etcd];
    let args = |more: &[&str]| [&own[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
    servers.programs[VOTE].set_args(args(join));
    servers.programs[VOTE].start()?;
    let votes = |servers: &Servers| {
        eventually("three members vote", PATIENCE, || {
            let members = servers.members(1)?;
            let voters = members.iter().filter(|m| m["role"] != "learner" && m["isRunning"] == true).count();
            ensure!(voters == SERVERS, "{members:#?}");
            Ok(())
        })
        .with_context(|| servers.programs[VOTE].log_tail(TAIL))
    };
    votes(&servers)?;
    let entries: Vec<_> = std::fs::read_dir(servers.dir(VOTE))?.filter_map(Result::ok).map(|e| e.file_name()).collect();
    ensure!(!entries.iter().any(|name| name == "pki"), "a vote has no key of the API: {entries:?}");

    // One server is lost: the other and the vote are a quorum. The vote returns without a flag.
    servers.programs[0].kill();
    servers.write(1, "without-0")?;
    servers.start(0, &[])?;
    servers.until_ready(0)?;
    servers.programs[VOTE].kill();
    servers.write(0, "without-the-vote")?;
    servers.programs[VOTE].set_args(args(&[]));
    servers.programs[VOTE].start()?;
    votes(&servers)?;
    servers.programs[1].kill();
    servers.write(0, "without-1")
}

/// Starts a server that must end with an error; returns its output.
fn failing_server(dir: &Path, more: &[&str]) -> anyhow::Result<String> {
    let ports = [free_port()?.to_string(), free_port()?.to_string(), free_port()?.to_string()];
    let etcd = etcd("etcd").display().to_string();
    let log = dir.with_extension("log");
    let file = std::fs::File::create(&log)?;
    let mut child = Command::new(binary())
        .args(["server", "--disable-agent", "--bind-address", "127.0.0.1", "--node-name", "joining"])
        .args(["--secure-port", &ports[0], "--etcd-peer-port", &ports[1], "--etcd-client-port", &ports[2]])
        .args(["--etcd-binary", &etcd, "--data-dir"])
        .arg(dir)
        .args(more)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!("it runs: {}", std::fs::read_to_string(&log)?);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = std::fs::read_to_string(&log)?;
    ensure!(!status.success(), "{text}");
    Ok(text)
}

fn created(server: &Process, words: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(binary());
    command.args(["token", "create"]).args(words).arg("--data-dir").arg(&server.dir);
    Output::of(command)
}

fn rejected(_: &Subject) -> Outcome {
    let etcd = etcd("etcd").display().to_string();
    let ports = [free_port()?.to_string(), free_port()?.to_string()];
    let flags = ["--disable-agent", "--cluster-init", "--etcd-binary", &etcd, "--etcd-peer-port", &ports[0]];
    let flags = [&flags[..], &["--etcd-client-port", &ports[1]]].concat();
    let server = Process::start(&flags, Path::new("/nonexistent"))?;
    let k = server.kubectl();
    let url = format!("https://127.0.0.1:{}", server.port);
    let scratch = tempfile::Builder::new().prefix("kelson-test-").tempdir()?;
    let token = created(&server, &["--server"])?.stdout.trim().to_owned();
    let (pin, bootstrap) = token.split_once("::server:").context("the form of the token")?;
    let (id, secret) = bootstrap.split_once('.').context("the form of the token")?;
    let node = created(&server, &[])?.stdout.trim().to_owned();
    let expired = created(&server, &["--server"])?.stdout.trim().to_owned();
    let expired_id = expired.split_once("::server:").and_then(|(_, t)| t.split_once('.')).context("a token")?.0;
    let patch = r#"{"stringData":{"expiration":"2020-01-01T00:00:00Z"}}"#;
    k.ok(&["patch", "secret", "-n", "kube-system", &format!("bootstrap-token-{expired_id}"), "-p", patch])?;
    let wrong_secret = format!("{pin}::server:{id}.{}", "0".repeat(secret.len()));
    let wrong_pin = format!("K10{}::server:{bootstrap}", "0a".repeat(32));
    let node_token = format!("{pin}::server:{node}");
    for (what, token, part) in [
        ("a wrong secret", wrong_secret.as_str(), "it is wrong or has expired"),
        ("a token that has expired", expired.as_str(), "it is wrong or has expired"),
        ("another CA", wrong_pin.as_str(), "the token is of another cluster"),
        ("the token of a node", node_token.as_str(), "does not let this token join a server"),
        ("the token of a node in its own form", node.as_str(), "--token must be the token of a server"),
    ] {
        let dir = scratch.path().join("joining");
        let log = failing_server(&dir, &["--server", &url, "--token", token])?;
        ensure!(log.contains(part) && !log.contains(secret), "{what}: {log}");
        ensure!(!dir.join("pki").exists(), "{what}: nothing was received");
        std::fs::remove_dir_all(dir)?;
    }
    let without = failing_server(&scratch.path().join("joining"), &["--server", &url])?;
    ensure!(without.contains("--server needs --token"), "{without}");

    // A data directory of another cluster is left as it is; a server without a member cannot be joined.
    let plain = Process::start(&["--disable-agent"], Path::new("/nonexistent"))?;
    let refused = created(&plain, &["--server"])?;
    ensure!(refused.code != 0 && refused.stderr.contains("has no etcd member"), "{refused:?}");
    plain.terminate()?;
    let before = std::fs::read(plain.dir.join("pki/ca.key"))?;
    let other = failing_server(&plain.dir, &["--server", &url, "--token", &token])?;
    ensure!(other.contains("belongs to another cluster"), "{other}");
    ensure!(std::fs::read(plain.dir.join("pki/ca.key"))? == before, "its keys are unchanged");
    plain.finish(false)?;
    let mut list = Command::new(binary());
    list.args(["member", "list", "-o", "json", "--data-dir"]).arg(&server.dir);
    let members: Vec<Value> = serde_json::from_str(&Output::of(list)?.stdout)?;
    ensure!(members.len() == 1, "{members:#?}");
    server.finish(false)
}
