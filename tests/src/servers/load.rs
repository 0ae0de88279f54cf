//! Clients of registers, which are ConfigMaps, and of leases: each step is recorded.
use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_history::{Answer, Call, Line, Registers, Version};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::https::Https;
use super::record::Recorder;

/// The namespace of everything that a round makes.
pub const NAMESPACE: &str = "faults";
/// The path of the registers.
pub const REGISTERS: &str = "/api/v1/namespaces/faults/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/faults/leases";
/// The number of registers. It is small, so that clients use the same ones.
const COUNT: u32 = 6;
/// The register that ends a round.
pub const LAST: &str = "r-last";
/// The pauses of a client between two operations, and of a lease's holder, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 5..60;
const RENEW: Duration = Duration::from_millis(250);
/// One in so many operations of a client goes to another server than its own.
const ELSEWHERE: u32 = 6;

/// Returns the revision and the value of a register, from its object; `None` for other ConfigMaps.
pub fn version(object: &Value) -> Option<(String, Version)> {
    let name = object["metadata"]["name"].as_str()?;
    let value = object["data"]["value"].as_str()?;
    Some((name.to_owned(), (revision(object)?, value.to_owned())))
}

/// Returns the revision of an object or a list.
pub fn revision(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// Reads all registers, and the revision of the list.
pub fn registers(client: &mut Https) -> anyhow::Result<(Registers, u64)> {
    let (code, list) = client.call("GET", REGISTERS, &Value::Null)?;
    ensure!(code == 200, "{REGISTERS}: {code} {list}");
    let items = list["items"].as_array().context("items")?;
    Ok((items.iter().filter_map(version).collect(), revision(&list).context("a list's revision")?))
}

/// One client. A value has the number of its operation, and the seed of its round, so no value is written twice.
pub struct Writer<'a> {
    record: &'a Recorder,
    /// A client of each server, its own server first.
    servers: Vec<Https>,
    dice: StdRng,
    seed: u64,
    /// The last knowledge of each register.
    seen: HashMap<String, Option<u64>>,
}

impl<'a> Writer<'a> {
    /// Creates a client whose server is `home`.
    pub fn new(cluster: &Cluster, record: &'a Recorder, seed: u64, number: u64, home: usize) -> Self {
        let all = cluster.stations.len();
        let servers = (0..all).map(|n| cluster.client((home + n) % all)).collect();
        let dice = StdRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(number));
        Self { record, servers, dice, seed, seen: HashMap::new() }
    }

    /// Works until the load ends.
    pub fn run(&mut self) {
        while !self.record.load_ends() {
            let key = format!("r{}", self.dice.random_range(0..COUNT));
            let away = self.dice.random_ratio(1, ELSEWHERE);
            let server = if away { self.dice.random_range(0..self.servers.len()) } else { 0 };
            let put = self.dice.random_range(0..10);
            let call = match self.seen.get(&key) {
                None => Call::Read,
                Some(_) if put < 3 => Call::Read,
                Some(Some(at)) if put == 3 => Call::Delete(*at),
                Some(at) => Call::Put(*at, String::new()),
            };
            self.operate(server, &key, call);
            std::thread::sleep(Duration::from_millis(self.dice.random_range(PAUSE_MS)));
        }
    }

    /// Performs one operation and records it; returns its answer, or `None` where it is unknown whether it happened.
    pub fn operate(&mut self, server: usize, key: &str, call: Call) -> Option<Answer> {
        let id = self.record.number();
        let call = match call {
            Call::Put(at, _) => Call::Put(at, format!("{}-{id}", self.seed)),
            other => other,
        };
        self.record.line(Line::Call { id, key: key.to_owned(), call: call.clone() });
        let answer = match answer(&mut self.servers[server], key, &call) {
            Ok(answer) => answer,
            Err(why) => {
                self.record.note(format!("operation {id}: {why:#}"));
                self.seen.remove(key);
                return None;
            }
        };
        self.record.line(Line::Answer { id, answer: answer.clone() });
        match &answer {
            Answer::Written(at) if matches!(call, Call::Put(..)) => self.seen.insert(key.to_owned(), Some(*at)),
            Answer::Written(_) | Answer::Found(None) => self.seen.insert(key.to_owned(), None),
            Answer::Found(Some((at, _))) => self.seen.insert(key.to_owned(), Some(*at)),
            Answer::Rejected => self.seen.remove(key),
        };
        Some(answer)
    }
}

