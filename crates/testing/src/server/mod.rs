//! Clusters handed out over HTTP, for tests in other languages: `http` speaks, `clusters` holds them.
//!
//! | request | answer |
//! |---|---|
//! | `POST /clusters` `{"from": NAME, "options": {…}}`, both optional | 201, a cluster: new, or as the one named is now |
//! | `GET /clusters` | 200, the names and addresses of all |
//! | `GET /clusters/NAME` | 200, that cluster |
//! | `DELETE /clusters/NAME` | 204 when nothing of it runs any more |
//! | `GET /healthz` | 200 |
//!
//! A cluster is `{"name", "server", "certificateAuthority", "kubeconfig"}`. What goes wrong is `{"error": TEXT}` with a fitting status.
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

/// Starts serving; `clusters_max` is how many may live at once.
///
/// # Errors
/// When the address cannot be listened on, or is not on this machine.
pub async fn start(address: Address, clusters_max: usize, tasks: &Tasks) -> std::io::Result<Running> {
    let tasks = tasks.child("test-server");
    let clusters = std::sync::Arc::new(clusters::Clusters::new(clusters_max));
    let address = http::listen(address, std::sync::Arc::clone(&clusters), &tasks).await?;
    Ok(Running { tasks, clusters, address })
}

impl Running {
    /// Where it listens, with the port that it got.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Ends it and all its clusters.
    pub async fn shutdown(self) {
        self.tasks.shutdown(std::time::Duration::from_secs(2)).await;
        self.clusters.end_all().await;
    }
}
