//! How plugins come and go: each speaks to the kubelet's socket, is spoken to on its own, and says which devices it has for as long
//! as it is there (upstream: `devicemanager/plugin/v1beta1`).
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

/// The kubelet's socket, beside which the plugins' are.
const SOCKET: &str = "kubelet.sock";
/// The one version of the plugins' API.
const VERSION: &str = "v1beta1";
/// Pause before listening again after a fault.
const RETRY: Duration = Duration::from_secs(5);

/// Takes registrations; cheap to clone.
#[derive(Clone)]
pub struct Registrar {
    /// What is told of plugins.
    pub devices: Devices,
    /// The group of the tasks that follow plugins.
    pub tasks: Tasks,
    following: Arc<Mutex<HashMap<String, Scoped<()>>>>,
}

impl Registrar {
    /// Follows nobody yet.
    pub fn new(devices: Devices, tasks: Tasks) -> Self {
        Self { devices, tasks, following: Arc::default() }
    }

    /// Takes registrations for as long as the task runs. It begins by removing the sockets of plugins that an earlier kubelet
    /// knew, which tells them to register again.
    pub async fn run(self) {
        let dir = self.devices.dir().to_owned();
        loop {
            let cleared = dir.clone();
            if let Ok(Err(error)) = FILES.run(move || checkpoint::clear(&cleared)).await {
                tracing::warn!(%error, dir = %dir.display(), "sockets of device plugins not removed");
            }
            if let Err(error) = grpc::serve(&self.tasks, "device-plugins", &dir.join(SOCKET), self.clone()).await {
                tracing::warn!(%error, dir = %dir.display(), "device plugins cannot register");
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
        tracing::info!(resource, socket = %socket.display(), "a device plugin has registered");
        let (devices, name) = (self.devices.clone(), resource.clone());
        let follow = self.tasks.scoped("device-plugin", async move { follow(&devices, &name, &client, &socket).await });
        // One that registers again takes the place of the one before.
        self.following.lock().insert(resource.clone(), follow);
        Ok(())
    }
}

/// Whether a plugin may offer what it wants to.
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
        return Err(format!("{endpoint:?} is no name of a socket beside the kubelet's"));
    }
    Ok(())
}

/// Takes in what a plugin says of its devices until it is gone.
async fn follow(devices: &Devices, resource: &str, client: &DevicePluginClient, socket: &Path) {
    let why = match client.watch().await {
        Err(e) => e.to_string(),
        Ok(mut lists) => loop {
            match lists.next().await {
                Some(Ok(list)) => devices.listed(resource, list).await,
                Some(Err(e)) => break e.to_string(),
                None => break "it ended the list of its devices".to_owned(),
            }
        },
    };
    tracing::warn!(resource, socket = %socket.display(), why, "a device plugin is gone");
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
                    tracing::warn!(resource = request.resource_name, why, "a device plugin is refused");
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
    fn who_may_register() {
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
