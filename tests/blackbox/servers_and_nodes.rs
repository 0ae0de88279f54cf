//! Servers with etcd members and the agent of a node beside them: the agent votes, and the CAs of several servers are replaced.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::servers::{Https, Network, etcd, trust};
use kelson_blackbox::{Agent, Kubectl, Needs::OwnNode, Outcome, Subject, Test, eventually, sh};
use serde_json::Value;

use crate::identity::signing_pin;
use crate::joining_servers::{PATIENCE, PORT, SERVERS, Servers};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "servers_and_nodes::two_servers_and_an_agent_that_votes", needs: OwnNode, run: vote },
        Test { name: "servers_and_nodes::cas_of_two_servers_are_replaced", needs: OwnNode, run: rotation },
    ]
}

/// The machine of the node.
const NODE: usize = 2;
/// The pause between requests of a client that polls.
const POLL: Duration = Duration::from_millis(50);
/// The lines of a log in an error.
const TAIL: usize = 20;

/// Runs a test on its own thread, since it moves to the network of the servers.
fn on_its_own_thread(test: fn() -> Outcome) -> Outcome {
    std::thread::spawn(test).join().map_err(|_| anyhow::anyhow!("the test panicked"))?
}

fn vote(_: &Subject) -> Outcome {
    on_its_own_thread(two_servers_and_an_agent_that_votes)
}

fn rotation(_: &Subject) -> Outcome {
    on_its_own_thread(cas_of_two_servers_are_replaced)
}

fn url(n: usize) -> String {
    format!("https://{}:{PORT}", Network::address(n))
}

/// Starts two servers with members, which are ready.
pub(crate) fn two_servers() -> anyhow::Result<Servers> {
    let mut servers = Servers::new()?;
    servers.start(0, &["--cluster-init"])?;
    servers.until_ready(0)?;
    let command = servers.command(0, &["token", "create", "--server", "--print-join-command"])?;
    let join: Vec<&str> = command.split_whitespace().skip(2).collect();
    servers.start(1, &join)?;
    servers.until_ready(1)?;
    Ok(servers)
}

/// The node of the third machine and its agent.
struct Beside {
    name: String,
    token: String,
    agent: Agent,
}

impl Beside {
    /// Starts the agent with the addresses of both servers and more flags.
    fn start(servers: &Servers, more: &[&str]) -> anyhow::Result<Self> {
        let name = format!("beside-{}", servers.network.machine(NODE));
        let token = servers.command(0, &["token", "create"])?;
        let args = Self::args(&name, &token);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let machine = servers.network.machine(NODE);
        let mut agent = Agent::within(Some(&machine), &[&args[..], more].concat(), Path::new("/nonexistent"))?;
        agent.launch()?;
        Ok(Self { name, token, agent })
    }

    fn args(name: &str, token: &str) -> [String; 6] {
        let servers = format!("{},{}", url(0), url(1));
        ["--server", &servers, "--node-name", name, "--token", token].map(str::to_owned)
    }

    /// Starts the agent again with the flags of the node and more.
    fn restart(&mut self, more: &[&str]) -> Outcome {
        self.agent.terminate()?;
        let args = Self::args(&self.name, &self.token);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.agent.report(&[&args[..], more].concat());
        self.agent.launch()
    }

    fn renewed(&self, servers: &Servers, from: usize) -> anyhow::Result<String> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", self.name);
        let (code, lease) = servers.client(from)?.call("GET", &path, &Value::Null)?;
        Ok(lease["spec"]["renewTime"].as_str().with_context(|| format!("{code} {lease}"))?.to_owned())
    }

    /// Waits until the node renews its Lease, as a server shows it.
    fn until_renewed(&self, servers: &Servers, from: usize) -> Outcome {
        let before = eventually("the node has a Lease", PATIENCE, || self.renewed(servers, from))?;
        eventually("the node renews its Lease", PATIENCE, || {
            ensure!(self.renewed(servers, from)? != before, "it is of {before}");
            Ok(())
        })
    }

    fn log_tail(&self) -> String {
        let log = self.agent.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}

/// Waits until all members vote, as a server knows; returns the ID of the node's member.
fn until_all_vote(servers: &Servers, from: usize, name: &str) -> anyhow::Result<String> {
    eventually("three members vote", PATIENCE, || {
        let members = servers.members(from)?;
        let voters = members.iter().filter(|m| m["role"] != "learner" && m["isRunning"] == true).count();
        ensure!(voters == SERVERS, "{members:#?}");
        let own = members.iter().find(|m| m["name"] == name).with_context(|| format!("{members:#?}"))?;
        Ok(own["id"].as_str().context("an ID")?.to_owned())
    })
}

fn two_servers_and_an_agent_that_votes() -> Outcome {
    let mut servers = two_servers()?;
    let token = servers.command(0, &["token", "create", "--vote"])?;
    let (dir, etcd) = (servers.dir(NODE).display().to_string(), etcd("etcd").display().to_string());
    let member = ["--vote", "--vote-data-dir", &dir, "--etcd-binary", &etcd];
    let mut node = Beside::start(&servers, &[&member[..], &["--vote-token", &token]].concat())?;
    let done = counted(&mut servers, &mut node, &member);
    done.with_context(|| format!("log of the agent:\n{}", node.log_tail()))
}

/// Its vote counts while a server is lost, and is the same one after a restart of the agent.
fn counted(servers: &mut Servers, node: &mut Beside, member: &[&str]) -> Outcome {
    let id = until_all_vote(servers, 1, &node.name)?;
    node.until_renewed(servers, 1)?;
    ensure!(!servers.dir(NODE).join("pki").exists(), "the member has no key of the API");

    servers.programs[0].kill();
    servers.write(1, "without-0")?;
    node.until_renewed(servers, 1)?;
    servers.start(0, &[])?;
    servers.until_ready(0)?;

    node.restart(member)?;
    ensure!(until_all_vote(servers, 0, &node.name)? == id, "the member is another one");
    node.until_renewed(servers, 0)?;
    servers.programs[1].kill();
    servers.write(0, "without-1")?;
    servers.read(0, "without-0")
}

