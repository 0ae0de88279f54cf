//! Metrics of authentication and authorization under upstream's names.
use std::sync::Arc;
use std::time::Duration;

use kelson_auth::authenticate::Lives;
use kelson_auth::authorize::node::NodeResource;
use kelson_auth::{Decision, UserInfo};
use kelson_metrics::{Histogram, HistogramVec, IntCounter, IntCounterVec, Registry};

/// Upper bounds in seconds: a millisecond, doubled fourteen times.
const BOUNDS_S: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// Upper bounds of the remaining lifetime of certificates in seconds: half an hour to a year, as upstream.
const LIVES_S: [f64; 14] = [
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// Observes the remaining lifetime of client certificates when they are used.
pub fn observe_expiration(r: &Registry) -> Lives {
    let help = "Remaining lifetime in seconds of the certificate used to authenticate a request.";
    let lives = r.histogram("apiserver_client_certificate_expiration_seconds", help, &LIVES_S);
    Arc::new(move |seconds| lives.observe(seconds))
}

/// Durations of changes to the node authorizer's graph.
pub fn graph_actions(r: &Registry) -> HistogramVec {
    /// A tenth of a millisecond, doubled eleven times.
    const BOUNDS_S: [f64; 12] =
        [0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048];
    let help = "Duration of changes to the node authorizer's graph in seconds, by operation.";
    r.histograms("node_authorizer_graph_actions_duration_seconds", help, &["operation"], &BOUNDS_S)
}

/// Upstream's `operation` labels for adding an object of a resource to the graph and for removing it.
pub fn graph_action_labels(resource: NodeResource) -> [&'static str; 2] {
    match resource {
        NodeResource::Pods => ["AddPod", "DeletePod"],
        NodeResource::PersistentVolumes => ["AddPV", "DeletePV"],
        NodeResource::VolumeAttachments => ["AddVolumeAttachment", "DeleteVolumeAttachment"],
        NodeResource::ResourceSlices => ["AddResourceSlice", "DeleteResourceSlice"],
        NodeResource::PodCertificateRequests => ["AddPodCertificateRequest", "DeletePodCertificateRequest"],
    }
}

/// Result of authenticating a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthenticationResult {
    /// The credentials are valid.
    Success,
    /// There are no credentials, and anonymous requests are not allowed.
    Failure,
    /// The credentials are invalid.
    Error,
}

/// Counts and durations by result.
struct Results<const N: usize> {
    counts: [IntCounter; N],
    seconds: [Histogram; N],
}

impl<const N: usize> Results<N> {
    fn new(total: &IntCounterVec, seconds: &HistogramVec, results: [&str; N]) -> Self {
        Self {
            counts: results.map(|result| total.with_label_values(&[result])),
            seconds: results.map(|result| seconds.with_label_values(&[result])),
        }
    }

    fn count(&self, result: usize, took: Duration) {
        self.counts[result].inc();
        self.seconds[result].observe(took.as_secs_f64());
    }
}

/// Authentication and authorization metrics of one server.
pub struct IdentityMetrics {
    authentications: Results<3>,
    users: IntCounterVec,
    decisions: Results<3>,
}

impl IdentityMetrics {
    /// Registers the metrics; called once per registry.
    pub fn new(r: &Registry) -> Self {
        let attempts = r.counters("authentication_attempts", "Authenticated requests, by result.", &["result"]);
        let help = "Authentication duration in seconds, by result.";
        let proving = r.histograms("authentication_duration_seconds", help, &["result"], &BOUNDS_S);
        let help = "Authenticated requests, by class of user name.";
        let users = r.counters("authenticated_user_requests", help, &["username"]);
        let asked = r.counters("authorization_attempts_total", "Authorized requests, by result.", &["result"]);
        let help = "Authorization duration in seconds, by result.";
        let judging = r.histograms("authorization_duration_seconds", help, &["result"], &BOUNDS_S);
        Self {
            authentications: Results::new(&attempts, &proving, ["success", "failure", "error"]),
            users,
            decisions: Results::new(&asked, &judging, ["allowed", "denied", "no-opinion"]),
        }
    }

    /// Counts an authentication; `user` is the authenticated user, if any.
    pub fn count_authentication(&self, proof: AuthenticationResult, user: Option<&UserInfo>, took: Duration) {
        self.authentications.count(proof as usize, took);
        if let Some(user) = user {
            self.users.with_label_values(&[user_class(&user.name)]).inc();
        }
    }

    /// Counts an authorization.
    pub fn count_decision(&self, decision: &Decision, took: Duration) {
        let result = match decision {
            Decision::Allow(_) => 0,
            Decision::Deny(_) => 1,
            Decision::NoOpinion(_) => 2,
        };
        self.decisions.count(result, took);
    }
}

/// The `username` label: upstream's few classes, because user names must not become series.
fn user_class(name: &str) -> &str {
    match name {
        "admin" | "client" | "kube_proxy" | "kubelet" | "system:serviceaccount:kube-system:default" => name,
        _ if name.contains('@') => "email_id",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names_are_not_labels() {
        let registry = Registry::new();
        let metrics = IdentityMetrics::new(&registry);
        for name in ["admin", "a@b.c", "d@e.f", "jane", "system:node:n1"] {
            metrics.count_authentication(
                AuthenticationResult::Success,
                Some(&UserInfo::new(name, [""; 0])),
                Duration::ZERO,
            );
        }
        metrics.count_authentication(AuthenticationResult::Error, None, Duration::ZERO);
        metrics.count_decision(&Decision::NoOpinion(String::new()), Duration::ZERO);
        let text = registry.text();
        for row in [
            "authentication_attempts{result=\"success\"} 5",
            "authentication_attempts{result=\"error\"} 1",
            "authentication_attempts{result=\"failure\"} 0",
            "authenticated_user_requests{username=\"admin\"} 1",
            "authenticated_user_requests{username=\"email_id\"} 2",
            "authenticated_user_requests{username=\"other\"} 2",
            "authentication_duration_seconds_count{result=\"success\"} 5",
            "authorization_attempts_total{result=\"no-opinion\"} 1",
            "authorization_duration_seconds_count{result=\"allowed\"} 0",
        ] {
            assert!(text.lines().any(|line| line == row), "{row}:\n{text}");
        }
    }
}
