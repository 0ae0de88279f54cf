//! A profile: a scheduler's name, and how it decides on the pods that ask for it by that name.
use crate::evaluation::preempt::Thoroughness;
use crate::plugins::table::{DEFAULT, Row};

/// One profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name: pods whose `schedulerName` is that of no profile are left alone.
    pub name: Box<str>,
    /// Its plugins.
    pub rows: Vec<Row>,
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
            percent: 0,
            preemption: Some(Thoroughness::default()),
        }
    }
}
