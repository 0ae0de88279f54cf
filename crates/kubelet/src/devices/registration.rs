//! Registration of device plugins. A plugin calls `Register` on the kubelet's socket; the kubelet connects to the plugin's socket and
//! follows its list of devices as long as the plugin exists (upstream: `devicemanager/plugin/v1beta1`).
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use kelson_meta::is_qualified_name;
use kelson_tasks::{FILES, Scoped, Tasks};
use parking_lot::Mutex;
use tonic::Status;
use tonic::body::Body;

use super::client::DevicePluginClient;
use super::messages::{Empty, RegisterRequest};
use super::plugins::Devices;
use super::{checkpoint, grpc};

/// Name of the kubelet's socket, in the directory of the plugins' sockets.
const SOCKET: &str = "kubelet.sock";
/// The supported version of the device plugin API.
const VERSION: &str = "v1beta1";
/// Delay before listening again after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Handles registrations. Clones share the state.
#[derive(Clone)]
pub struct Registrar {
    /// Receives the plugins and their devices.
    pub devices: Devices,
    /// Task group for following plugins.
    pub tasks: Tasks,
    following: Arc<Mutex<HashMap<String, Scoped<()>>>>,
}

impl Registrar {
    /// Creates a registrar without plugins.
    pub fn new(devices: Devices, tasks: Tasks) -> Self {
        Self { devices, tasks, following: Arc::default() }
    }

    /// Serves registrations until the task is aborted. First removes the sockets of plug-ins that an earlier kubelet
    /// knew, so that they register again.
    pub async fn run(self) {
        let dir = self.devices.dir().to_owned();
        loop {
            let cleared = dir.clone();
            if let Ok(Err(error)) = FILES.run(move || checkpoint::clear(&cleared)).await {
                tracing::warn!(%error, dir = %dir.display(), "cannot remove old sockets of device plugins");
            }
            if let Err(error) = grpc::serve(&self.tasks, "device-plugins", &dir.join(SOCKET), self.clone()).await {
                tracing::warn!(%error, dir = %dir.display(), "cannot serve the device plugin registration socket; retrying");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn register(&self, request: &RegisterRequest) -> Result<(), String> {
        let resource = &request.resource_name;
        judge(request)?;
        self.devices.metrics().registered(resource);
        let socket = self.devices.dir().join(&request.endpoint);
        let client = DevicePluginClient::new(&socket).map_err(|e| e.to_string())?;
        self.devices.registered(resource, client.clone(), request.options.unwrap_or_default())?;
        tracing::info!(resource, socket = %socket.display(), "device plugin registered");
        let (devices, name) = (self.devices.clone(), resource.clone());
        let follow = self.tasks.scoped("device-plugin", async move { follow(&devices, &name, &client, &socket).await });
        // A new registration replaces the previous one of the resource.
        self.following.lock().insert(resource.clone(), follow);
        Ok(())
    }
}

/// Validates a registration.
fn judge(request: &RegisterRequest) -> Result<(), String> {
    if request.version != VERSION {
        return Err(format!(
            "requested API version {:?} is not supported by kubelet. Supported version is {:?}",
            request.version,
            [VERSION]
        ));
    }
    let name = &request.resource_name;
    let is_native = !name.contains('/') || name.contains("kubernetes.io/") || name.starts_with("requests.");
    if is_native || is_qualified_name(&format!("requests.{name}")).is_err() {
        return Err(format!("the ResourceName {name:?} is invalid"));
    }
    let endpoint = &request.endpoint;
    if endpoint.is_empty() || endpoint.contains('/') || endpoint.starts_with('.') || endpoint == SOCKET {
        return Err(format!("{endpoint:?} is not a file name of a socket"));
    }
    Ok(())
}

/// Follows a plugin's list of devices until the plugin is gone.
async fn follow(devices: &Devices, resource: &str, client: &DevicePluginClient, socket: &Path) {
    let why = match client.watch().await {
        Err(e) => e.to_string(),
        Ok(mut lists) => loop {
            match lists.next().await {
                Some(Ok(list)) => devices.listed(resource, list).await,
                Some(Err(e)) => break e.to_string(),
                None => break "the plugin closed the stream of its devices".to_owned(),
            }
        },
    };
    tracing::warn!(resource, socket = %socket.display(), why, "device plugin disconnected");
    devices.gone(resource);
}

impl grpc::GrpcService for Registrar {
    fn call(&self, request: http::Request<Incoming>) -> BoxFuture<'static, http::Response<Body>> {
        let me = self.clone();
        Box::pin(async move {
            if request.uri().path() != "/v1beta1.Registration/Register" {
                return grpc::unknown();
            }
            grpc::answer(request, move |request: RegisterRequest| {
                let done = me.register(&request).inspect_err(|why| {
                    tracing::warn!(
                        resource = request.resource_name,
                        why,
                        "rejected the registration of a device plugin"
                    );
                });
                async move { done.map(|()| Empty {}).map_err(Status::unknown) }
            })
            .await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_are_validated() {
        let request = |version: &str, resource: &str, endpoint: &str| RegisterRequest {
            version: version.into(),
            endpoint: endpoint.into(),
            resource_name: resource.into(),
            options: None,
        };
        assert_eq!(judge(&request("v1beta1", "example.com/gpu", "gpu.sock")), Ok(()));
        for resource in ["gpu", "kubernetes.io/gpu", "requests.example.com/gpu", "example.com/", "example.com/a b", ""]
        {
            let why = judge(&request("v1beta1", resource, "gpu.sock"));
            assert_eq!(why, Err(format!("the ResourceName {resource:?} is invalid")));
        }
        let why = judge(&request("v1alpha", "example.com/gpu", "gpu.sock")).expect_err("another version");
        assert_eq!(
            why,
            "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
        );
        for endpoint in ["", "../x.sock", "a/b.sock", ".hidden", "kubelet.sock"] {
            assert!(judge(&request("v1beta1", "example.com/gpu", endpoint)).is_err(), "{endpoint}");
        }
    }
}
