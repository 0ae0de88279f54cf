//! What requests are answered from.

use kelson_tasks::Tasks;

use super::metrics::Metrics;
use super::options::ServerOptions;
use crate::store::Store;

#[derive(Debug)]
pub(super) struct Face {
    pub store: Store,
    pub options: ServerOptions,
    pub metrics: Metrics,
    pub tasks: Tasks,
}
