//! Extenders: servers beside the scheduler that have a say in where pods go (`KubeSchedulerConfiguration.extenders`). Here is
//! what is known of one; asking it is [`crate::run`]'s business.
use std::path::PathBuf;
use std::time::Duration;

use crate::view::PodSpec;

/// What an extender's score is multiplied with: its best is ten, a plugin's a hundred.
pub const SCORE_SCALE: i64 = 10;

/// An extender: a server that is asked about nodes for some pods, and what it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extender {
    /// What the verbs are appended to, after a slash.
    pub url: String,
    /// Which of the nodes that fit it lets the pod go to; empty: it is not asked.
    pub filter: String,
    /// How welcome they are; empty: it is not asked.
    pub prioritize: String,
    /// Which pods may make room where; empty: it is not asked.
    pub preempt: String,
    /// It binds pods itself; empty: it does not.
    pub bind: String,
    /// How much its scores count.
    pub weight: i64,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Whether it knows nodes itself, so that their names are enough.
    pub knows_nodes: bool,
    /// It is asked of pods only that want one of these resources; none: of all.
    pub managed: Vec<String>,
    /// Whether pods are placed without it when it does not answer.
    pub ignorable: bool,
    pub tls: ExtenderTls,
}

/// How an extender is reached over TLS. Data come before files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExtenderTls {
    /// Its certificate is taken as it comes.
    pub insecure: bool,
    /// The name in its certificate, where that is not its host's.
    pub server_name: String,
    pub ca: Vec<u8>,
    pub ca_file: Option<PathBuf>,
    pub cert: Vec<u8>,
    pub cert_file: Option<PathBuf>,
    pub key: Vec<u8>,
    pub key_file: Option<PathBuf>,
}

impl std::fmt::Debug for ExtenderTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtenderTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl Extender {
    /// Whether it is asked about a pod.
    pub fn is_interested(&self, spec: &PodSpec) -> bool {
        self.managed.is_empty() || self.managed.iter().any(|name| spec.requests.asked.scalar(name) != 0)
    }

    /// Whether it has a say in which node a pod goes to.
    pub fn is_asked(&self, spec: &PodSpec) -> bool {
        self.is_interested(spec) && !(self.filter.is_empty() && self.prioritize.is_empty())
    }

    /// Whether it has a say in which pods make room for this one.
    pub fn is_asked_for_room(&self, spec: &PodSpec) -> bool {
        self.is_interested(spec) && !self.preempt.is_empty()
    }
}
