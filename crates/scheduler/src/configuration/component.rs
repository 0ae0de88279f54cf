//! The parts of a configuration about the process: leader election and the connection to the API server.
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::arguments::duration;
use super::reader::{Reader, join};

/// `leaderElection`. Absent fields have defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderElection {
    /// Whether the scheduler only works while it holds the lease.
    pub leader_elect: Option<bool>,
    /// The time for which other candidates respect a lease that is no longer renewed.
    pub lease_duration: Option<Duration>,
    /// The time for which the holder tries to renew the lease.
    pub renew_deadline: Option<Duration>,
    /// The pause between two attempts.
    pub retry_period: Option<Duration>,
    /// The kind of the lock object.
    pub resource_lock: Option<String>,
    /// The name of the lease.
    pub resource_name: Option<String>,
    /// The namespace of the lease.
    pub resource_namespace: Option<String>,
}

/// `clientConnection`: the connection to the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConnection {
    /// The kubeconfig file; `None` means the one given by flags.
    pub kubeconfig: Option<PathBuf>,
    /// Requests per second; `None` when not set. Zero or less means no limit.
    pub qps: Option<f64>,
    /// The number of requests allowed in a burst.
    pub burst: Option<u32>,
}

/// Reads and validates `leaderElection`.
pub(super) fn election(r: &mut Reader, value: &Value) -> LeaderElection {
    const AT: &str = "leaderElection";
    let known = [
        "leaderElect",
        "leaseDuration",
        "renewDeadline",
        "retryPeriod",
        "resourceLock",
        "resourceName",
        "resourceNamespace",
    ];
    r.fields(AT, value, &known);
    let text =
        |r: &mut Reader, name: &str| r.text(&join(AT, name), &value[name]).filter(|t| !t.is_empty()).map(str::to_owned);
    let mut out = LeaderElection {
        leader_elect: flag(r, &join(AT, "leaderElect"), &value["leaderElect"]),
        lease_duration: span(r, &join(AT, "leaseDuration"), &value["leaseDuration"]),
        renew_deadline: span(r, &join(AT, "renewDeadline"), &value["renewDeadline"]),
        retry_period: span(r, &join(AT, "retryPeriod"), &value["retryPeriod"]),
        ..LeaderElection::default()
    };
    out.resource_lock = text(r, "resourceLock");
    out.resource_name = text(r, "resourceName");
    out.resource_namespace = text(r, "resourceNamespace");
    if out.leader_elect != Some(false) && out.resource_lock.as_deref().is_some_and(|lock| lock != "leases") {
        r.fault("leaderElection.resourceLock", "resourceLock value must be \"leases\"");
    }
    out
}

/// Reads `clientConnection` of the configuration.
pub(super) fn connection(r: &mut Reader, value: &Value) -> ClientConnection {
    const AT: &str = "clientConnection";
    r.fields(AT, value, &["kubeconfig", "acceptContentTypes", "contentType", "qps", "burst"]);
    let kubeconfig = r.text("clientConnection.kubeconfig", &value["kubeconfig"]);
    let qps = value["qps"].as_f64();
    if qps.is_none() && !value["qps"].is_null() {
        r.fault("clientConnection.qps", "must be a number");
    }
    let burst = r.number("clientConnection.burst", &value["burst"], (0, i64::from(u32::MAX)));
    ClientConnection {
        kubeconfig: kubeconfig.filter(|k| !k.is_empty()).map(PathBuf::from),
        qps,
        burst: burst.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0),
    }
}

fn flag(r: &mut Reader, at: &str, value: &Value) -> Option<bool> {
    if !value.is_null() && !value.is_boolean() {
        r.fault(at, "must be true or false");
    }
    value.as_bool()
}

/// Reads a duration such as `1m30s`; an empty string counts as absent.
fn span(r: &mut Reader, at: &str, value: &Value) -> Option<Duration> {
    if *value == "" || *value == "0s" {
        return None;
    }
    duration(r, at, value, (Duration::ZERO, "must be zero or positive"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_said_of_the_process() {
        let mut r = Reader { faults: Vec::new() };
        let said =
            json!({"leaderElect": true, "leaseDuration": "1m0s", "renewDeadline": "40s", "resourceName": "mine"});
        let second = Duration::from_secs;
        let expected = LeaderElection {
            leader_elect: Some(true),
            lease_duration: Some(second(60)),
            renew_deadline: Some(second(40)),
            resource_name: Some("mine".into()),
            ..LeaderElection::default()
        };
        assert_eq!(election(&mut r, &said), expected);
        let asked = connection(&mut r, &json!({"kubeconfig": "/k", "qps": 2.5, "burst": 7}));
        assert_eq!((asked.qps, asked.burst, asked.kubeconfig), (Some(2.5), Some(7), Some("/k".into())));
        assert_eq!(r.faults, [""; 0]);
    }

    #[test]
    fn what_is_wrong_with_it() {
        let mut r = Reader { faults: Vec::new() };
        election(&mut r, &json!({"leaseDuration": "long", "resourceLock": "endpoints", "leeder": 1}));
        connection(&mut r, &json!({"qps": "many", "burst": -1}));
        for at in ["leaseDuration", "resourceLock", "leeder", "clientConnection.qps", "clientConnection.burst"] {
            assert!(r.faults.iter().any(|f| f.contains(at)), "{at}: {:?}", r.faults);
        }
    }
}
