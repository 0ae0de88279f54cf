//! The choice among servers that fail in different ways, on a paused clock.
use std::collections::HashMap;

use parking_lot::Mutex;

use super::*;

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Well,
    /// Its process is gone.
    Dead,
    /// Its machine is gone.
    Silent,
    /// It answers without a quorum.
    Unready,
}

/// The longest time until a ping of a silent server is missed.
const MISSED: Duration = Duration::from_millis(750);

/// API servers whose state a test sets, by URL.
#[derive(Default)]
struct Scripted {
    states: Mutex<HashMap<String, (State, Instant)>>,
    changes: watch::Sender<u64>,
    opened: Mutex<u64>,
}

impl Scripted {
    fn set(&self, server: &Uri, state: State) {
        self.states.lock().insert(server.to_string(), (state, Instant::now()));
        self.changes.send_modify(|count| *count += 1);
    }

    fn state(&self, server: &Uri) -> (State, Instant) {
        self.states.lock().get(&server.to_string()).copied().unwrap_or((State::Well, Instant::now()))
    }
}

struct ScriptedProbe(Arc<Scripted>, Uri);

impl Prober for Arc<Scripted> {
    type Probe = ScriptedProbe;

    async fn open(&self, server: Uri) -> io::Result<ScriptedProbe> {
        *self.opened.lock() += 1;
        match self.state(&server).0 {
            State::Dead => Err(io::ErrorKind::ConnectionRefused.into()),
            State::Silent => std::future::pending().await,
            State::Well | State::Unready => Ok(ScriptedProbe(Arc::clone(self), server)),
        }
    }
}

impl Probe for ScriptedProbe {
    async fn ended(&mut self) -> Ending {
        let mut changes = self.0.changes.subscribe();
        loop {
            match self.0.state(&self.1) {
                (State::Dead, _) => return Ending::Closed,
                (State::Silent, since) => {
                    tokio::time::sleep_until(since + MISSED).await;
                    return Ending::Broken;
                }
                (State::Well | State::Unready, _) => changes.changed().await.expect("the servers are there"),
            }
        }
    }

    async fn is_ready(&mut self) -> bool {
        let (state, since) = self.0.state(&self.1);
        if state == State::Silent {
            // A request fails with its connection.
            tokio::time::sleep_until(since + MISSED).await;
        }
        state == State::Well
    }
}

/// A node with three servers, in the order of its preference.
struct Case {
    scripted: Arc<Scripted>,
    servers: Arc<Servers>,
    by_rank: Vec<Uri>,
}

async fn case() -> Case {
    let urls: Vec<String> = ["a", "b", "c"].iter().map(|name| format!("https://{name}:6443")).collect();
    let servers = Arc::new(Servers::new(&urls, "node-1").expect("URLs"));
    let scripted = Arc::new(Scripted::default());
    tokio::spawn(Monitor::new(Arc::clone(&servers), Arc::clone(&scripted)).run());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let by_rank = servers.order();
    Case { scripted, servers, by_rank }
}

impl Case {
    fn rank(&self) -> usize {
        let (current, _) = self.servers.current();
        self.by_rank.iter().position(|server| *server == current).expect("one of them")
    }

