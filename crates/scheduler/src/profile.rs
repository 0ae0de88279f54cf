//! A profile: a scheduler's name, and how it decides on the pods that ask for it by that name.
use std::time::Duration;

use crate::evaluation::preempt::Thoroughness;
use crate::plugins::node_resources_fit::NodeResourcesFit;
use crate::plugins::table::{DEFAULT, Row};

/// How long a pod keeps its node while something is made ready for it, where nothing says another (upstream
/// `bindTimeoutSeconds`, `bindingTimeout`).
const PREPARED_WITHIN: Duration = Duration::from_secs(600);

/// One profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name: pods whose `schedulerName` is that of no profile are left alone.
    pub name: Box<str>,
    /// Its plugins.
    pub rows: Vec<Row>,
    /// What its NodeResourcesFit was told.
    pub fit: NodeResourcesFit,
    /// How long its pods keep their nodes while volumes are bound and made.
    pub volumes_within: Duration,
    /// How long they do while devices are made ready.
    pub devices_within: Duration,
    /// How much of the nodes is looked at, percent; 0: by their number.
    pub percent: usize,
    /// How thoroughly room is looked for that less important pods could make; `None`: not at all.
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