/// Sends an operation. An error means that it may have happened.
fn answer(client: &mut Https, key: &str, call: &Call) -> anyhow::Result<Answer> {
    let path = format!("{REGISTERS}/{key}");
    let (code, object) = match call {
        Call::Read => client.call("GET", &path, &Value::Null),
        Call::Put(None, value) => client.call("POST", REGISTERS, &register(key, value, None)),
        Call::Put(Some(at), value) => client.call("PUT", &path, &register(key, value, Some(*at))),
        Call::Delete(at) => {
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": at.to_string()}});
            client.call("DELETE", &path, &options)
        }
    }?;
    let found = || version(&object).map(|(_, version)| version).context("a register");
    Ok(match (code, call) {
        (404, _) => Answer::Found(None),
        (409, Call::Put(..) | Call::Delete(_)) => Answer::Rejected,
        (200, Call::Read) => Answer::Found(Some(found()?)),
        (200 | 201, Call::Put(..)) => Answer::Written(found()?.0),
        // The history finds the revision.
        (200, Call::Delete(_)) => Answer::Written(0),
        _ => anyhow::bail!("{code} {}", object["message"]),
    })
}

fn register(key: &str, value: &str, at: Option<u64>) -> Value {
    let filling = "x".repeat(value.len() * 97 % 900);
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": key}, "data": {"value": value, "filling": filling}});
    if let Some(at) = at {
        object["metadata"]["resourceVersion"] = at.to_string().into();
    }
    object
}

/// A holder of a lease, as a node or a leader is: one writer, whose counter never goes back.
pub struct Holder {
    name: String,
    servers: Vec<Https>,
    /// The last counter that was sent, and the last one that was acknowledged.
    sent: u64,
    acknowledged: u64,
}

impl Holder {
    /// Creates a holder of a lease, which exists from a first round on.
    pub fn new(cluster: &Cluster, name: &str, seed: u64) -> anyhow::Result<Self> {
        let mut servers: Vec<Https> = (0..cluster.stations.len()).map(|n| cluster.client(n)).collect();
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseTransitions": 0}});
        let (code, made) = servers[0].call("POST", LEASES, &lease)?;
        ensure!(code == 201 || code == 409, "{code} {made}");
        let at = u64::try_from(usize::try_from(seed)? % servers.len())?;
        servers.rotate_left(usize::try_from(at)?);
        let stored = Self::stored(&mut servers[0], name)?;
        Ok(Self { name: name.to_owned(), servers, sent: stored, acknowledged: stored })
    }

    fn stored(client: &mut Https, name: &str) -> anyhow::Result<u64> {
        let (code, lease) = client.call("GET", &format!("{LEASES}/{name}"), &Value::Null)?;
        ensure!(code == 200, "{code} {lease}");
        lease["spec"]["leaseTransitions"].as_u64().context("a counter")
    }

    /// Renews it until the load ends, at another server after each failure.
    pub fn run(&mut self, record: &Recorder) {
        while !record.load_ends() {
            self.sent += 1;
            let patch = json!({"spec": {"leaseTransitions": self.sent}});
            match self.servers[0].call("PATCH", &format!("{LEASES}/{}", self.name), &patch) {
                Ok((200, _)) => self.acknowledged = self.sent,
                other => {
                    record.note(format!("lease {}: {:?}", self.name, other.map(|(code, _)| code)));
                    self.servers.rotate_left(1);
                }
            }
            std::thread::sleep(RENEW);
        }
    }

    /// Checks that the lease is what was acknowledged last, or what was sent afterwards.
    pub fn check(&self, clients: &mut [Https]) -> anyhow::Result<()> {
        for client in clients {
            let stored = Self::stored(client, &self.name)?;
            ensure!(
                (self.acknowledged..=self.sent).contains(&stored),
                "lease {} is at {stored}, {} was acknowledged and {} was sent",
                self.name,
                self.acknowledged,
                self.sent
            );
        }
        Ok(())
    }
}
