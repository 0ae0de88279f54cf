//! A device plugin (`v1beta1`) for tests: it registers, reports devices and their health, and allocates them to
//! containers. Each device is a node of `/dev/null`, a variable and a directory.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures::stream::{self, StreamExt as _};
use hyper::body::Frame;
use prost::Message;
use tokio::sync::watch;

use crate::grpc::{Frames, GrpcServer, call, ended, framed};

/// The resource of the plugin.
pub const RESOURCE: &str = "test.kelson.local/null";
const ENDPOINT: &str = "kelson-test.sock";

#[derive(Clone, PartialEq, Message)]
struct Register {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    endpoint: String,
    #[prost(string, tag = "3")]
    resource_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Device {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    health: String,
    #[prost(message, optional, tag = "3")]
    topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
struct Topology {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<NumaNode>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct NumaNode {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Devices {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Message)]
struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Ids>,
}

#[derive(Clone, PartialEq, Message)]
struct Ids {
    #[prost(string, repeated, tag = "1")]
    ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Allocated {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ContainerAllocateResponse>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerAllocateResponse {
    #[prost(map = "string, string", tag = "1")]
    envs: HashMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "3")]
    devices: Vec<DeviceNode>,
}

#[derive(Clone, PartialEq, Message)]
struct Mount {
    #[prost(string, tag = "1")]
    container_path: String,
    #[prost(string, tag = "2")]
    host_path: String,
    #[prost(bool, tag = "3")]
    read_only: bool,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceNode {
    #[prost(string, tag = "1")]
    container_path: String,
    #[prost(string, tag = "2")]
    host_path: String,
    #[prost(string, tag = "3")]
    permissions: String,
}

/// A device by its name, and whether it is healthy.
pub type Health = (&'static str, bool);

/// A running plugin.
pub struct DevicePlugin {
    /// The kubelet's directory of device plugins.
    dir: PathBuf,
    devices: watch::Sender<Vec<Health>>,
    /// The requested devices of each call.
    allocated: Arc<Mutex<Vec<Vec<String>>>>,
    _server: GrpcServer,
}

impl DevicePlugin {
    /// Listens in the kubelet's directory of plugins and registers; `shown` is a directory that containers see at
    /// `/plugin`.
    ///
    /// # Errors
    /// The kubelet does not accept it.
    pub fn start(dir: &Path, shown: &Path, devices: &[Health]) -> anyhow::Result<Self> {
        let devices = watch::channel(devices.to_vec()).0;
        let allocated = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let (lists, asked, shown) = (devices.clone(), Arc::clone(&allocated), shown.display().to_string());
        let server = GrpcServer::at_socket(&dir.join(ENDPOINT), move |path, message| match path.rsplit('/').next() {
            Some("ListAndWatch") => listed(lists.subscribe()),
            Some("Allocate") => {
                let wanted = AllocateRequest::decode(message).unwrap_or_default();
                let answer =
                    Allocated { containers: wanted.containers.iter().map(|ids| given(&ids.ids, &shown)).collect() };
                asked.lock().expect("no holder panics").extend(wanted.containers.into_iter().map(|ids| ids.ids));
                one(&answer.encode_to_vec())
            }
            _ => one(&[]),
        })?;
        let request = Register { version: "v1beta1".into(), endpoint: ENDPOINT.into(), resource_name: RESOURCE.into() };
        call(&dir.join("kubelet.sock"), "/v1beta1.Registration/Register", &request.encode_to_vec())?;
        Ok(Self { dir: dir.to_owned(), devices, allocated, _server: server })
    }

    /// Reports another list of devices.
    pub fn report(&self, devices: &[Health]) {
        self.devices.send_replace(devices.to_vec());
    }

    /// Returns the devices of each call so far.
    pub fn allocated(&self) -> Vec<Vec<String>> {
        self.allocated.lock().expect("no holder panics").clone()
    }

    /// Reports whether the kubelet has left its socket: a starting kubelet removes it.
    pub fn is_there(&self) -> bool {
        self.dir.join(ENDPOINT).exists()
    }
}

fn one(message: &[u8]) -> Frames {
    stream::iter([Frame::data(framed(message)), ended("0")]).boxed()
}

/// Streams the devices now, and after each change.
fn listed(changes: watch::Receiver<Vec<Health>>) -> Frames {
    let next = |(mut changes, is_first): (watch::Receiver<Vec<Health>>, bool)| async move {
        if !is_first {
            changes.changed().await.ok()?;
        }
        let now = changes.borrow_and_update().clone();
        let devices = now.into_iter().map(|(id, works)| Device {
            id: id.to_owned(),
            health: if works { "Healthy" } else { "Unhealthy" }.to_owned(),
            topology: Some(Topology { nodes: vec![NumaNode { id: 0 }] }),
        });
        let list = Devices { devices: devices.collect() };
        Some((Frame::data(framed(&list.encode_to_vec())), (changes, false)))
    };
    stream::unfold((changes, true), next).boxed()
}

fn given(ids: &[String], shown: &str) -> ContainerAllocateResponse {
    let node = |id: &String| DeviceNode {
        container_path: format!("/dev/{id}"),
        host_path: "/dev/null".into(),
        permissions: "rw".into(),
    };
    ContainerAllocateResponse {
        envs: [("DEVICES".to_owned(), ids.join(" "))].into(),
        mounts: vec![Mount { container_path: "/plugin".into(), host_path: shown.to_owned(), read_only: true }],
        devices: ids.iter().map(node).collect(),
    }
}

#[derive(Clone, PartialEq, Message)]
struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
struct PodResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerResources {
    #[prost(message, repeated, tag = "2")]
    devices: Vec<ContainerDevices>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerDevices {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

/// Returns the devices of a pod from the kubelet's PodResources API (`PodResourcesLister` v1).
///
/// # Errors
/// The socket does not answer.
pub fn reported_of(socket: &Path, pod: &str) -> anyhow::Result<Vec<String>> {
    let answer = call(socket, "/v1.PodResourcesLister/List", &[])?;
    let list = ListPodResourcesResponse::decode(answer.as_slice())?;
    let devices = list.pods.into_iter().filter(|p| p.name == pod).flat_map(|p| p.containers).flat_map(|c| c.devices);
    let mut ids: Vec<String> = devices.filter(|d| d.resource == RESOURCE).flat_map(|d| d.ids).collect();
    ids.sort();
    Ok(ids)
}
