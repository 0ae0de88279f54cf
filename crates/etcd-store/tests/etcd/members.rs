//! An etcd of several members: one stops, and requests continue.

use std::path::PathBuf;

use kelson_etcd::proto::RangeRequest;
use kelson_etcd_store::EtcdStore;
use kelson_etcd_store::migrate::{Members, MoveError, OfflineMember, place, reset};
use kelson_store::{Store, StoreError};
use kelson_tasks::Tasks;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::fixture::{Etcd, PATIENCE, binary, client, create, lines, options, resource, shown, spawn};

const MEMBERS: usize = 3;

struct Cluster {
    dir: TempDir,
    members: Vec<Child>,
    tasks: Tasks,
}

impl Cluster {
    async fn start() -> Self {
        let mut cluster = Self { dir: TempDir::new().unwrap(), members: Vec::new(), tasks: Tasks::root("test") };
        for n in 0..MEMBERS {
            let member = cluster.spawn(n);
            cluster.members.push(member);
        }
        for n in 0..MEMBERS {
            cluster.until_it_answers(n).await;
        }
        cluster
    }

    fn spawn(&self, n: usize) -> Child {
        let (name, client, peer) = (format!("m{n}"), format!("c{n}:1"), format!("p{n}:1"));
        for socket in [&client, &peer] {
            let _ = std::fs::remove_file(self.dir.path().join(socket));
        }
        let all: Vec<String> = (0..MEMBERS).map(|n| format!("m{n}=unix://p{n}:1")).collect();
        spawn(self.dir.path(), &[&name, &client, &peer], &all.join(","))
    }

    /// Ends all processes without a word.
    async fn kill_all(&mut self) {
        for mut member in self.members.drain(..) {
            member.kill().await.unwrap();
        }
    }

    fn socket(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("c{n}:1"))
    }

    /// Waits until a member answers reads that need the others.
    async fn until_it_answers(&self, n: usize) {
        let answers = async {
            let read = || async {
                client(&self.socket(n)).range(RangeRequest { key: "k".into(), ..Default::default() }).await
            };
            while read().await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, answers).await.unwrap_or_else(|_| panic!("member {n} answers"));
    }

    async fn kill(&mut self, n: usize) {
        self.members[n].kill().await.unwrap();
    }

    async fn restart(&mut self, n: usize) {
        self.members[n] = self.spawn(n);
        self.until_it_answers(n).await;
    }

    async fn signal(&self, n: usize, signal: &str) {
        let pid = self.members[n].id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
    }

    async fn open(&self) -> Store {
        let servers = (0..MEMBERS).map(|n| format!("unix://{}", self.socket(n).display())).collect();
        EtcdStore::open(options(servers, &self.tasks, None)).await.unwrap().store
    }
}

