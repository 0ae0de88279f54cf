//! Starts a server.

use std::sync::Arc;

use kelson_tasks::{OnPanic, Tasks};

use super::face::Face;
use super::listen::Listener;
use super::metrics::Metrics;
use super::options::{Address, Endpoint, ServerOptions, StartError};
use super::tls;
use crate::store::Store;

/// A running server; it ends with its group of tasks.
#[derive(Debug)]
pub struct Server {
    /// The addresses for clients.
    pub clients: Vec<Address>,
    /// The addresses for health and metrics.
    pub metrics: Vec<Address>,
}

impl Server {
    /// Binds the endpoints and serves them.
    ///
    /// # Errors
    /// An address is in use, or the certificates are invalid.
    pub async fn start(store: Store, options: ServerOptions, tasks: &Tasks) -> Result<Self, StartError> {
        let tls = match &options.tls {
            Some(files) => Some(tls::Acceptor::load(files.clone(), tasks).await?),
            None => None,
        };
        let bind = async |endpoints: &[Endpoint]| {
            let mut listeners = Vec::new();
            for endpoint in endpoints {
                let tls = if endpoint.tls { Some(tls.clone().ok_or_else(tls::missing)?) } else { None };
                listeners.push(Listener::bind(&endpoint.address, tls).await?);
            }
            Ok::<_, StartError>(listeners)
        };
        let (clients, scraped) = (bind(&options.clients).await?, bind(&options.metrics).await?);
        let addresses = |listeners: &[Listener]| listeners.iter().map(Listener::address).collect();
        let server = Self { clients: addresses(&clients), metrics: addresses(&scraped) };
        let metrics = Metrics::new(&options.registry, store.shared());
        let face = Arc::new(Face::new(store, options, metrics, tasks.clone()));
        for (listener, whole) in clients.into_iter().map(|l| (l, true)).chain(scraped.into_iter().map(|l| (l, false))) {
            tasks.spawn_graceful("etcd-listen", OnPanic::EndProcess, listener.run(Arc::clone(&face), whole));
        }
        Ok(server)
    }
}
