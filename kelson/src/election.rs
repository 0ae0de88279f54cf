//! Leader election of a component: upstream's flags, over the settings of a configuration file.
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args};
use kelson_client::Client;
use kelson_client::leader::{Candidate, Times};
use kelson_meta::{SystemClock, parse_duration};
use kelson_scheduler::configuration::LeaderElection;

/// The only supported resource lock.
const LEASES: &str = "leases";
/// Kinds of locks that upstream removed.
const REMOVED: [&str; 4] = ["endpoints", "configmaps", "endpointsleases", "configmapsleases"];
/// The default namespace of the lease.
const NAMESPACE: &str = "kube-system";

/// Flags of leader election.
#[derive(Args, Debug, Clone, Default)]
pub struct ElectionArgs {
    /// Run only while holding the leader election lease [default: true].
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true,
        action = ArgAction::Set)]
    pub leader_elect: Option<bool>,
    /// Resource that is used as the lock; only `leases` is supported [default: leases].
    #[arg(long, value_name = "KIND")]
    pub leader_elect_resource_lock: Option<String>,
    /// Namespace of the lease [default: kube-system].
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_resource_namespace: Option<String>,
    /// Name of the lease [default: the component's].
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,
    /// Time that candidates wait after the last renewal of the lease before they acquire it [default: 15s].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Option<Duration>,
    /// Time for which the leader retries to renew the lease before it stops leading [default: 10s].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Option<Duration>,
    /// Delay between attempts to acquire or renew the lease [default: 2s].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub leader_elect_retry_period: Option<Duration>,
}

/// The settings of leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Whether the component only works while it holds the lease.
    pub elects: bool,
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease.
    pub name: String,
    /// The durations of the election.
    pub times: Times,
}

impl Election {
    /// Returns the default settings of a component.
    pub fn of(component: &str) -> Self {
        let (namespace, name) = (NAMESPACE.to_owned(), component.to_owned());
        Self { elects: true, namespace, name, times: Times::default() }
    }

    /// Returns a candidate for the lease. `identity` differs from that of all other candidates.
    pub fn candidate(&self, client: Client, identity: &str) -> Candidate {
        Candidate::new(client, Arc::new(SystemClock), &self.namespace, &self.name, identity).by(self.times)
    }
}

impl ElectionArgs {
    /// Returns the settings of the flags, else of `file`, else the defaults of `component`.
    ///
    /// # Errors
    /// Invalid settings, in upstream's words.
    pub fn over(&self, file: &LeaderElection, component: &str) -> anyhow::Result<Election> {
        let usual = Times::default();
        let text = |flag: &Option<String>, said: &Option<String>, usual: &str| {
            flag.as_ref().or(said.as_ref()).filter(|s| !s.is_empty()).map_or_else(|| usual.to_owned(), String::clone)
        };
        let election = Election {
            elects: self.leader_elect.or(file.leader_elect).unwrap_or(true),
            namespace: text(&self.leader_elect_resource_namespace, &file.resource_namespace, NAMESPACE),
            name: text(&self.leader_elect_resource_name, &file.resource_name, component),
            times: Times {
                lease: self.leader_elect_lease_duration.or(file.lease_duration).unwrap_or(usual.lease),
                renew: self.leader_elect_renew_deadline.or(file.renew_deadline).unwrap_or(usual.renew),
                retry: self.leader_elect_retry_period.or(file.retry_period).unwrap_or(usual.retry),
            },
        };
        let lock = text(&self.leader_elect_resource_lock, &file.resource_lock, LEASES);
        match lock.as_str() {
            _ if !election.elects => return Ok(election),
            LEASES => {}
            gone if REMOVED.contains(&gone) => {
                bail!("couldn't create resource lock: {gone} lock is removed, migrate to {LEASES}")
            }
            other => bail!("couldn't create resource lock: Invalid lock-type {other}"),
        }
        election.times.check().map_err(anyhow::Error::msg).context("--leader-elect")?;
        Ok(election)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_over_a_file_over_what_is_usual() {
        let second = Duration::from_secs;
        let file = LeaderElection {
            lease_duration: Some(second(60)),
            resource_name: Some("mine".into()),
            ..LeaderElection::default()
        };
        let flags = ElectionArgs {
            leader_elect_lease_duration: Some(second(90)),
            leader_elect_retry_period: Some(second(5)),
            ..ElectionArgs::default()
        };
        let got = flags.over(&file, "kube-scheduler").unwrap();
        assert_eq!((got.elects, got.namespace.as_str(), got.name.as_str()), (true, "kube-system", "mine"));
        assert_eq!(got.times, Times { lease: second(90), renew: second(10), retry: second(5) });
        let by_file = ElectionArgs::default().over(&file, "kube-scheduler").unwrap();
        assert_eq!(by_file.times, Times { lease: second(60), ..Times::default() });
        let usual = ElectionArgs::default().over(&LeaderElection::default(), "kube-scheduler").unwrap();
        assert_eq!((usual.name.as_str(), usual.times), ("kube-scheduler", Times::default()));
    }

    #[test]
    fn what_cannot_be() {
        let fails = |lock: &str, lease: u64| {
            let args = ElectionArgs {
                leader_elect_resource_lock: Some(lock.into()),
                leader_elect_lease_duration: Some(Duration::from_secs(lease)),
                ..ElectionArgs::default()
            };
            args.over(&LeaderElection::default(), "c").map(drop).map_err(|e| format!("{e:#}"))
        };
        assert_eq!(fails("leases", 15), Ok(()));
        let gone = "couldn't create resource lock: endpoints lock is removed, migrate to leases";
        assert_eq!(fails("endpoints", 15), Err(gone.into()));
        assert_eq!(fails("files", 15), Err("couldn't create resource lock: Invalid lock-type files".into()));
        assert_eq!(fails("leases", 10), Err("--leader-elect: leaseDuration must be greater than renewDeadline".into()));
        let off = ElectionArgs {
            leader_elect: Some(false),
            leader_elect_resource_lock: Some("files".into()),
            ..ElectionArgs::default()
        };
        assert!(!off.over(&LeaderElection::default(), "c").unwrap().elects, "who does not elect needs no lock");
    }
}