/// Creates an object as a client would: it tries again while the outcome of the write is unknown.
async fn insist(store: Store, name: String) {
    let insisted = async {
        loop {
            match create(&store, &name, "1").await {
                Ok(_) | Err(StoreError::AlreadyExists { .. }) => return,
                Err(StoreError::Elsewhere(_)) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, insisted).await.unwrap_or_else(|_| panic!("{name} is written"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_continue_when_any_one_member_dies() {
    let mut cluster = Cluster::start().await;
    let store = cluster.open().await;
    let mut watch = store.watch(resource("configmaps"), store.current_revision()).unwrap();
    for n in 0..MEMBERS {
        cluster.kill(n).await;
        // Many calls at once, which fail together when the member in use stops.
        let names: Vec<String> = (0..4).map(|i| format!("m{n}-{i}")).collect();
        let writers: Vec<_> = names.iter().cloned().map(|name| tokio::spawn(insist(store.clone(), name))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
        let read = async { while store.catch_up().await.is_err() {} };
        tokio::time::timeout(PATIENCE, read).await.expect("reads go on");
        let mut reported = Vec::new();
        while reported.len() < names.len() {
            let events = tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch goes on").unwrap();
            reported.extend(lines(&events));
        }
        for name in &names {
            assert_eq!(shown(&store, name).as_deref(), Some("1"), "{name}");
            assert!(reported.iter().any(|line| line.starts_with(&format!("Added {name} "))), "{name}: {reported:?}");
        }
        cluster.restart(n).await;
    }
    assert_eq!(cluster.open().await.count(resource("configmaps")), MEMBERS * 4);
}

/// It takes connections and says nothing: calls find out by their deadline, and take the watch along.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_silent_is_left() {
    let cluster = Cluster::start().await;
    let store = cluster.open().await;
    insist(store.clone(), "before".to_owned()).await;
    // The first one is in use, since nothing has failed.
    cluster.signal(0, "-STOP").await;
    insist(store.clone(), "after".to_owned()).await;
    let read = async { while store.catch_up().await.is_err() {} };
    tokio::time::timeout(PATIENCE, read).await.expect("reads go on");
    assert_eq!(shown(&store, "after").as_deref(), Some("1"));
    cluster.signal(0, "-CONT").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_down_from_the_start_does_not_matter() {
    let etcd = Etcd::start().await;
    for servers in
        [vec!["unix:///nobody:1".to_owned(), etcd.address()], vec![etcd.address(), "http://127.0.0.1:1".to_owned()]]
    {
        let tasks = Tasks::root("test");
        let opened = tokio::time::timeout(PATIENCE, EtcdStore::open(options(servers.clone(), &tasks, None))).await;
        let store = opened.unwrap_or_else(|_| panic!("{servers:?}")).unwrap().store;
        store.catch_up().await.unwrap();
        insist(store.clone(), "m".to_owned()).await;
        assert_eq!(shown(&store, "m").as_deref(), Some("1"));
    }
}

/// The status of a member needs no leader, and reads do: a start waits for it, longer than a single request may.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_a_leader() {
    let mut cluster = Cluster::start().await;
    insist(cluster.open().await, "m".to_owned()).await;
    cluster.kill(1).await;
    cluster.kill(2).await;
    let tasks = Tasks::root("test");
    let of_one = options(vec![format!("unix://{}", cluster.socket(0).display())], &tasks, None);
    let mut opened = Box::pin(EtcdStore::open(of_one));
    let request = std::time::Duration::from_secs(11);
    let early = tokio::time::timeout(request, &mut opened).await;
    assert!(early.is_err(), "it has not given up");
    cluster.restart(1).await;
    let store = tokio::time::timeout(PATIENCE, opened).await.expect("it reads everything").unwrap().store;
    assert_eq!(shown(&store, "m").as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_members_continues_alone_after_a_reset() {
    let mut cluster = Cluster::start().await;
    let store = EtcdStore::open(options(vec![format!("unix://{}", cluster.socket(1).display())], &cluster.tasks, None));
    let store = store.await.unwrap().store;
    let made = create(&store, "m", "1").await.unwrap();
    // The member that is kept has it too.
    cluster.until_it_answers(2).await;
    store.close().await;
    cluster.kill_all().await;

    let dir = TempDir::new().unwrap();
    let absent = reset(dir.path(), &binary()).await.unwrap_err();
    assert!(matches!(absent, MoveError::Absent(_)), "{absent}");
    let data = place::member_data(dir.path());
    std::fs::create_dir_all(data.parent().unwrap()).unwrap();
    std::fs::rename(cluster.dir.path().join("data-m2"), &data).unwrap();
    // What an attempt left that was killed while it copied.
    std::fs::create_dir(place::Change::Reset.unfinished(dir.path())).unwrap();
    std::fs::write(place::Change::Reset.unfinished(dir.path()).join("half"), "").unwrap();
    let no_program = reset(dir.path(), &dir.path().join("none")).await.unwrap_err();
    assert!(no_program.to_string().contains("none"), "{no_program}");
    let program = binary();
    let others = OfflineMember::start(&program, &data, Members::Kept);
    let alone = tokio::time::timeout(std::time::Duration::from_secs(2), others).await;
    assert!(!matches!(alone, Ok(Ok(_))), "without the others it has no leader");

    let first = reset(dir.path(), &binary()).await.unwrap();
    assert!(first.revision >= made.revision, "{first:?}");
    assert!(place::has_member(dir.path()) && first.aside.join("member").join("wal").exists());
    let again = reset(dir.path(), &binary()).await.unwrap();
    assert_eq!((again.revision, again.objects), (first.revision, first.objects));
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "the member and the data before each reset: {names:?}");

    let etcd = Etcd::on(&data).await;
    let store = etcd.open().await;
    assert_eq!(shown(&store, "m").as_deref(), Some("1"));
    assert_eq!(store.get(resource("configmaps"), "default", "m").unwrap().revision(), made.revision);
    create(&store, "n", "2").await.unwrap();
}
