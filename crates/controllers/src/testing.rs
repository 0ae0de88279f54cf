//! Controllers on the real API server in memory, for this crate's tests.
use std::sync::Arc;

use kelson_simulation::Api;
use kelson_tasks::Tasks;

use crate::{Config, Controllers, Running};

/// Runs the named controllers, each under its own account, and waits until they know what is there.
pub(crate) async fn run(api: &Api, names: &[&str], config: Config) -> Running {
    let config = Config { controllers: names.iter().map(|s| (*s).to_owned()).collect(), ..config };
    let factory = api.clone();
    let tasks = Tasks::root("controllers");
    let running = Controllers::start(config, Box::new(move |user| factory.client_as(user)), Arc::new(api.clock), tasks);
    running.synced().await;
    running
}
