//! Checks periodically whether etcd answers and how large its data is, for health checks and metrics.

use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::client::Client;
use kelson_etcd::proto::{RangeRequest, StatusResponse};
use tonic::transport::Channel;

use crate::connection::{CallError, Connection};
use crate::core::{Core, Finder};
use crate::metrics::Metrics;

/// The interval between two checks.
const EVERY: Duration = Duration::from_secs(5);
/// The key that is read; it need not be there (upstream's check reads the same).
const KEY: &str = "health";

/// Looks whether a read is answered within `limit`, for as long as it runs.
pub(crate) async fn run(core: &Arc<Core>, limit: Duration) {
    loop {
        let request = RangeRequest { key: KEY.into(), ..Default::default() };
        let fault = match tokio::time::timeout(limit, core.connection.range("health", request)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(format!("etcd is not reachable: {error}")),
            Err(_) => Some(format!("etcd has not responded for {} ms", limit.as_millis())),
        };
        core.mirror.fault(core.faults.found(Finder::Probe, fault));
        tokio::time::sleep(EVERY).await;
    }
}

/// Version and size of the member that answers.
pub(crate) async fn status(connection: &Connection) -> Result<StatusResponse, CallError> {
    connection.read("status", |mut client: Client<Channel>| async move { client.status().await }).await
}

/// Reports the size of the data until the task is cancelled.
pub(crate) async fn poll_size(connection: &Connection, metrics: &Metrics, every: Duration) {
    loop {
        match status(connection).await {
            Ok(status) => metrics.size(status.db_size),
            Err(error) => tracing::debug!(%error, "reading the size of etcd's database failed"),
        }
        tokio::time::sleep(every).await;
    }
}
