//! The membership as an administrator sees and changes it: through the member of this server, with its certificates. Needs no
//! API server, so it works while that is down.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use kelson_etcd::proto::Member;
use serde::Serialize;
use tonic::Status;

use crate::decide::{Standing, label, quorum};
use crate::error::MemberError;
use crate::layout::Layout;
use crate::local::{Local, reason};
use crate::member::{running, settings};
use crate::peer::Peers;
use crate::status::{self, MemberStatus};

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The voter that orders writes.
    Leader,
    /// A member that counts for the quorum.
    Voter,
    /// A member that copies the data and does not count yet.
    Learner,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Leader => "leader",
            Self::Voter => "voter",
            Self::Learner => "learner",
        })
    }
}

/// One member, for a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberRow {
    /// The name of the member, or its peer URL if it has not started.
    pub name: String,
    /// Its ID, hexadecimal.
    pub id: String,
    /// The role of the member in its cluster.
    pub role: Role,
    /// Whether it answers at its peer URL.
    pub is_running: bool,
    /// The URLs at which other members reach it.
    pub peer_urls: Vec<String>,
    /// Entries of the log that it is behind the leader, as far as both have said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// The last status of its server. Absent if the server does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<MemberStatus>,
}

/// The cluster of this server's member.
pub struct Cluster {
    local: Local,
    peers: Peers,
    peer_url: String,
}

impl Cluster {
    /// Opens it for a server's data directory.
    ///
    /// # Errors
    /// The server has no member, or its files cannot be read.
    pub async fn open(data_dir: &Path) -> Result<Self, MemberError> {
        let layout = Layout::new(data_dir);
        let Some(settings) = settings(data_dir).await? else {
            let why = "this server has no etcd member; it was not started with --cluster-init or --server".to_owned();
            return Err(MemberError::Layout { path: layout.dir().to_owned(), why });
        };
        let local = Local::new(&layout, settings.client_port).await?;
        Ok(Self { local, peers: Peers::new(&layout), peer_url: settings.peer_url })
    }

    /// Returns all members in the order of their names.
    ///
    /// # Errors
    /// The member of this server does not answer.
    pub async fn list(&self) -> Result<Vec<MemberRow>, MemberError> {
        let (leader, members) = match self.known().await {
            Ok(known) => known,
            // A member without a quorum since its start answers its peers only.
            Err(status) => (0, self.peers.members(&self.peer_url).await.map_err(|_| called(&status))?),
        };
        let running = running(&self.peers, &members).await;
        // Without a quorum there is none to read.
        let statuses = match leader {
            0 => Vec::new(),
            _ => status::all(&self.local).await.unwrap_or_default(),
        };
        Ok(rows(&members, &running, leader, &statuses))
    }

    async fn known(&self) -> Result<(u64, Vec<Member>), Status> {
        Ok((self.local.status().await?.leader, self.local.members(false).await?))
    }

    /// Removes a member. Its server cannot join again with its data.
    ///
    /// # Errors
    /// There is no such member; without `force`, fewer than a quorum of the others run.
    pub async fn remove(&self, name: &str, force: bool) -> Result<(), MemberError> {
        let members = self.local.members(false).await.map_err(|e| called(&e))?;
        let target = find(&members, name)?;
        let running = running(&self.peers, &members).await;
        if !force {
            check_removal(&members, &running, target)?;
        }
        self.local.remove(target.id).await.map_err(|e| called(&e))
    }

    /// Removes a member that is lost, so that a new server can take its name and place.
    ///
    /// # Errors
    /// As of [`Cluster::remove`]; without `force`, the member runs.
    pub async fn replace(&self, name: &str, force: bool) -> Result<(), MemberError> {
        let members = self.local.members(false).await.map_err(|e| called(&e))?;
        let target = find(&members, name)?;
        if !force && self.peers.is_running(&target.peer_urls).await {
            let url = target.peer_urls.first().cloned().unwrap_or_default();
            return Err(MemberError::Running { name: name.to_owned(), url });
        }
        self.remove(name, force).await
    }
}

