//! The cluster's side of a join: checks the peer URL of the joining server, adds a learner and returns the list of members.

use std::collections::HashSet;
use std::fmt::Write as _;

use kelson_etcd::proto::Member;
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use crate::decide::{Admission, Standing, admission, label};
use crate::error::AdmitError;
use crate::local::{Local, reason};
use crate::options::host_and_port;
use crate::peer::Peers;

/// The longest name, as of a node.
const NAME_BYTES_MAX: usize = 253;
/// Peer URLs of one member.
const URLS_MAX: usize = 8;
/// Changes of members in one admission: a removal of the earlier member, and the addition.
const STEPS_MAX: usize = 3;

/// The data that a joining server needs to start its member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitialCluster {
    /// The ID of the cluster, hexadecimal as etcd prints it.
    pub cluster_id: String,
    /// The ID of the new member.
    pub member_id: String,
    /// All members, the new one among them.
    pub members: Vec<InitialMember>,
    /// The release of etcd that the admitting member runs.
    pub etcd_version: String,
    /// The minor version of the cluster, 5 for 3.5: a member may be at most one newer.
    pub cluster_minor: u32,
}

/// A member in the list that a joining server starts with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitialMember {
    /// The name of the member.
    pub name: String,
    /// The URLs at which other members reach it.
    pub peer_urls: Vec<String>,
}

impl InitialCluster {
    /// Returns the value of etcd's `--initial-cluster`.
    pub fn initial_cluster(&self) -> String {
        let mut all = String::new();
        for member in &self.members {
            for url in &member.peer_urls {
                let comma = if all.is_empty() { "" } else { "," };
                // Writing to a string does not fail.
                let _ = write!(all, "{comma}{}={url}", member.name);
            }
        }
        all
    }
}

/// Lists members for a joining server. Etcd compares them by URL; the names of members that have not started are unknown.
fn listed(members: &[Member], own: u64, name: &str) -> Vec<InitialMember> {
    let of = |member: &Member| {
        let known = if member.id == own { name.to_owned() } else { member.name.clone() };
        let name = if known.is_empty() { format!("member-{:x}", member.id) } else { known };
        InitialMember { name, peer_urls: member.peer_urls.clone() }
    };
    members.iter().map(of).collect()
}

/// Validates the request of a joining server. Pure.
fn validate(name: &str, urls: &[String]) -> Result<(), AdmitError> {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_valid) {
        return Err(AdmitError::Invalid(format!(
            "the member name {name:?} must be that of a node: lower case letters, digits, '-' and '.'"
        )));
    }
    if urls.is_empty() || urls.len() > URLS_MAX {
        return Err(AdmitError::Invalid(format!("a member must have 1 to {URLS_MAX} peer URLs, got {}", urls.len())));
    }
    match urls.iter().find(|url| host_and_port(url).is_none()) {
        Some(url) => Err(AdmitError::Invalid(format!("the peer URL {url:?} must be https://HOST:PORT"))),
        None => Ok(()),
    }
}

/// The change of an admission, for events and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The earlier member with the name of the joining server was removed.
    Replaced(u64),
    /// A learner was added.
    Added(u64),
}

/// Admits servers through one member.
#[derive(Clone, Debug)]
pub(crate) struct Admitter {
    /// The name of the member, for messages.
    pub own_name: String,
    pub local: Local,
    pub peers: Peers,
}

impl Admitter {
    /// See [`crate::Member::admit`]. `changed` is called after each change.
    pub async fn admit(
        &self,
        name: &str,
        urls: &[String],
        mut changed: impl FnMut(Change),
    ) -> Result<InitialCluster, AdmitError> {
        validate(name, urls)?;
        for url in urls {
            self.check(name, url).await?;
        }
        for _ in 0..STEPS_MAX {
            let members = self.local.members(true).await.map_err(|e| unavailable(&e))?;
            let mut running = HashSet::new();
            for same in members.iter().filter(|member| member.name == name) {
                if self.peers.is_running(&same.peer_urls).await {
                    running.insert(same.id);
                }
            }
            let find = |id: u64| members.iter().find(|member| member.id == id);
            let shown = |id: u64| find(id).map(|member| label(member).to_owned()).unwrap_or_default();
            match admission(&members, &running, name, urls) {
                Admission::Add => {
                    let added = self.local.add_learner(urls).await.map_err(|e| not_added(&e))?;
                    let id = added.member.as_ref().map_or(0, |member| member.id);
                    changed(Change::Added(id));
                    return self.initial(&added.members, id, name).await;
                }
                Admission::Repeat(id) => return self.initial(&members, id, name).await,
                Admission::Replace(id) => {
                    self.remove_earlier(&members, id).await?;
                    changed(Change::Replaced(id));
                }
                Admission::NameTaken(id) => {
                    let url = find(id).and_then(|member| member.peer_urls.first().cloned()).unwrap_or_default();
                    return Err(AdmitError::NameTaken { name: name.to_owned(), url });
                }
                Admission::UrlTaken(id) => {
                    return Err(AdmitError::UrlTaken { url: urls[0].clone(), name: shown(id) });
                }
                Admission::Wait(id) => return Err(AdmitError::Busy { learner: shown(id) }),
            }
        }
        Err(AdmitError::Unavailable("its members changed meanwhile".to_owned()))
    }

