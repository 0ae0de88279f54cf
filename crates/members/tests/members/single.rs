//! One member: start, restart, end.

use std::time::Duration;

use kelson_members::{MemberError, Phase, Settings, Start};

use super::fixture::{Machine, PATIENCE, binary, has, kill, put, voters};

#[tokio::test(flavor = "multi_thread")]
async fn a_member_keeps_its_data_over_kills_and_restarts() {
    let machine = Machine::new("a");
    let member = machine.start(Start::Init).await.unwrap();
    put(&member, "one").await;
    let pid = machine.pid().unwrap();
    kill(pid).await;
    assert!(has(&member, "one").await, "it is restarted");
    assert_ne!(machine.pid(), Some(pid));
    member.shutdown().await;
    assert_eq!(machine.pid(), None);
    let settings = Settings::read(&machine.layout()).unwrap().unwrap();
    assert_eq!((settings.phase, settings.cluster_minor), (Phase::Member, Some(5)));
    // Later starts need no flag.
    let mut machine = machine;
    (machine.options.peer_port, machine.options.client_port) = (None, None);
    let member = machine.start(Start::Resume).await.unwrap();
    assert!(has(&member, "one").await);
    assert_eq!(voters(&machine.until("the member is listed", |rows| rows.len() == 1).await), ["a"]);
    member.hand_over().await;
    member.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_ends_when_its_owner_is_gone() {
    let machine = Machine::new("a");
    let member = machine.start(Start::Init).await.unwrap();
    assert!(machine.pid().is_some());
    drop(member);
    assert!(machine.options.tasks.shutdown(PATIENCE).await);
    assert_eq!(machine.pid(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_cannot_succeed_says_why() {
    let machine = Machine::new("a");
    let taken = std::net::TcpListener::bind(("127.0.0.1", machine.options.client_port.unwrap())).unwrap();
    let error = machine.start(Start::Init).await.err().unwrap();
    let MemberError::Ended { tail, .. } = &error else { panic!("{error}") };
    assert!(tail.contains("address already in use"), "{error}");
    drop(taken);
    // The attempt left settings, with which a later start works.
    let member = machine.start(Start::Init).await.unwrap();
    member.shutdown().await;
    // An etcd two minor versions away is not tried.
    let mut settings = Settings::read(&machine.layout()).unwrap().unwrap();
    settings.cluster_minor = Some(3);
    settings.write(&machine.layout()).unwrap();
    let error = machine.start(Start::Resume).await.err().unwrap().to_string();
    assert!(
        error.contains("skips a minor version") && error.contains("install etcd 3.4 on every server first"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_under_a_running_member() {
    let machine = Machine::new("a");
    let member = machine.start(Start::Init).await.unwrap();
    let file = machine.layout().pki_file("server.crt");
    let before = std::fs::read_to_string(&file).unwrap();
    member.shutdown().await;
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(machine.layout().pki_file("client.crt")).unwrap();
    let member = machine.start(Start::Resume).await.unwrap();
    assert_ne!(std::fs::read_to_string(&file).unwrap(), before);
    put(&member, "one").await;
    member.shutdown().await;
}

#[tokio::test]
async fn the_etcd_of_the_tests_is_supported() {
    let output = tokio::process::Command::new(binary()).arg("--version").output();
    let output = tokio::time::timeout(Duration::from_secs(30), output).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = kelson_members::Version::of_output(&text).unwrap_or_else(|| panic!("{text}"));
    version.check().unwrap();
}
