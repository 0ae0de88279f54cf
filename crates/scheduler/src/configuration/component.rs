//! What a configuration says of the process rather than of scheduling: how it becomes the one that works, and how it asks the API server.
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::arguments::duration;
use super::reader::{Reader, join};

/// `leaderElection`; what it does not say goes without saying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderElection {
    /// Whether it works only while it holds the lease.
    pub leader_elect: Option<bool>,
    /// How long others respect a lease that is no longer renewed.
    pub lease_duration: Option<Duration>,
    /// How long the holder tries to renew.
    pub renew_deadline: Option<Duration>,
    /// Pause between two tries.
    pub retry_period: Option<Duration>,
    /// Kind of the object that is held.
    pub resource_lock: Option<String>,
    /// Name of the lease.
    pub resource_name: Option<String>,
    /// Namespace of the lease.
    pub resource_namespace: Option<String>,
}

/// `clientConnection`: how the API server is spoken to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConnection {
    /// The kubeconfig that is read; none: the one of the flags.
    pub kubeconfig: Option<PathBuf>,
    /// Requests a second; `None`: it is not said. Zero or less: as many as there are.
    pub qps: Option<f64>,
    /// Requests that may go at once.
    pub burst: Option<u32>,
}

/// Reads `leaderElection`, and tells what is wrong in it.
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

/// Reads `clientConnection`.
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

/// A time such as `1m30s`; an empty one is not said.
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
