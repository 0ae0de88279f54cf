//! What is counted of who asks and of whether they may, under upstream's names.
use std::sync::Arc;
use std::time::Duration;

use kelson_auth::authenticate::Lives;
use kelson_auth::authorize::node::NodeResource;
use kelson_auth::{Decision, UserInfo};
use kelson_metrics::{Histogram, HistogramVec, IntCounter, IntCounterVec, Registry};

/// Upper bounds in seconds: a millisecond, doubled fourteen times.
const BOUNDS_S: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// Upper bounds of what certificates have yet to live, in seconds: half an hour to a year, as upstream.
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

/// Counts how long clients' certificates have yet to live when they are shown.
pub fn lives(r: &Registry) -> Lives {
    let help = "Seconds that the certificates have yet to live by which requests are authenticated.";
    let lives = r.histogram("apiserver_client_certificate_expiration_seconds", help, &LIVES_S);
    Arc::new(move |seconds| lives.observe(seconds))
}

/// How long changes of the node authorizer's graph take.
pub fn graph_actions(r: &Registry) -> HistogramVec {
    /// A tenth of a millisecond, doubled eleven times.
    const BOUNDS_S: [f64; 12] =
        [0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048];
    let help = "How long it took to change the node authorizer's graph, by what was changed.";
    r.histograms("node_authorizer_graph_actions_duration_seconds", help, &["operation"], &BOUNDS_S)
}

/// Upstream's words for putting an object of a resource into the graph, and for taking it out.
pub fn graph_action_words(resource: NodeResource) -> [&'static str; 2] {
    match resource {
        NodeResource::Pods => ["AddPod", "DeletePod"],
        NodeResource::PersistentVolumes => ["AddPV", "DeletePV"],
        NodeResource::VolumeAttachments => ["AddVolumeAttachment", "DeleteVolumeAttachment"],
        NodeResource::ResourceSlices => ["AddResourceSlice", "DeleteResourceSlice"],
        NodeResource::PodCertificateRequests => ["AddPodCertificateRequest", "DeletePodCertificateRequest"],
    }
}

/// What came of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// They are somebody's.
    Success,
    /// There were none, and nobody is served without.
    Failure,
    /// They are no good.
    Error,
}

/// How often, and how long it took, by result.
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

/// Counts of one server.
pub struct IdentityMetrics {
    proofs: Results<3>,
    users: IntCounterVec,
    decisions: Results<3>,
}

impl IdentityMetrics {
    /// Nothing counted yet; shown by `r`, once.
    pub fn new(r: &Registry) -> Self {
        let attempts =
            r.counters("authentication_attempts", "Requests whose sender was looked for, by result.", &["result"]);
        let help = "How long it took to find out who sent a request, by result.";
        let proving = r.histograms("authentication_duration_seconds", help, &["result"], &BOUNDS_S);
        let help = "Requests of senders who are known, by a kind of user's name.";
        let users = r.counters("authenticated_user_requests", help, &["username"]);
        let asked = r.counters("authorization_attempts_total", "Requests that were judged, by result.", &["result"]);
        let help = "How long it took to judge a request, by result.";
        let judging = r.histograms("authorization_duration_seconds", help, &["result"], &BOUNDS_S);
        Self {
            proofs: Results::new(&attempts, &proving, ["success", "failure", "error"]),
            users,
            decisions: Results::new(&asked, &judging, ["allowed", "denied", "no-opinion"]),
        }
    }

    /// Credentials were looked at; `user` is whose they are.
    pub fn proven(&self, proof: Proof, user: Option<&UserInfo>, took: Duration) {
        self.proofs.count(proof as usize, took);
        if let Some(user) = user {
            self.users.with_label_values(&[kind_of(&user.name)]).inc();
        }
    }

    /// A request was judged.
    pub fn decided(&self, decision: &Decision, took: Duration) {
        let result = match decision {
            Decision::Allow(_) => 0,
            Decision::Deny(_) => 1,
            Decision::NoOpinion(_) => 2,
        };
        self.decisions.count(result, took);
    }
}

/// Names are not told, and do not make series: upstream's few kinds of them.
fn kind_of(name: &str) -> &str {
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
    fn names_of_users_make_no_series() {
        let registry = Registry::new();
        let metrics = IdentityMetrics::new(&registry);
        for name in ["admin", "a@b.c", "d@e.f", "jane", "system:node:n1"] {
            metrics.proven(Proof::Success, Some(&UserInfo::new(name, [""; 0])), Duration::ZERO);
        }
        metrics.proven(Proof::Error, None, Duration::ZERO);
        metrics.decided(&Decision::NoOpinion(String::new()), Duration::ZERO);
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
