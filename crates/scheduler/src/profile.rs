//! Scheduling profiles: a scheduler name, and how pods with that `schedulerName` are scheduled.
use std::time::Duration;

use crate::evaluation::preempt::Thoroughness;
use crate::plugins::node_resources_fit::NodeResourcesFit;
use crate::plugins::table::{DEFAULT, Row};

/// The default time limit for preparing volumes and devices of a pod (upstream `bindTimeoutSeconds`, `bindingTimeout`).
const PREPARED_WITHIN: Duration = Duration::from_secs(600);

/// One profile of a configuration: its name, plugins and limits.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The scheduler name. Pods whose `schedulerName` matches no profile are ignored.
    pub name: Box<str>,
    /// The plugins with their weights.
    pub rows: Vec<Row>,
    /// The arguments of NodeResourcesFit.
    pub fit: NodeResourcesFit,
    /// The time limit for binding and provisioning volumes.
    pub volumes_within: Duration,
    /// The time limit for preparing devices.
    pub devices_within: Duration,
    /// The share of nodes to find in percent; 0 depends on the number of nodes.
    pub percent: usize,
    /// Preemption settings; `None` disables preemption.
    pub preemption: Option<Thoroughness>,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: "default-scheduler".into(),
            rows: DEFAULT.iter().copied().map(Row::from).collect(),
            fit: NodeResourcesFit::DEFAULT,
            volumes_within: PREPARED_WITHIN,
            devices_within: PREPARED_WITHIN,
            percent: 0,
            preemption: Some(Thoroughness::default()),
        }
    }
}
