//! Derives warnings from the status: what is wrong or soon will be, and what to do about it.
use jiff::Timestamp;
use kelson_check::{Finding, Level};
use kelson_members::{MemberRow, Role};

use super::facts::{CertificateFacts, Facts, MembersFacts};

const DAY_S: i64 = 24 * 3600;
/// A leaf certificate is renewed long before this; one with less time left was not renewed.
const LEAF_DAYS: i64 = 14;
/// Rotating a CA takes time, since nodes and users take part.
const CA_DAYS: i64 = 180;

/// Returns all warnings.
pub fn warnings(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut add = |probe, level, found: String, meaning: &str, action: &str| {
        all.push(Finding { probe, level, found, meaning: meaning.to_owned(), action: action.to_owned() });
    };
    if facts.process.is_none() {
        let what = if facts.is_server { "The API does not answer" } else { "The node reports nothing" };
        let meaning = format!("{what}. Containers continue without it.");
        let action = "systemctl start kelson-server (or kelson-agent); journalctl -u kelson-server says why it ended.";
        add("process", Level::Error, "nothing runs with this data directory".to_owned(), &meaning, action);
    }
    if let Some(api) = &facts.api {
        if let Some(why) = &api.not_ready {
            let action = "kubectl get --raw '/readyz?verbose' names the check that fails; the log says more.";
            add(
                "api",
                Level::Error,
                format!("the API is not ready: {why}"),
                "Requests of clients are rejected or delayed.",
                action,
            );
        }
        for node in &api.nodes {
            if let Some(why) = &node.not_ready {
                let found = format!("node {} is not ready: {why}", node.name);
                let meaning = "No pod is bound to it, and its pods are moved elsewhere after five minutes.";
                add("nodes", Level::Warning, found, meaning, "Look at the log of that machine's server or agent.");
            } else if node.unschedulable {
                let action = format!("kubectl uncordon {}", node.name);
                add(
                    "nodes",
                    Level::Info,
                    format!("node {} is cordoned", node.name),
                    "No new pod is bound to it.",
                    &action,
                );
            }
        }
    }
    let unavailable = facts.containers.as_ref().and_then(|containers| containers.unavailable.as_ref());
    if let Some(why) = unavailable.filter(|_| facts.process.is_some()) {
        let action = "Look at DIR/log/containerd.log, and at kelson check.";
        let found = format!("the container runtime does not respond: {why}");
        add("containers", Level::Error, found, "Containers of this node cannot be started or stopped.", action);
    }
    for certificate in &facts.certificates {
        if let Some((level, found, meaning, action)) = expiring(certificate, facts.time) {
            add("certificates", level, found, meaning, action);
        }
    }
    let (free, total) = (facts.disk.free_bytes, facts.disk.total_bytes);
    if total > 0 && free < total / 10 {
        let found = format!("{} % of the disk are free", free.saturating_mul(100) / total);
        let meaning = "Images are deleted and pods evicted; without any room, writes to the API fail.";
        add("disk", Level::Warning, found, meaning, "Free space on the disk of the data directory.");
    }
    all.extend(facts.members.iter().flat_map(of_members));
    all
}

/// Returns the warnings about etcd members.
fn of_members(facts: &MembersFacts) -> Vec<Finding> {
    let finding = |level, found: String, meaning: &str, action: String| Finding {
        probe: "etcd",
        level,
        found,
        meaning: meaning.to_owned(),
        action,
    };
    if let Some(why) = &facts.unavailable {
        let found = format!("the etcd members cannot be listed: {why}");
        let action = "Look at the log of this server.".to_owned();
        return vec![finding(Level::Error, found, "The API answers only what it has in memory.", action)];
    }
    let voters = facts.members.iter().filter(|member| member.role != Role::Learner);
    let has_quorum = voters.clone().filter(|member| member.is_running).count() > voters.count() / 2;
    let (level, meaning) = match has_quorum {
        true => (Level::Warning, "One more loss may stop all writes to the API."),
        false => (Level::Error, "Without a quorum of members the API rejects writes."),
    };
    let down = facts.members.iter().filter(|member| !member.is_running);
    let of = |member: &MemberRow| {
        let name = &member.name;
        let action = format!("Start its server; if it is lost: kelson member replace {name}.");
        finding(level, format!("etcd member {name} is down"), meaning, action)
    };
    down.map(of).collect()
}

