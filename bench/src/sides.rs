//! The servers that `curves` measures: one in this process or a running one, and a peer.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on panics")]

use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use kelson_client::Client;
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::Remote;
use serde_json::Value;

pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
pub const ALL: &str = "/api/v1/pods";
/// CPU time after which a row is not repeated, in milliseconds; the clock of processes counts ten at a time.
const CPU_ENOUGH_MS: u64 = 400;
/// Ticks in a second of the CPU time that `/proc` shows (USER_HZ).
const TICKS_A_SECOND: u64 = 100;
const REPEATS_MAX: usize = 200;

/// A server that is measured.
pub struct Side {
    pub client: Client,
    pub pids: Vec<u32>,
    /// How to reach a server in another process.
    pub config: Option<Config>,
    /// The command that starts the server again, and prints its processes.
    pub restart: Option<String>,
}

fn connect(config: &Config) -> anyhow::Result<Client> {
    let remote = Remote::new(config.clone()).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(Client::new(Arc::new(remote), "curves"))
}

impl Side {
    /// The server that variables with this prefix name.
    pub fn named(prefix: &str) -> anyhow::Result<Option<Self>> {
        let variable = |name: &str| std::env::var(format!("{prefix}_{name}")).ok().filter(|value| !value.is_empty());
        let Some(server) = variable("URL") else { return Ok(None) };
        let credentials = Credentials::Token(variable("TOKEN").context("a token is missing")?);
        let config = Config { server, insecure_skip_tls_verify: true, credentials, ..Config::default() };
        let client = connect(&config)?;
        let pids = variable("PIDS").context("the server's processes are missing")?;
        let (pids, restart) = (Self::processes(&pids)?, variable("RESTART"));
        Ok(Some(Self { client, pids, config: Some(config), restart }))
    }

    /// Reads processes, which are separated by commas.
    pub fn processes(pids: &str) -> anyhow::Result<Vec<u32>> {
        pids.split(',').map(|pid| pid.trim().parse().context("a process")).collect()
    }

    /// A client that shares no connection: streams of one connection share its flow control, so one that is not read stops the others.
    pub fn another_client(&self) -> anyhow::Result<Client> {
        self.config.as_ref().map_or_else(|| Ok(self.client.clone()), connect)
    }

    /// CPU time of the server's processes so far, in milliseconds.
    pub fn cpu_ms(&self) -> u64 {
        let ticks = |pid: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        };
        self.pids.iter().map(ticks).sum::<u64>() * 1000 / TICKS_A_SECOND
    }

    /// The most memory of the server's processes so far, in megabytes.
    pub fn peak_mb(&self) -> u64 {
        self.memory_mb("VmHWM:")
    }

    /// The memory of the server's processes, in megabytes.
    pub fn resident_mb(&self) -> u64 {
        self.memory_mb("VmRSS:")
    }

    fn memory_mb(&self, field: &str) -> u64 {
        let value = |pid: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = text.lines().find(|line| line.starts_with(field)).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
        };
        self.pids.iter().map(value).sum()
    }

    /// Sends a request with a JSON body, and does not read the response.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<()> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { JSON };
        Ok(self.client.call_unread(method, path, kind, Bytes::from(body.to_string())).await?)
    }

    /// Reads a response to its end and drops it.
    pub async fn read(&self, path: &str, accept: &'static str) -> anyhow::Result<()> {
        let response = self.client.raw_accepting(Method::GET, path, "", accept, Bytes::new()).await?;
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(())
    }

    /// The revision of an empty list or a small one.
    pub async fn revision(&self, path: &str) -> anyhow::Result<String> {
        let list = self.client.call(Method::GET, &format!("{path}?limit=1"), "", Bytes::new()).await?;
        let list: Value = serde_json::from_slice(&list)?;
        Ok(list["metadata"]["resourceVersion"].as_str().context("a list without a revision")?.to_owned())
    }

    /// CPU time of one turn of `work`, in milliseconds.
    pub async fn cost<F: Future<Output = anyhow::Result<()>>>(
        &self,
        mut work: impl FnMut(usize) -> F,
    ) -> anyhow::Result<f64> {
        // What is made on first use (indexes, encoded forms) is made before.
        work(0).await?;
        let (before, mut turns) = (self.cpu_ms(), 0);
        while turns < REPEATS_MAX && self.cpu_ms() - before < CPU_ENOUGH_MS {
            turns += 1;
            work(turns).await?;
        }
        Ok((self.cpu_ms() - before) as f64 / turns as f64)
    }
}

pub fn print(what: &str, size: usize, costs: &[f64]) {
    let costs: String = costs.iter().map(|ms| format!(" {ms:>12.3}")).collect();
    println!("{what:<44} {size:>8}{costs}");
}
