//! Components of a control plane that work on one server at a time. With a store that several servers share, each of
//! them takes a Lease, as upstream's kube-controller-manager and kube-scheduler do, and works only while this server
//! holds it. With an embedded store they start at once and take none.
//!
//! A server that loses a lease stops the component and becomes a candidate again; the process continues, since it also
//! serves the API. [`Term`] rejects the writes of a component that has not stopped yet.
#![allow(clippy::disallowed_methods, reason = "blocking: at start")]

mod term;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kelson_client::{BoxFuture, Client, Transport};
use kelson_tasks::{OnPanic, Tasks};

use crate::election::Election;
use crate::process::within;

pub use term::Term;

/// The timeout for releasing a lease at a graceful stop.
const RELEASE_MAX: Duration = Duration::from_secs(1);
/// The file with the identity of this server, in its data directory.
const IDENTITY_FILE: &str = "server-id";

/// Starts a component for one term. The component sends its requests through [`Term::guard`]. The returned future stops
/// it; dropping the future stops it without waiting.
pub type Start = Box<dyn Fn(&Term) -> BoxFuture<()> + Send + Sync>;

/// A component that can be started again after it was stopped.
pub struct Candidate {
    /// Its name, which is also the name of its lease in `kube-system`.
    pub name: &'static str,
    /// The timeout for stopping it.
    pub end_max: Duration,
    /// Starts the component after it has won the election.
    pub start: Start,
}

/// The side of an election that is the same for all terms of a component.
pub struct Elector {
    /// The transport of the candidate's requests, as the component's user.
    pub transport: Arc<dyn Transport>,
    /// The identity of this server, which no other server has.
    pub identity: String,
    /// Namespace, name and times of the lease.
    pub election: Election,
}

/// A started component, or a candidate for starting it.
pub struct Part {
    name: &'static str,
    end_max: Duration,
    identity: Option<String>,
    running: Running,
}

enum Running {
    /// The component runs without an election until this future ends.
    Alone(BoxFuture<()>),
    /// The group of the task that waits for the lease.
    Elected(Tasks),
}

impl Part {
    /// Starts the component now, or with an elector when this server becomes leader.
    pub fn start(component: Candidate, elector: Option<Elector>, tasks: &Tasks) -> Self {
        let Candidate { name, end_max, .. } = component;
        let Some(elector) = elector else {
            let running = Running::Alone((component.start)(&Term::unlimited()));
            return Self { name, end_max, identity: None, running };
        };
        let identity = Some(elector.identity.clone());
        let group = tasks.child("leader-election");
        let asked = group.clone();
        group.spawn_graceful("leader-election", OnPanic::EndProcess, async move {
            while lead(&component, &elector, &asked).await == TermEnd::Lost {}
        });
        Self { name, end_max: end_max + RELEASE_MAX, identity, running: Running::Elected(group) }
    }

    /// Returns the identity of this server in elections; `None` if there is no election.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Stops the component, and then releases its lease, so that another server continues at once.
    pub async fn shutdown(self) {
        let stopped = async {
            match self.running {
                Running::Alone(stop) => stop.await,
                Running::Elected(group) => drop(group.shutdown(self.end_max).await),
            }
        };
        within(self.end_max, self.name, stopped).await;
    }
}

#[derive(PartialEq, Eq)]
enum TermEnd {
    /// The lease was lost.
    Lost,
    /// The server is ending.
    Ending,
}

/// One candidacy: waits for the lease and runs the component while it is held.
async fn lead(component: &Candidate, elector: &Elector, asked: &Tasks) -> TermEnd {
    let term = Term::of(elector.election.times);
    let client = Client::new(term.observe(Arc::clone(&elector.transport)), component.name);
    let mut candidate = elector.election.candidate(client, &elector.identity);
    let name = component.name;
    let lost = tokio::select! {
        () = candidate.won() => {
            tracing::info!(lease = name, "became leader");
            let stop = (component.start)(&term);
            let lost = tokio::select! {
                why = candidate.lost() => Some(why),
                () = asked.token().cancelled() => None,
            };
            if lost.is_some() {
                term.end();
            }
            within(component.end_max, name, stop).await;
            lost
        }
        () = asked.token().cancelled() => None,
    };
    // No write of this term follows the release.
    term.end();
    if let Some(why) = lost {
        tracing::error!(
            lease = name,
            why,
            "lost the leader election lease; the component stopped and waits for the lease"
        );
        return TermEnd::Lost;
    }
    // The wait for the lease may have been interrupted after the request was sent.
    if tokio::time::timeout(RELEASE_MAX, candidate.release()).await.is_err() {
        tracing::debug!(lease = name, "releasing the leader election lease timed out");
    }
    TermEnd::Ending
}

/// Returns the identity of the server with this data directory, and creates it at the first start. The directory is
/// locked, so no other process has the same identity: a server that was killed continues its own lease after a restart.
///
/// # Errors
/// The file cannot be read or written.
pub fn identity(data_dir: &Path) -> anyhow::Result<String> {
    let file = data_dir.join(IDENTITY_FILE);
    let named = || file.display().to_string();
    let id = match std::fs::read_to_string(&file) {
        Ok(id) if !id.trim().is_empty() => id.trim().to_owned(),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(named),
        _ => {
            let id = format!("{:032x}", rand::random::<u128>());
            kelson_pki::write_secret(&file, id.as_bytes(), true)?;
            id
        }
    };
    // Directories may be copied from one machine to another.
    Ok(format!("{}_{id}", crate::host::name()?))
}