    /// Waits until the server with this rank is used, and returns how long it took.
    async fn uses(&self, rank: usize, limit: Duration) -> Duration {
        let begun = Instant::now();
        while self.rank() != rank {
            assert!(begun.elapsed() < limit, "{} is used instead of {rank}", self.rank());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        begun.elapsed()
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_is_left_and_its_answers_in_progress_are_not_cut() {
    let case = case().await;
    let open = case.servers.connection(&case.by_rank[0]);
    case.scripted.set(&case.by_rank[1], State::Dead);
    case.scripted.set(&case.by_rank[0], State::Dead);
    case.uses(2, SECOND).await;
    assert!(!open.is_cancelled(), "a server that stops ends its connections itself");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_gone_is_left_in_a_second_with_all_connections() {
    let case = case().await;
    let open = case.servers.connection(&case.by_rank[0]);
    let (_, generation) = case.servers.current();
    case.scripted.set(&case.by_rank[0], State::Silent);
    case.uses(1, SECOND).await;
    assert!(open.is_cancelled(), "what waits for the server fails now");
    assert_ne!(case.servers.current().1, generation);
    assert!(!case.servers.connection(&case.by_rank[1]).is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_quorum_is_left_for_one_that_is_ready_only() {
    let case = case().await;
    let open = case.servers.connection(&case.by_rank[0]);
    for server in &case.by_rank {
        case.scripted.set(server, State::Unready);
    }
    tokio::time::sleep(MINUTE).await;
    assert_eq!((case.rank(), open.is_cancelled()), (0, false), "none is better");
    case.scripted.set(&case.by_rank[2], State::Well);
    case.uses(2, 15 * SECOND).await;
    assert!(open.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn one_look_that_fails_moves_nothing() {
    let case = case().await;
    for _ in 0..20 {
        tokio::time::sleep(2 * SECOND).await;
        case.scripted.set(&case.by_rank[0], State::Unready);
        tokio::time::sleep(SECOND).await;
        case.scripted.set(&case.by_rank[0], State::Well);
        tokio::time::sleep(3 * SECOND).await;
    }
    assert_eq!((case.rank(), case.servers.current().1), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_returned_server_is_used_again_after_it_was_steady() {
    let case = case().await;
    case.scripted.set(&case.by_rank[0], State::Silent);
    case.uses(1, SECOND).await;
    let watching = case.servers.connection(&case.by_rank[1]);
    case.scripted.set(&case.by_rank[0], State::Well);
    let took = case.uses(0, 5 * MINUTE).await;
    assert!(took > MINUTE, "{took:?}");
    assert!(!watching.is_cancelled(), "watches continue where they are");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_and_goes_is_returned_to_less_and_less() {
    let case = case().await;
    let mut last = Duration::ZERO;
    for round in 0..4 {
        case.scripted.set(&case.by_rank[0], State::Silent);
        case.uses(1, SECOND).await;
        case.scripted.set(&case.by_rank[0], State::Well);
        let took = case.uses(0, 60 * MINUTE).await;
        // The pause is doubled and has a jitter of a half.
        assert!(round == 0 || took > last, "{last:?} {took:?}");
        last = took;
    }
    // A server that stays is forgiven.
    tokio::time::sleep(60 * MINUTE).await;
    case.scripted.set(&case.by_rank[0], State::Silent);
    case.uses(1, SECOND).await;
    case.scripted.set(&case.by_rank[0], State::Well);
    assert!(case.uses(0, 60 * MINUTE).await < last);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_flaps_before_it_is_steady_is_not_used() {
    let case = case().await;
    case.scripted.set(&case.by_rank[0], State::Dead);
    case.uses(1, SECOND).await;
    for _ in 0..200 {
        case.scripted.set(&case.by_rank[0], State::Well);
        tokio::time::sleep(8 * SECOND).await;
        case.scripted.set(&case.by_rank[0], State::Dead);
        tokio::time::sleep(8 * SECOND).await;
        assert_eq!(case.rank(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn when_all_are_gone_the_first_that_is_back_is_used() {
    let case = case().await;
    for server in &case.by_rank {
        case.scripted.set(server, State::Silent);
    }
    tokio::time::sleep(10 * MINUTE).await;
    case.scripted.set(&case.by_rank[2], State::Well);
    case.uses(2, 30 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_single_server_is_not_watched_until_others_are_known() {
    let servers = Arc::new(Servers::new(&["https://a:6443".to_owned()], "n").expect("a URL"));
    let scripted = Arc::new(Scripted::default());
    tokio::spawn(Monitor::new(Arc::clone(&servers), Arc::clone(&scripted)).run());
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(*scripted.opened.lock(), 0);
    servers.learn(&["https://b:6443".to_owned(), "https://c:6443".to_owned()]);
    tokio::time::sleep(SECOND).await;
    assert_eq!(*scripted.opened.lock(), 1);
    scripted.set(&servers.current().0, State::Silent);
    tokio::time::sleep(SECOND).await;
    assert_ne!(servers.current().0.host(), Some("a"));
}