/// Returns the warning about a certificate that expires soon.
fn expiring(certificate: &CertificateFacts, now: Timestamp) -> Option<(Level, String, &'static str, &'static str)> {
    let left = certificate.expires.duration_since(now).as_secs().div_euclid(DAY_S);
    let (name, is_ca) = (&certificate.name, certificate.renewed == "by rotate-ca");
    if left < 0 {
        let action = if is_ca { "kelson certificate rotate-ca" } else { "kelson certificate renew" };
        return Some((Level::Error, format!("{name} has expired"), "Its owner is no longer trusted.", action));
    }
    if is_ca && left < CA_DAYS {
        let found = format!("{name} expires in {left} days");
        return Some((
            Level::Warning,
            found,
            "All certificates that it signed expire with it.",
            "kelson certificate rotate-ca",
        ));
    }
    // An administrator's kubeconfig is only renewed at a start.
    if !is_ca && left < LEAF_DAYS && certificate.renewed != "trusted until rotate-ca --finish" {
        let found = format!("{name} expires in {left} days");
        let meaning = "It should have been renewed by now.";
        return Some((
            Level::Warning,
            found,
            meaning,
            "kelson certificate renew; the log says why it was not renewed.",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::facts::{ApiFacts, ContainerFacts, DiskRoom, NodeFacts, ProcessFacts};
    use super::*;

    fn facts() -> Facts {
        Facts {
            time: "2026-05-06T07:08:09Z".parse().unwrap(),
            version: "0.1.0".to_owned(),
            data_dir: "/var/lib/kelson".into(),
            is_server: true,
            process: Some(ProcessFacts { pid: 7, command: "kelson server".to_owned(), resident_bytes: 1 }),
            runtime: Vec::new(),
            listens: Vec::new(),
            api: Some(ApiFacts { not_ready: None, nodes: Vec::new() }),
            members: None,
            certificates: Vec::new(),
            disk: DiskRoom { total_bytes: 100, free_bytes: 50 },
            containers: None,
        }
    }

    fn levels(facts: &Facts) -> Vec<(&'static str, Level)> {
        warnings(facts).into_iter().map(|finding| (finding.probe, finding.level)).collect()
    }

    #[test]
    fn a_healthy_server_has_none() {
        assert_eq!(levels(&facts()), []);
    }

    #[test]
    fn what_does_not_work_is_an_error() {
        let stopped = Facts { process: None, api: None, ..facts() };
        assert_eq!(levels(&stopped), [("process", Level::Error)]);
        let node = |not_ready: Option<&str>, unschedulable| NodeFacts {
            name: "n".to_owned(),
            not_ready: not_ready.map(str::to_owned),
            version: String::new(),
            unschedulable,
        };
        let nodes = vec![node(Some("the runtime is down"), false), node(None, true), node(None, false)];
        let api = ApiFacts { not_ready: Some("etcd failed".to_owned()), nodes };
        let containers = ContainerFacts { unavailable: Some("refused".to_owned()), ..ContainerFacts::default() };
        let broken = Facts {
            api: Some(api),
            containers: Some(containers),
            disk: DiskRoom { total_bytes: 100, free_bytes: 5 },
            ..facts()
        };
        let wanted = [
            ("api", Level::Error),
            ("nodes", Level::Warning),
            ("nodes", Level::Info),
            ("containers", Level::Error),
            ("disk", Level::Warning),
        ];
        assert_eq!(levels(&broken), wanted);
    }

    #[test]
    fn a_member_that_is_down_is_an_error_without_a_quorum() {
        let member = |name: &str, role, is_running| MemberRow {
            name: name.to_owned(),
            id: name.to_owned(),
            role,
            is_running,
            peer_urls: Vec::new(),
            lag: None,
            status: None,
        };
        let of = |members| Facts { members: Some(MembersFacts { unavailable: None, members }), ..facts() };
        let (a, b) = (member("a", Role::Leader, true), member("b", Role::Voter, true));
        let (c, d) = (member("c", Role::Voter, false), member("d", Role::Learner, false));
        assert_eq!(levels(&of(vec![a.clone(), b.clone()])), []);
        assert_eq!(levels(&of(vec![a.clone(), b, c.clone()])), [("etcd", Level::Warning)]);
        assert_eq!(levels(&of(vec![a.clone(), c])), [("etcd", Level::Error)]);
        assert_eq!(levels(&of(vec![a, d])), [("etcd", Level::Warning)]);
    }

    #[test]
    fn certificates_that_end_soon() {
        let now = facts().time;
        let level = |days: i64, renewed| {
            let left = Duration::from_secs(u64::try_from(days.abs() * DAY_S + 60).unwrap());
            let expires = if days < 0 { now - left } else { now + left };
            expiring(&CertificateFacts { name: "c".to_owned(), expires, renewed }, now).map(|(level, ..)| level)
        };
        let rows = [
            (-1, "by the server", Some(Level::Error)),
            (5, "by the server", Some(Level::Warning)),
            (30, "by the server", None),
            (30, "by rotate-ca", Some(Level::Warning)),
            (200, "by rotate-ca", None),
            (5, "trusted until rotate-ca --finish", None),
        ];
        for (days, renewed, want) in rows {
            assert_eq!(level(days, renewed), want, "{days} {renewed}");
        }
    }
}
