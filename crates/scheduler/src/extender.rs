//! Extenders: HTTP servers that filter, score, preempt or bind in addition to the scheduler
//! (`KubeSchedulerConfiguration.extenders`). This file has their settings; [`crate::run`] calls them.
use std::path::PathBuf;
use std::time::Duration;

use crate::view::PodSpec;

/// The factor for scores of extenders, whose maximum is 10 where that of a plugin is 100.
pub const SCORE_SCALE: i64 = 10;

/// The settings of an extender: its URL, the verbs it supports, and the pods it is called for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extender {
    /// The base URL. A verb is appended after a slash.
    pub url: String,
    /// The verb that filters nodes; empty when it does not.
    pub filter: String,
    /// The verb that scores nodes; empty when it does not.
    pub prioritize: String,
    /// The verb that chooses preemption victims; empty when it does not.
    pub preempt: String,
    /// The verb that binds pods; empty when it does not.
    pub bind: String,
    /// The weight of its scores.
    pub weight: i64,
    /// The timeout of a request.
    pub timeout: Duration,
    /// Whether it caches nodes itself, so that only their names are sent.
    pub knows_nodes: bool,
    /// It is called only for pods that request one of these resources; empty means all pods.
    pub managed: Vec<String>,
    /// Whether pods are scheduled without it when it does not answer.
    pub ignorable: bool,
    pub tls: ExtenderTls,
}

/// TLS settings of an extender. Inline data takes precedence over files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExtenderTls {
    /// Do not verify its certificate.
    pub insecure: bool,
    /// The name to expect in its certificate, if it differs from the host name.
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
    /// Reports whether it is called for a pod.
    pub fn is_interested(&self, spec: &PodSpec) -> bool {
        self.managed.is_empty() || self.managed.iter().any(|name| spec.requests.asked.scalar(name) != 0)
    }

    /// Reports whether it filters or scores nodes for a pod.
    pub fn is_asked(&self, spec: &PodSpec) -> bool {
        self.is_interested(spec) && !(self.filter.is_empty() && self.prioritize.is_empty())
    }

    /// Reports whether it takes part in preemption for a pod.
    pub fn is_asked_for_room(&self, spec: &PodSpec) -> bool {
        self.is_interested(spec) && !self.preempt.is_empty()
    }
}
