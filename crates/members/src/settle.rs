//! Which settings a start uses: those on disk, unless flags contradict them.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use crate::admit::InitialCluster;
use crate::error::MemberError;
use crate::layout::Layout;
use crate::options::{CLIENT_PORT, MemberOptions, is_there};
use crate::settings::{Phase, Settings};

/// The way in which a member starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// As the first member of a new cluster, or with the settings on disk if there are some (`--cluster-init`).
    Init,
    /// The member starts with the settings on disk.
    Resume,
    /// The member joins this cluster as a learner.
    Join(InitialCluster),
}

/// Returns the settings of this start. Blocks.
///
/// # Errors
/// Flags contradict the settings on disk; data or settings are missing.
pub(crate) fn settle(layout: &Layout, options: &MemberOptions, start: &Start) -> Result<Settings, MemberError> {
    let present = Settings::read(layout)?;
    let has_data = is_there(&layout.data());
    match (start, present) {
        (Start::Init | Start::Resume, Some(settings)) => {
            check(layout, options, &settings)?;
            if !has_data && settings.phase == Phase::Member {
                return Err(missing(
                    layout,
                    "the data of the etcd member is missing; if the disk was lost, move this directory away and join again with --server and --token",
                ));
            }
            Ok(Settings { client_port: options.client_port.unwrap_or(settings.client_port), ..settings })
        }
        // Without a log the data was made for a new member.
        (Start::Init, None) if is_there(&layout.data().join("member").join("wal")) => {
            Err(missing(layout, "there is data of etcd without member.json; move this directory away"))
        }
        (Start::Init, None) => Ok(fresh(options)),
        (Start::Resume, None) => Err(missing(
            layout,
            "this server has no etcd member; start it with --cluster-init, or with --server and --token",
        )),
        (Start::Join(_), Some(settings)) if settings.phase == Phase::Member => {
            Err(missing(layout, "this server is a member already; to join another cluster, move this directory away"))
        }
        (Start::Join(initial), _) => {
            if has_data {
                // Of an earlier attempt, which never became a voter.
                std::fs::remove_dir_all(layout.data())
                    .map_err(|source| MemberError::File { path: layout.data(), source })?;
            }
            let cluster_minor = Some(initial.cluster_minor);
            Ok(Settings {
                phase: Phase::Joining,
                initial_cluster: initial.initial_cluster(),
                cluster_minor,
                ..fresh(options)
            })
        }
    }
}

fn fresh(options: &MemberOptions) -> Settings {
    Settings::first(&options.name, &options.peer_url(), options.client_port.unwrap_or(CLIENT_PORT))
}

fn missing(layout: &Layout, why: &str) -> MemberError {
    MemberError::Layout { path: layout.dir().to_owned(), why: why.to_owned() }
}

/// Compares what the user gave with the settings: name and address of a member are known to the others.
fn check(layout: &Layout, options: &MemberOptions, settings: &Settings) -> Result<(), MemberError> {
    let contradiction = |flag, given: &str, kept: &str, remedy| {
        let (given, kept) = (given.to_owned(), kept.to_owned());
        Err(MemberError::Contradiction { flag, given, kept, path: layout.settings(), remedy })
    };
    if options.name != settings.name {
        let remedy = "use the earlier name, or remove the member with `kelson member remove` and join again";
        return contradiction("--node-name", &options.name, &settings.name, remedy);
    }
    let given = options.peer_url();
    let is_given = options.peer_address_given || options.peer_port.is_some();
    if is_given && given != settings.peer_url && !is_same_where_given(options, settings) {
        let remedy = "use the earlier address, or remove the member with `kelson member remove` and join again";
        return contradiction(
            "the peer URL by --advertise-address and --etcd-peer-port",
            &given,
            &settings.peer_url,
            remedy,
        );
    }
    Ok(())
}

