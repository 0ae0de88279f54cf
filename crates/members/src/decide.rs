//! Which change of members is safe. Pure: the members as etcd lists them, and which of them answer.

use std::collections::HashSet;
use std::time::Duration;

use kelson_etcd::proto::Member;

/// The time after which a learner that has not caught up is removed, so that another server can join.
pub const LEARNER_MAX: Duration = Duration::from_secs(600);

/// The decision about a server that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It becomes a learner.
    Add,
    /// It is the member with this ID already: its earlier request was answered, and it has not started.
    Repeat(u64),
    /// It takes the place of this member, which has its name and is gone: that one is removed first.
    Replace(u64),
    /// A running member has its name.
    NameTaken(u64),
    /// Another member has its peer URL.
    UrlTaken(u64),
    /// It waits for this learner.
    Wait(u64),
}

/// Returns the number of voters that a cluster of `voters` needs to work.
pub(crate) fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// Returns a member's name, or the URL of one that has not started and therefore has none.
pub(crate) fn label(member: &Member) -> &str {
    match member.name.as_str() {
        "" => member.peer_urls.first().map_or("unnamed", String::as_str),
        name => name,
    }
}

/// Decides about a server with this name and these peer URLs. `running` are the IDs of members that answered at their peer
/// URLs; the joining server itself answers at its own, so a member with the same URL counts as not running.
pub(crate) fn admission(members: &[Member], running: &HashSet<u64>, name: &str, urls: &[String]) -> Admission {
    let has_url = |member: &&Member| member.peer_urls.iter().any(|url| urls.contains(url));
    if let Some(same) = members.iter().find(|member| member.name == name) {
        return match running.contains(&same.id) && !has_url(&same) {
            true => Admission::NameTaken(same.id),
            false => Admission::Replace(same.id),
        };
    }
    match members.iter().find(has_url) {
        Some(pending) if pending.name.is_empty() && pending.is_learner => return Admission::Repeat(pending.id),
        Some(other) => return Admission::UrlTaken(other.id),
        None => {}
    }
    match members.iter().find(|member| member.is_learner) {
        Some(learner) => Admission::Wait(learner.id),
        None => Admission::Add,
    }
}

/// The members of a cluster after a change, as far as its quorum is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Voters that would run.
    pub up: usize,
    /// All voters that would be left.
    pub voters: usize,
    /// The names of voters that do not run.
    pub missing: Vec<String>,
}

impl Standing {
    /// Returns the standing of the voters other than `without`.
    pub fn of(members: &[Member], running: &HashSet<u64>, without: Option<u64>) -> Self {
        let voters = members.iter().filter(|member| !member.is_learner && Some(member.id) != without);
        let (up, down): (Vec<&Member>, Vec<&Member>) = voters.partition(|member| running.contains(&member.id));
        let missing = down.iter().map(|member| label(member).to_owned()).collect();
        Self { up: up.len(), voters: up.len() + down.len(), missing }
    }

    /// Reports whether the voters that run are a quorum.
    pub fn has_quorum(&self) -> bool {
        self.voters > 0 && self.up >= quorum(self.voters)
    }
}

/// Returns the standing of the cluster while a member is stopped but stays a member: it counts as missing no more, since its
/// administrator knows about it, and as a voter still.
pub(crate) fn standing_without(members: &[Member], running: &HashSet<u64>, stopped: u64) -> Standing {
    let others: HashSet<u64> = running.iter().copied().filter(|id| *id != stopped).collect();
    let mut standing = Standing::of(members, &others, None);
    let name = members.iter().find(|member| member.id == stopped).map(label).unwrap_or_default();
    standing.missing.retain(|missing| missing != name);
    standing
}

/// The next step for a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LearnerStep {
    /// Etcd is asked to promote it, which it does once the learner has caught up.
    Promote,
    /// It is removed.
    Remove,
}

/// Decides about a learner that was first seen this long ago.
pub(crate) fn learner_step(known_for: Duration) -> LearnerStep {
    if known_for >= LEARNER_MAX { LearnerStep::Remove } else { LearnerStep::Promote }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str, url: &str, is_learner: bool) -> Member {
        Member { id, name: name.to_owned(), peer_urls: vec![url.to_owned()], client_urls: Vec::new(), is_learner }
    }

    fn three() -> Vec<Member> {
        ["a", "b", "c"]
            .iter()
            .zip(1..)
            .map(|(name, id)| member(id, name, &format!("https://{name}:1"), false))
            .collect()
    }

    #[test]
    fn a_server_joins_once_and_waits_for_its_turn() {
        let all = HashSet::from([1, 2, 3]);
        let check = |members: &[Member], running: &HashSet<u64>, name: &str, url: &str, want: Admission| {
            assert_eq!(admission(members, running, name, &[url.to_owned()]), want, "{name} at {url}");
        };
        check(&three(), &all, "d", "https://d:1", Admission::Add);
        check(&three(), &all, "c", "https://d:1", Admission::NameTaken(3));
        check(&three(), &HashSet::from([1, 2]), "c", "https://d:1", Admission::Replace(3));
        // The joiner answers at the URL itself.
        check(&three(), &all, "c", "https://c:1", Admission::Replace(3));
        check(&three(), &all, "d", "https://c:1", Admission::UrlTaken(3));
        let joining = [three(), vec![member(4, "", "https://d:1", true)]].concat();
        check(&joining, &all, "d", "https://d:1", Admission::Repeat(4));
        check(&joining, &all, "e", "https://e:1", Admission::Wait(4));
        check(&joining, &HashSet::from([1, 2]), "c", "https://c:1", Admission::Replace(3));
    }

    #[test]
    fn a_removal_leaves_a_quorum_or_names_who_is_missing() {
        let check = |running: &[u64], without: Option<u64>, has_quorum: bool, missing: &[&str]| {
            let standing = Standing::of(&three(), &running.iter().copied().collect(), without);
            assert_eq!(
                (standing.has_quorum(), standing.missing.as_slice()),
                (has_quorum, &missing.iter().map(|m| (*m).to_owned()).collect::<Vec<_>>()[..]),
                "{running:?} {without:?}"
            );
        };
        check(&[1, 2, 3], Some(3), true, &[]);
        check(&[1, 2], Some(3), true, &[]);
        check(&[1, 2], Some(2), false, &["c"]);
        check(&[1], Some(3), false, &["b"]);
        assert!(!Standing::of(&three()[..1], &HashSet::from([1]), Some(1)).has_quorum(), "the last one stays");
        assert_eq!([1, 2, 3, 4, 5].map(quorum), [1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_stop_below_quorum_names_the_others_that_are_missing() {
        let standing = standing_without(&three(), &HashSet::from([1, 2]), 2);
        assert_eq!((standing.has_quorum(), standing.missing), (false, vec!["c".to_owned()]));
        assert!(standing_without(&three(), &HashSet::from([1, 2, 3]), 2).has_quorum());
    }

    #[test]
    fn a_learner_has_ten_minutes() {
        assert_eq!(learner_step(Duration::ZERO), LearnerStep::Promote);
        assert_eq!(learner_step(LEARNER_MAX - Duration::from_secs(1)), LearnerStep::Promote);
        assert_eq!(learner_step(LEARNER_MAX), LearnerStep::Remove);
    }
}
