//! Three members: joins, promotion, loss of the leader and of a disk, removal.

use std::time::Duration;

use kelson_members::{AdmitError, Cluster, InitialMember, Joiner, MemberError, Role, Start};

use super::fixture::{Machine, PATIENCE, admit, has, kill, leader, put, voters};

/// Three machines, whose second and third join at the same time.
async fn three() -> ([Machine; 3], Vec<kelson_members::Member>) {
    let machines = ["a", "b", "c"].map(Machine::new);
    let first = machines[0].start(Start::Init).await.unwrap();
    for machine in &machines[1..] {
        machine.receive_ca(&machines[0]);
    }
    let (second, third) = tokio::join!(machines[1].join(&first), machines[2].join(&first));
    (machines, vec![first, second, third])
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_join_at_once_become_voters_and_any_one_may_die() {
    let (machines, members) = three().await;
    let rows = machines[0].until("all are voters", |rows| voters(rows) == ["a", "b", "c"]).await;
    assert!(rows.iter().all(|row| row.is_running), "{rows:?}");
    put(&members[2], "one").await;
    // The leader is killed: another one takes over, and the killed one returns by itself.
    let leads = leader(&rows).unwrap().to_owned();
    let of_leader = machines.iter().position(|machine| machine.options.name == leads).unwrap();
    let other = (of_leader + 1) % 3;
    kill(machines[of_leader].pid().unwrap()).await;
    put(&members[other], "two").await;
    assert!(has(&members[of_leader], "two").await);
    // Stopping in order hands leadership over first.
    let rows = machines[other].until("there is a leader", |rows| leader(rows).is_some()).await;
    let of_leader = machines.iter().position(|machine| Some(machine.options.name.as_str()) == leader(&rows)).unwrap();
    let other = (of_leader + 1) % 3;
    members[of_leader].hand_over().await;
    machines[other]
        .until("another member leads", |rows| leader(rows).is_some_and(|name| name != machines[of_leader].options.name))
        .await;
    for member in &members {
        member.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_disk_was_lost_takes_its_place_again() {
    let (machines, mut members) = three().await;
    put(&members[0], "one").await;
    let id = |rows: &[kelson_members::MemberRow]| rows.iter().find(|row| row.name == "c").map(|row| row.id.clone());
    let before = id(&machines[0].until("all are voters", |rows| voters(rows).len() == 3).await);
    // While it runs, its name is taken.
    let impostor = Machine::new("c");
    impostor.receive_ca(&machines[0]);
    let joiner = Joiner::prepare(impostor.options.clone()).await.unwrap();
    let refused = admit(&members[0], "c", &joiner.peer_urls()[0]).await;
    assert!(matches!(refused, AdmitError::NameTaken { .. }), "{refused}");
    drop(joiner);
    members.pop().unwrap().shutdown().await;
    machines[2].lose_disk();
    machines[2].receive_ca(&machines[0]);
    let returned = machines[2].join(&members[0]).await;
    assert!(has(&returned, "one").await);
    let after = machines[0].until("it is a voter", |rows| voters(rows) == ["a", "b", "c"]).await;
    assert_ne!(id(&after), before, "it is another member");
    for member in members.iter().chain([&returned]) {
        member.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_url_that_does_not_lead_to_the_server_is_rejected_before_it_is_added() {
    let machine = Machine::new("a");
    let member = machine.start(Start::Init).await.unwrap();
    let own = format!("https://127.0.0.1:{}", machine.options.peer_port.unwrap());
    // What `localhost` leads to is the voter itself; nothing listens at port 1.
    for url in [own.as_str(), "https://127.0.0.1:1"] {
        let refused = admit(&member, "b", url).await;
        assert!(matches!(&refused, AdmitError::Unreachable { from, .. } if from == "a"), "{url}: {refused}");
    }
    // Another server's listener, under another name.
    let other = Machine::new("b");
    other.receive_ca(&machine);
    let joiner = Joiner::prepare(other.options.clone()).await.unwrap();
    let refused = admit(&member, "c", &joiner.peer_urls()[0]).await;
    assert!(refused.to_string().contains("the joining server b answers there"), "{refused}");
    assert_eq!(machine.list().await.unwrap().len(), 1, "nothing was added");
    // Asking twice adds one learner; meanwhile others wait.
    let first = member.admit("b", &joiner.peer_urls()).await.unwrap();
    assert_eq!(member.admit("b", &joiner.peer_urls()).await.unwrap(), first);
    let third = Machine::new("c");
    third.receive_ca(&machine);
    let waits = Joiner::prepare(third.options.clone()).await.unwrap();
    let busy = admit(&member, "c", &waits.peer_urls()[0]).await;
    assert!(busy.is_temporary(), "{busy}");
    let rows = machine.list().await.unwrap();
    assert_eq!(rows.iter().filter(|row| row.role == Role::Learner).count(), 1);
    member.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_below_quorum_is_rejected_and_names_who_is_missing() {
    let (machines, mut members) = three().await;
    machines[0].until("all are voters", |rows| voters(rows).len() == 3).await;
    members.pop().unwrap().shutdown().await;
    machines[0].until("c is down", |rows| rows.iter().any(|row| row.name == "c" && !row.is_running)).await;
    let cluster = Cluster::open(machines[0].dir.path()).await.unwrap();
    let refused = cluster.remove("b", false).await.unwrap_err();
    let MemberError::Quorum { missing, .. } = &refused else { panic!("{refused}") };
    assert_eq!(missing, "c");
    let refused = cluster.replace("b", false).await.unwrap_err();
    assert!(matches!(refused, MemberError::Running { .. }), "{refused}");
    cluster.replace("c", false).await.unwrap();
    let rows = machines[0].until("c is gone", |rows| rows.len() == 2).await;
    assert_eq!(voters(&rows), ["a", "b"]);
    // A removed member does not start again.
    let refused = machines[2].start(Start::Resume).await.err().unwrap();
    assert!(matches!(refused, MemberError::Removed { .. }), "{refused}");
    for member in &members {
        member.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_waits_for_a_quorum_shows_who_is_missing() {
    let (machines, members) = three().await;
    put(&members[0], "one").await;
    for member in &members {
        member.shutdown().await;
    }
    // One of three starts: it waits, and its list names the others.
    let waits = machines[0].start(Start::Resume);
    let shown = machines[0].until("the others are missing", |rows| {
        let running = |name: &str| rows.iter().any(|row| row.name == name && row.is_running);
        rows.len() == 3 && running("a") && !running("b") && !running("c")
    });
    tokio::select! {
        _ = waits => panic!("it started without a quorum"),
        rows = shown => assert_eq!(leader(&rows), None),
    }
    // The dropped start has stopped its etcd; with a second server both are a quorum.
    let stopped = async {
        while machines[0].pid().is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(super::fixture::PATIENCE, stopped).await.expect("it is stopped");
    let (first, second) = tokio::join!(machines[0].start(Start::Resume), machines[1].start(Start::Resume));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(has(&first, "one").await && has(&second, "one").await);
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_an_outdated_list_of_members_may_ask_again() {
    let [a, b] = ["a", "b"].map(Machine::new);
    let first = a.start(Start::Init).await.unwrap();
    b.receive_ca(&a);
    let joiner = Joiner::prepare(b.options.clone()).await.unwrap();
    let mut initial = first.admit(joiner.name(), &joiner.peer_urls()).await.unwrap();
    initial.members.push(InitialMember { name: "gone".into(), peer_urls: vec!["https://127.0.0.1:1".into()] });
    let started = tokio::time::timeout(PATIENCE, joiner.start(initial)).await.expect("etcd says so soon");
    let error = started.err();
    assert!(matches!(error, Some(MemberError::StaleCluster)), "{error:?}");
    // It is an error of the start alone: the process continues.
    assert!(tokio::time::timeout(Duration::ZERO, b.options.tasks.failed()).await.is_err());
    let second = b.join(&first).await;
    b.until("both are voters", |rows| voters(rows) == ["a", "b"]).await;
    second.shutdown().await;
    first.shutdown().await;
}
