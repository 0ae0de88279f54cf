//! A DRA driver for tests (the node's half of dynamic resource allocation): it prepares and unprepares its device, and
//! reports its health.
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::stream::{self, StreamExt as _};
use hyper::body::Frame;
use prost::Message;
use tokio::sync::watch;

use crate::driver::Info;
use crate::grpc::{Frames, GrpcServer, ended, framed};

/// The name of the driver.
pub const DRA_DRIVER: &str = "dra.kelson.local";
/// The pool of its device.
pub const POOL: &str = "kelson-pool";
/// The device, and its name for the runtime.
pub const DEVICE: (&str, &str) = ("first", "kelson.local/device=first");
/// The file in which the runtime looks up devices by name.
const CDI_FILE: &str = "/var/run/cdi/kelson-test.json";
const CDI: &str = r#"{"cdiVersion": "0.5.0", "kind": "kelson.local/device",
  "devices": [{"name": "first", "containerEdits": {"env": ["KELSON_DEVICE=first"]}}]}"#;

#[derive(Clone, PartialEq, Message)]
struct Claims {
    #[prost(message, repeated, tag = "1")]
    claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Message)]
struct Claim {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Prepared {
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, PreparedClaim>,
}

#[derive(Clone, PartialEq, Message)]
struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<ClaimDevice>,
    #[prost(string, tag = "2")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimDevice {
    #[prost(string, repeated, tag = "1")]
    requests: Vec<String>,
    #[prost(string, tag = "2")]
    pool: String,
    #[prost(string, tag = "3")]
    device: String,
    #[prost(string, repeated, tag = "4")]
    cdi: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Unprepared {
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, UnpreparedClaim>,
}

#[derive(Clone, PartialEq, Message)]
struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthList {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<DeviceHealth>,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    device: Option<DeviceName>,
    #[prost(int32, tag = "2")]
    health: i32,
    #[prost(int64, tag = "4")]
    valid_seconds: i64,
    #[prost(string, tag = "5")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceName {
    #[prost(string, tag = "1")]
    pool: String,
    #[prost(string, tag = "2")]
    device: String,
}

/// Whether the device is healthy, and a message.
type Said = (bool, &'static str);

/// A running driver.
pub struct DraDriver {
    calls: Arc<Mutex<Vec<String>>>,
    refuses: Arc<Mutex<&'static str>>,
    health: watch::Sender<Said>,
    _servers: [GrpcServer; 2],
}

impl DraDriver {
    /// Listens and registers with the kubelet of this directory.
    ///
    /// # Errors
    /// Its sockets cannot be created.
    pub fn start(kubelet: &Path) -> anyhow::Result<Self> {
        let home = kubelet.join("plugins").join(DRA_DRIVER);
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all("/var/run/cdi")?;
        std::fs::write(CDI_FILE, CDI)?;
        let endpoint = home.join("dra.sock");
        let info = Info {
            kind: "DRAPlugin".into(),
            name: DRA_DRIVER.into(),
            endpoint: endpoint.display().to_string(),
            versions: vec!["v1.DRAPlugin".into(), "v1beta1.DRAPlugin".into()],
        };
        let (calls, refuses) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<&'static str>>::default());
        let health = watch::channel((true, "")).0;
        let (noted, refusing, said) = (Arc::clone(&calls), Arc::clone(&refuses), health.clone());
        let serves = GrpcServer::at_socket(&endpoint, move |path, message| match path.rsplit('/').next() {
            Some("NodeWatchResources") => reported(said.subscribe()),
            call => {
                let asked = Claims::decode(message).unwrap_or_default();
                let error = (*refusing.lock().expect("no holder panics")).to_owned();
                let is_prepare = call == Some("NodePrepareResources");
                let word = if is_prepare { "prepare" } else { "unprepare" };
                let names = asked.claims.iter().map(|c| format!("{word} {}/{}", c.namespace, c.name));
                noted.lock().expect("no holder panics").extend(names);
                let answer = if is_prepare { prepared(asked, &error) } else { unprepared(asked, &error) };
                one(&answer)
            }
        })?;
        let registers = GrpcServer::at_socket(&kubelet.join("plugins_registry/kelson-dra.sock"), move |path, _| {
            one(&if path.ends_with("/GetInfo") { info.encode_to_vec() } else { Vec::new() })
        })?;
        Ok(Self { calls, refuses, health, _servers: [serves, registers] })
    }

    /// Returns the calls so far: the call and the claim.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("no holder panics").clone()
    }

    /// Fails with this message from now on; with an empty one it succeeds again.
    pub fn refuse(&self, words: &'static str) {
        *self.refuses.lock().expect("no holder panics") = words;
    }

    /// Reports the health of its device.
    pub fn say(&self, works: bool, words: &'static str) {
        self.health.send_replace((works, words));
    }
}

impl Drop for DraDriver {
    fn drop(&mut self) {
        // A second error would hide the first.
        let _ = std::fs::remove_file(CDI_FILE);
    }
}

fn one(message: &[u8]) -> Frames {
    stream::iter([Frame::data(framed(message)), ended("0")]).boxed()
}

fn prepared(asked: Claims, error: &str) -> Vec<u8> {
    let device = ClaimDevice {
        requests: vec!["one".into()],
        pool: POOL.into(),
        device: DEVICE.0.into(),
        cdi: vec![DEVICE.1.into()],
    };
    let devices = if error.is_empty() { vec![device] } else { Vec::new() };
    let of = |c: Claim| (c.uid, PreparedClaim { devices: devices.clone(), error: error.to_owned() });
    Prepared { claims: asked.claims.into_iter().map(of).collect() }.encode_to_vec()
}

fn unprepared(asked: Claims, error: &str) -> Vec<u8> {
    let of = |c: Claim| (c.uid, UnpreparedClaim { error: error.to_owned() });
    Unprepared { claims: asked.claims.into_iter().map(of).collect() }.encode_to_vec()
}

/// Streams the health of the device now, and after each change.
fn reported(changes: watch::Receiver<Said>) -> Frames {
    let next = |(mut changes, is_first): (watch::Receiver<Said>, bool)| async move {
        if !is_first {
            changes.changed().await.ok()?;
        }
        let (works, words) = *changes.borrow_and_update();
        let device = DeviceHealth {
            device: Some(DeviceName { pool: POOL.into(), device: DEVICE.0.into() }),
            health: if works { 1 } else { 2 },
            valid_seconds: 600,
            message: words.to_owned(),
        };
        let list = HealthList { devices: vec![device] };
        Some((Frame::data(framed(&list.encode_to_vec())), (changes, false)))
    };
    stream::unfold((changes, true), next).boxed()
}