fn called(status: &Status) -> MemberError {
    MemberError::Call(reason(status))
}

fn find<'a>(members: &'a [Member], name: &str) -> Result<&'a Member, MemberError> {
    let is_it = |member: &&Member| label(member) == name || format!("{:x}", member.id) == name;
    members.iter().find(is_it).ok_or_else(|| {
        let members = members.iter().map(label).collect::<Vec<_>>().join(", ");
        MemberError::NoSuchMember { name: name.to_owned(), members }
    })
}

/// Reports whether the cluster works without the member.
fn check_removal(members: &[Member], running: &HashSet<u64>, target: &Member) -> Result<(), MemberError> {
    let standing = Standing::of(members, running, Some(target.id));
    if target.is_learner || standing.has_quorum() {
        return Ok(());
    }
    if standing.voters == 0 {
        return Err(MemberError::LastVoter(label(target).to_owned()));
    }
    let missing = standing.missing.join(", ");
    let (up, voters) = (standing.up, standing.voters);
    Err(MemberError::Quorum { name: label(target).to_owned(), up, voters, needed: quorum(voters), missing })
}

fn rows(members: &[Member], running: &HashSet<u64>, leader: u64, statuses: &[MemberStatus]) -> Vec<MemberRow> {
    let status_of = |id: u64| statuses.iter().find(|status| status.id == format!("{id:x}"));
    let leads_at = status_of(leader).map(|status| status.applied_index);
    let row = |member: &Member| {
        let status = status_of(member.id).cloned();
        let role = match member {
            Member { is_learner: true, .. } => Role::Learner,
            Member { id, .. } if *id == leader => Role::Leader,
            _ => Role::Voter,
        };
        MemberRow {
            name: label(member).to_owned(),
            id: format!("{:x}", member.id),
            role,
            is_running: running.contains(&member.id),
            peer_urls: member.peer_urls.clone(),
            lag: status.as_ref().and_then(|status| Some(leads_at?.saturating_sub(status.applied_index))),
            status,
        }
    };
    let mut rows: Vec<MemberRow> = members.iter().map(row).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<Member> {
        let of = |(id, name): (u64, &str)| Member {
            id,
            name: name.to_owned(),
            peer_urls: vec![format!("https://{name}:1")],
            ..Member::default()
        };
        [(1, "c"), (2, "a"), (3, "b")].map(of).to_vec()
    }

    #[test]
    fn members_are_listed_with_role_and_lag() {
        let status =
            |id: &str, applied_index| MemberStatus { id: id.to_owned(), applied_index, ..MemberStatus::default() };
        let rows = rows(&members(), &HashSet::from([1, 2]), 1, &[status("1", 100), status("2", 90)]);
        let shown: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.role, row.is_running, row.lag)).collect();
        let wanted =
            [("a", Role::Voter, true, Some(10)), ("b", Role::Voter, false, None), ("c", Role::Leader, true, Some(0))];
        assert_eq!(shown, wanted);
    }

    #[test]
    fn a_removal_below_quorum_is_rejected_with_names() {
        let members = members();
        let check = |running: &[u64], name: &str| {
            check_removal(&members, &running.iter().copied().collect(), find(&members, name).unwrap())
                .map_err(|e| e.to_string())
        };
        assert_eq!(check(&[1, 2, 3], "c"), Ok(()));
        assert_eq!(check(&[1, 2], "b"), Ok(()));
        let rejected = check(&[1, 2], "a").unwrap_err();
        assert!(
            rejected.contains("removing a would leave 1 of 2 members running, and 2 are needed; not running: b"),
            "{rejected}"
        );
        let alone = check_removal(&members[..1], &HashSet::from([1]), &members[0]).unwrap_err().to_string();
        assert_eq!(alone, "c is the only voter of its cluster and cannot be removed");
        assert!(find(&members, "d").unwrap_err().to_string().contains("c, a, b"));
        assert_eq!(find(&members, "2").unwrap().name, "a", "by its ID");
    }
}