    /// Dials a peer URL of the joining server, which must answer with its name.
    async fn check(&self, name: &str, url: &str) -> Result<(), AdmitError> {
        let why = match self.peers.ask(url).await {
            Ok((greeting, _)) => match (greeting.joiner, greeting.server) {
                (Some(joiner), _) if joiner == name => return Ok(()),
                (Some(joiner), _) => format!("the joining server {joiner} answers there"),
                (None, Some(_)) => "a running member of the cluster answers there".to_owned(),
                (None, None) => "something else answers there".to_owned(),
            },
            Err(e) => e.to_string(),
        };
        Err(AdmitError::Unreachable { url: url.to_owned(), from: self.own_name.clone(), why })
    }

    /// Removes the member whose place a server takes. The others must be a quorum.
    async fn remove_earlier(&self, members: &[Member], id: u64) -> Result<(), AdmitError> {
        let mut running = HashSet::new();
        for member in members.iter().filter(|member| member.id != id && !member.is_learner) {
            if self.peers.is_running(&member.peer_urls).await {
                running.insert(member.id);
            }
        }
        let standing = Standing::of(members, &running, Some(id));
        let is_learner = members.iter().any(|member| member.id == id && member.is_learner);
        if !standing.has_quorum() && !is_learner {
            let missing = standing.missing.join(", ");
            return Err(AdmitError::Unavailable(format!("{missing} must run before a lost member is replaced")));
        }
        match self.local.remove(id).await {
            Ok(()) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Ok(()),
            Err(status) => Err(unavailable(&status)),
        }
    }

    async fn initial(&self, members: &[Member], id: u64, name: &str) -> Result<InitialCluster, AdmitError> {
        let status = self.local.status().await.map_err(|e| unavailable(&e))?;
        let cluster_id = status.header.map_or(0, |header| header.cluster_id);
        let minor = crate::version::Version::parse(&status.version).map_or(crate::version::OLDEST.minor, |v| v.minor);
        Ok(InitialCluster {
            cluster_id: format!("{cluster_id:x}"),
            member_id: format!("{id:x}"),
            members: listed(members, id, name),
            etcd_version: status.version,
            cluster_minor: minor,
        })
    }
}

fn unavailable(status: &Status) -> AdmitError {
    AdmitError::Unavailable(reason(status))
}

fn not_added(status: &Status) -> AdmitError {
    match status.message().contains("too many learner members") {
        true => AdmitError::Busy { learner: "a learner".to_owned() },
        false => unavailable(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_urls_are_validated() {
        let check = |name: &str, urls: &[&str]| {
            validate(name, &urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>()).is_ok()
        };
        assert!(check("node-1.example", &["https://10.0.0.1:2380"]));
        for (name, urls) in [
            ("", &["https://10.0.0.1:2380"][..]),
            ("A", &["https://10.0.0.1:2380"]),
            ("a=b", &["https://10.0.0.1:2380"]),
            ("a,b", &["https://10.0.0.1:2380"]),
            ("a", &[]),
            ("a", &["http://10.0.0.1:2380"]),
            ("a", &["https://10.0.0.1:2380,b=https://x:1"]),
        ] {
            assert!(!check(name, urls), "{name:?} {urls:?}");
        }
    }

    #[test]
    fn the_list_of_members_names_the_new_one() {
        let member = |id, name: &str, url: &str| Member {
            id,
            name: name.into(),
            peer_urls: vec![url.into()],
            ..Member::default()
        };
        let members = [member(1, "a", "https://a:1"), member(255, "", "https://b:1"), member(3, "", "https://c:1")];
        let initial = InitialCluster {
            cluster_id: String::new(),
            member_id: String::new(),
            members: listed(&members, 3, "c"),
            etcd_version: String::new(),
            cluster_minor: 5,
        };
        assert_eq!(initial.initial_cluster(), "a=https://a:1,member-ff=https://b:1,c=https://c:1");
    }

    #[test]
    fn what_may_be_asked_again() {
        assert!(
            not_added(&Status::failed_precondition("etcdserver: too many learner members in cluster")).is_temporary()
        );
        assert!(not_added(&Status::unavailable("etcdserver: unhealthy cluster")).is_temporary());
        assert!(!AdmitError::NameTaken { name: "a".into(), url: "u".into() }.is_temporary());
    }
}