/// A client that knows only the old CA, and polls both servers.
struct Poll {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Vec<String>)>,
}

impl Poll {
    fn start(tls: &Arc<rustls::ClientConfig>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, tls) = (Arc::clone(&stop), Arc::clone(tls));
        let ask = move |n: usize| -> Outcome {
            // Each on its own connection, so that certificates are verified.
            let mut client = Https::new(Network::address(n).into(), PORT, Arc::clone(&tls));
            let (code, answer) = client.call("GET", "/api/v1/namespaces/default", &Value::Null)?;
            ensure!(code == 200, "{code} {answer}");
            Ok(())
        };
        let thread = std::thread::spawn(move || {
            let (mut asked, mut faults) = (0, Vec::new());
            while !stopped.load(Ordering::SeqCst) {
                asked += 1;
                faults.extend((0..2).filter_map(|n| Some(format!("server {n}: {:#}", ask(n).err()?))));
                std::thread::sleep(POLL);
            }
            (asked, faults)
        });
        Self { stop, thread }
    }

    /// Ends it; no request may have failed.
    fn end(self) -> Outcome {
        self.stop.store(true, Ordering::SeqCst);
        let (asked, faults) = self.thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
        ensure!(asked > 0 && faults.is_empty(), "{} faults in {asked} rounds: {:?}", faults.len(), faults.first());
        Ok(())
    }
}

fn cas_of_two_servers_are_replaced() -> Outcome {
    let mut servers = two_servers()?;
    let node = Beside::start(&servers, &[])?;
    let done = replaced(&mut servers, &node);
    done.with_context(|| {
        let logs = [0, 1].map(|n| servers.programs[n].log_tail(TAIL));
        format!("log of the agent:\n{}\nof the servers:\n{}", node.log_tail(), logs.join("\n---\n"))
    })
}

fn replaced(servers: &mut Servers, node: &Beside) -> Outcome {
    node.until_renewed(servers, 0)?;
    let old_file = servers.dir(0).join("old.kubeconfig");
    std::fs::copy(servers.dir(0).join("admin.kubeconfig"), &old_file)?;
    let old = servers.tls.clone().context("the trust of clients")?;
    let poll = Poll::start(&old);
    let during = renewed_everywhere(servers, node);
    let polled = poll.end();
    during.and(polled)?;

    // Each server drops the old CAs on its own.
    let said = servers.command(0, &["certificate", "rotate-ca", "--finish"])?;
    ensure!(said.contains("the same command on the other servers") && said.contains(&url(1)), "{said}");
    servers.command(1, &["certificate", "rotate-ca", "--finish"])?;
    for n in 0..2 {
        eventually("a client that knows only the old CA is rejected", PATIENCE, || {
            let answer =
                Https::new(Network::address(n).into(), PORT, Arc::clone(&old)).call("GET", "/version", &Value::Null);
            ensure!(answer.is_err(), "{answer:?}");
            Ok(())
        })?;
        let by_certificate = Kubectl::new(old_file.clone());
        let words = ["get", "namespaces", "--insecure-skip-tls-verify", "--server", &url(n)];
        eventually("an old client certificate is rejected", PATIENCE, || by_certificate.fails(&words).map(drop))?;
    }
    servers.write(0, "after")?;
    servers.read(1, "after")?;
    node.until_renewed(servers, 1)?;
    // It starts with only the new CAs.
    servers.programs[1].kill();
    servers.start(1, &[])?;
    servers.until_ready(1)?;
    servers.read(1, "after")
}

/// Replaces the CAs of both servers, and waits until they and the node use them. Clients trust the new ones afterwards.
fn renewed_everywhere(servers: &mut Servers, node: &Beside) -> Outcome {
    let said = servers.command(0, &["certificate", "rotate-ca"])?;
    ensure!(said.contains(&url(0)) && said.contains(&url(1)) && said.contains("DIR/pki/*.crt"), "{said}");
    let early = servers.command(0, &["certificate", "rotate-ca", "--finish"]).err().context("it must fail")?;
    let early = format!("{early:#}");
    ensure!(early.contains("these servers do not use the new CAs") && early.contains(&url(1)), "{early}");
    ensure!(!early.contains(&format!("{};", url(0))) && !early.contains(&format!("{},", url(0))), "{early}");
    let (from, to) = (servers.dir(0).join("pki"), servers.dir(1).join("pki"));
    sh(&format!("cp {0}/*.crt {0}/*.key {1}", from.display(), to.display()))?;
    servers.tls = Some(trust(&from.join("ca.crt"))?);
    for n in 0..2 {
        eventually(&format!("server {n} has a certificate of the new CA"), PATIENCE, || {
            let (code, answer) = servers.client(n)?.call("GET", "/version", &Value::Null)?;
            ensure!(code == 200, "{code} {answer}");
            Ok(())
        })?;
    }
    let pin = signing_pin(&servers.dir(0))?;
    let path = format!("/api/v1/nodes/{}", node.name);
    eventually("the node uses the new CAs", PATIENCE, || {
        let (code, shown) = servers.client(1)?.call("GET", &path, &Value::Null)?;
        let report = shown["metadata"]["annotations"]["certificates.kelson.dev/authorities"].as_str();
        ensure!(report.is_some_and(|report| report.contains(&pin)), "{code} {report:?}, not {pin}");
        Ok(())
    })
}
