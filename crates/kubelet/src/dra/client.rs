//! Client of a DRA driver.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use kelson_cri::channel::{connect, stream, unary};
use kelson_cri::{Code, CriError, CriResult};
use tokio::time::Instant;
use tonic::Request;
use tonic::transport::Channel;

use super::messages::{ClaimName, ClaimsRequest, DriverHealthList, HealthRequest, PrepareAnswer, UnprepareAnswer};
use crate::metrics::ClaimMetrics;

/// Timeout of calls (upstream: `PluginClientTimeout`).
const DRIVER_MAX: Duration = Duration::from_secs(45);
/// The streaming call by which a driver reports the health of its devices.
const WATCH: (&str, &str) = ("NodeWatchResources", "/v1alpha1.DRAResourceHealth/NodeWatchResources");

/// Version of the drivers' gRPC service. The messages of both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraVersion {
    /// The stable version, `v1.DRAPlugin`.
    V1,
    /// The previous version, `v1beta1.DRAPlugin`.
    V1Beta1,
}

impl DraVersion {
    /// Returns the first version in a driver's list that the kubelet supports.
    ///
    /// # Errors
    /// Why there is none, in upstream's words.
    pub fn choose(named: &[String]) -> Result<Self, String> {
        if named.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".into());
        }
        let known = |name: &String| match name.as_str() {
            "v1.DRAPlugin" => Some(Self::V1),
            "v1beta1.DRAPlugin" => Some(Self::V1Beta1),
            _ => None,
        };
        named.iter().find_map(known).ok_or_else(|| {
            let ours = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];
            format!("none of services supported by the plugin ({named:?}) are supported by the kubelet ({ours:?})")
        })
    }

    fn paths(self) -> [&'static str; 2] {
        match self {
            Self::V1 => [
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            ],
            Self::V1Beta1 => [
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
            ],
        }
    }
}

/// A connection to one driver. Clones share the connection.
#[derive(Clone)]
pub struct DriverClient {
    name: String,
    version: DraVersion,
    channel: Channel,
    metrics: Arc<ClaimMetrics>,
}

impl DriverClient {
    /// Creates a client of the driver that listens on this socket. It connects with the first call.
    ///
    /// # Errors
    /// The path is not absolute or not UTF-8.
    pub fn new(name: &str, socket: &Path, version: DraVersion, metrics: Arc<ClaimMetrics>) -> CriResult<Self> {
        let path = socket
            .to_str()
            .ok_or_else(|| CriError::new("Connect", Code::InvalidArgument, "the path of the socket is not UTF-8"))?;
        Ok(Self { name: name.to_owned(), version, channel: connect(&format!("unix://{path}"))?, metrics })
    }

    /// Lets the driver prepare claims.
    ///
    /// # Errors
    /// The driver's error, or that it was not reached in time.
    pub async fn prepare(&self, claims: Vec<ClaimName>) -> CriResult<PrepareAnswer> {
        self.call("NodePrepareResources", self.version.paths()[0], claims).await
    }

    /// Lets the driver unprepare claims.
    ///
    /// # Errors
    /// As for [`DriverClient::prepare`].
    pub async fn unprepare(&self, claims: Vec<ClaimName>) -> CriResult<UnprepareAnswer> {
        self.call("NodeUnprepareResources", self.version.paths()[1], claims).await
    }

    /// Name of the driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Streams the health of the driver's devices, at first and after each change. It uses the same connection as other calls.
    ///
    /// # Errors
    /// The driver's error, or that it was not reached.
    pub async fn watch_health(&self) -> CriResult<BoxStream<'static, CriResult<DriverHealthList>>> {
        stream(&self.channel, WATCH.0, WATCH.1, HealthRequest {}).await
    }

    async fn call<A: prost::Message + Default + 'static>(
        &self,
        name: &'static str,
        path: &'static str,
        claims: Vec<ClaimName>,
    ) -> CriResult<A> {
        let began = Instant::now();
        let done = unary(&self.channel, name, path, Some(DRIVER_MAX), Request::new(ClaimsRequest { claims })).await;
        let code = done.as_ref().err().map_or_else(|| "OK".to_owned(), |e: &CriError| format!("{:?}", e.code));
        self.metrics.called(&self.name, path, &code, began.elapsed());
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_that_both_know() {
        let choose = |named: &[&str]| DraVersion::choose(&named.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(choose(&["v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(DraVersion::V1Beta1));
        assert_eq!(choose(&["v1.DRAPlugin"]), Ok(DraVersion::V1));
        assert!(choose(&[]).is_err() && choose(&["1.0.0"]).is_err_and(|e| e.contains("none of services")));
    }
}