/// Compares only the part of the peer URL that was given.
fn is_same_where_given(options: &MemberOptions, settings: &Settings) -> bool {
    let Some((host, port)) = crate::options::host_and_port(&settings.peer_url) else { return false };
    let same_host = !options.peer_address_given || host == options.peer_address.to_string();
    let same_port = options.peer_port.is_none_or(|given| given == port);
    same_host && same_port
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kelson_meta::SystemClock;
    use kelson_tasks::Tasks;

    use super::*;
    use crate::admit::InitialMember;

    fn options(dir: &std::path::Path) -> MemberOptions {
        MemberOptions {
            data_dir: dir.to_owned(),
            binary: None,
            name: "a".to_owned(),
            peer_address: "10.0.0.1".parse().unwrap(),
            peer_address_given: false,
            peer_port: None,
            client_port: None,
            quota_bytes: 0,
            tasks: Tasks::root("test"),
            clock: Arc::new(SystemClock),
        }
    }

    #[test]
    fn later_starts_need_no_flag_and_reject_contradictions() {
        let dir = tempfile::tempdir().unwrap();
        let (layout, usual) = (Layout::new(dir.path()), options(dir.path()));
        assert!(settle(&layout, &usual, &Start::Resume).is_err());
        let first = settle(&layout, &MemberOptions { peer_port: Some(7000), ..usual.clone() }, &Start::Init).unwrap();
        assert_eq!(
            (first.peer_url.as_str(), first.client_port, first.phase),
            ("https://10.0.0.1:7000", 2379, Phase::New)
        );
        first.write(&layout).unwrap();
        for start in [Start::Init, Start::Resume] {
            assert_eq!(settle(&layout, &usual, &start).unwrap(), first);
            // An address that the user did not give may have changed.
            let moved = MemberOptions { peer_address: "10.0.0.9".parse().unwrap(), ..usual.clone() };
            assert_eq!(settle(&layout, &moved, &start).unwrap(), first);
            let port = MemberOptions { client_port: Some(1), ..usual.clone() };
            assert_eq!(settle(&layout, &port, &start).unwrap().client_port, 1);
        }
        let rejected = |options: MemberOptions| settle(&layout, &options, &Start::Resume).unwrap_err().to_string();
        let name = rejected(MemberOptions { name: "b".to_owned(), ..usual.clone() });
        assert!(name.starts_with("--node-name is b, but the etcd member of this server has a"), "{name}");
        let address =
            MemberOptions { peer_address_given: true, peer_address: "10.0.0.9".parse().unwrap(), ..usual.clone() };
        assert!(rejected(address).contains("--advertise-address"));
        let member = Settings { phase: Phase::Member, ..first };
        member.write(&layout).unwrap();
        assert!(rejected(usual.clone()).contains("data of the etcd member is missing"));
        std::fs::create_dir(layout.data()).unwrap();
        assert_eq!(settle(&layout, &usual, &Start::Resume).unwrap(), member);
    }

    #[test]
    fn a_join_starts_afresh_until_the_server_is_a_voter() {
        let dir = tempfile::tempdir().unwrap();
        let (layout, usual) = (Layout::new(dir.path()), options(dir.path()));
        let initial = InitialCluster {
            cluster_id: "1".into(),
            member_id: "2".into(),
            members: vec![InitialMember { name: "a".into(), peer_urls: vec!["https://10.0.0.1:2380".into()] }],
            etcd_version: "3.5.30".into(),
            cluster_minor: 5,
        };
        let start = Start::Join(initial);
        let joining = settle(&layout, &usual, &start).unwrap();
        assert_eq!((joining.phase, joining.cluster_minor), (Phase::Joining, Some(5)));
        joining.write(&layout).unwrap();
        std::fs::create_dir(layout.data()).unwrap();
        assert_eq!(settle(&layout, &usual, &start).unwrap(), joining);
        assert!(!layout.data().exists(), "the data of the earlier attempt is gone");
        Settings { phase: Phase::Member, ..joining }.write(&layout).unwrap();
        assert!(settle(&layout, &usual, &start).is_err());
    }
}
