//! Kelson controllers: one module per controller, all of one shape: `start(&ctx)` registers handlers with the shared
//! informers and starts workers that call `sync(key)`; what is to be done is decided by pure functions beside it.
//! Nothing polls: a controller at rest does nothing. Which of them run, and for whom, is the caller's business.

mod bootstrap;
mod certificates;
mod condition;
mod config;
mod context;
mod deployment;
mod discovery;
mod endpoints;
mod endpointslice;
mod expectations;
mod garbage;
mod namespace;
mod nodeipam;
mod nodelifecycle;
mod ownership;
mod podgc;
mod protection;
mod registry;
mod replicaset;
mod root_ca;
mod serviceaccount;
mod shared;
#[cfg(test)]
mod testing;
mod tokens;
mod tree;
mod views;

use std::sync::Arc;

use kelson_meta::Clock;

pub use config::{Config, LegacyTokenSigner};
pub use context::{ClientFactory, Context, MANAGER_USER, SyncError};
pub use registry::{CONTROLLERS, Entry};

/// Starts controllers.
pub struct Controllers;

impl Controllers {
    /// Starts every controller that `config` enables, on the current tokio runtime. `factory` gives a client for a user
    /// name: `system:kube-controller-manager` for the shared informers, and
    /// `system:serviceaccount:kube-system:NAME` for each controller, whose groups are those of a service account.
    pub fn start(config: Config, factory: Box<ClientFactory>, clock: Arc<dyn Clock>) -> Running {
        let ctx = Context::new(config, factory, clock);
        for entry in CONTROLLERS {
            if ctx.config.enables(entry.name, entry.on_by_default) {
                (entry.start)(&ctx);
            }
        }
        ctx.informers.start(&ctx.manager_client());
        Running { ctx }
    }
}

/// The running controllers; they end with [`shutdown`](Self::shutdown) or when this is dropped.
pub struct Running {
    ctx: Arc<Context>,
}

impl Running {
    /// Waits until every controller has read its initial state.
    pub async fn synced(&self) {
        self.ctx.informers.synced().await;
    }

    /// Stops all controllers and waits until they have.
    pub async fn shutdown(self) {
        self.ctx.stop.cancel();
        self.ctx.tasks.close();
        self.ctx.tasks.wait().await;
        self.ctx.informers.stop();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ctx.stop.cancel();
        self.ctx.informers.stop();
    }
}
