//! Test clusters over HTTP, for tests in other languages: `http` has the interface, `clusters` the clusters.
//!
//! | request | answer |
//! |---|---|
//! | `POST /clusters` `{"from": NAME, "options": {…}}`, both optional | 201, a cluster: new, or a fork of the named one |
//! | `GET /clusters` | 200, the names and addresses of all |
//! | `GET /clusters/NAME` | 200, that cluster |
//! | `DELETE /clusters/NAME` | 204 when nothing of it runs any more |
//! | `GET /healthz` | 200 |
//!
//! A cluster is `{"name", "server", "certificateAuthority", "kubeconfig"}`. An error is `{"error": TEXT}` with a matching status.
mod address;
mod clusters;
mod http;

use kelson_tasks::Tasks;

pub use address::Address;

/// A running server.
pub struct Running {
    tasks: Tasks,
    clusters: std::sync::Arc<clusters::Clusters>,
    address: Address,
}

/// Starts serving; `clusters_max` is the maximum number of clusters.
///
/// # Errors
/// The address cannot be bound, or is not on this machine.
pub async fn start(address: Address, clusters_max: usize, tasks: &Tasks) -> std::io::Result<Running> {
    let tasks = tasks.child("test-server");
    let clusters = std::sync::Arc::new(clusters::Clusters::new(clusters_max));
    let address = http::listen(address, std::sync::Arc::clone(&clusters), &tasks).await?;
    Ok(Running { tasks, clusters, address })
}

impl Running {
    /// Returns the address, with the actual port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Stops it and all its clusters.
    pub async fn shutdown(self) {
        self.tasks.shutdown(std::time::Duration::from_secs(2)).await;
        self.clusters.end_all().await;
    }
}
