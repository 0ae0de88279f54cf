//! The servers of one API, and the one that is in use. All connections of a node share one [`Servers`], so that they
//! leave a server that does not answer together. Each node prefers another server, by a hash of its name.
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use http::Uri;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The maximum number of servers to remember. A cluster has three to seven; the others are former ones.
pub const SERVERS_MAX: usize = 16;

/// A URL that is not that of an API server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// It cannot be parsed.
    #[error("server {url:?}: {why}")]
    Malformed {
        /// The URL as it was given.
        url: String,
        /// The reason, from the parser.
        why: String,
    },
    /// Its scheme is not https, or it has no host.
    #[error("server {0:?}: must be an https URL")]
    NotHttps(String),
    /// The list is empty.
    #[error("no server is given")]
    Empty,
}

/// What happens to the connections to the previous server when another one is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Previous {
    /// They end at once, because the server does not answer.
    Cut,
    /// Their requests and watches continue; new ones go to the other server.
    Drain,
}

/// The servers of one API. A connection asks for [`Servers::order`] and takes the first that answers.
#[derive(Debug)]
pub struct Servers {
    choice: Mutex<Choice>,
    /// The number of changes of the list.
    listed: watch::Sender<u64>,
    /// The number of times that another server was chosen.
    switched: watch::Sender<u64>,
}

#[derive(Debug)]
struct Choice {
    /// The part of the hash that differs from node to node.
    spread_by: String,
    given: Vec<Uri>,
    /// Whether the given ones are preferred to those that the cluster lists.
    prefers_given: bool,
    /// Those that the cluster lists, if it lists several.
    present: Vec<Uri>,
    /// Those that it listed earlier, the last ones first.
    former: Vec<Uri>,
    current: Uri,
    /// The number of times that requests had to use other connections.
    generation: u64,
    /// Ends the connections to a server, by its URL.
    connections: HashMap<String, CancellationToken>,
}

/// Returns the URL of a server.
///
/// # Errors
/// [`ServerUrlError`].
pub fn server_url(url: &str) -> Result<Uri, ServerUrlError> {
    let parsed: Uri = url
        .parse()
        .map_err(|e: http::uri::InvalidUri| ServerUrlError::Malformed { url: url.to_owned(), why: e.to_string() })?;
    match parsed.scheme_str() == Some("https") && parsed.host().is_some_and(|host| !host.is_empty()) {
        true => Ok(parsed),
        false => Err(ServerUrlError::NotHttps(url.to_owned())),
    }
}

impl Servers {
    /// Creates the choice among servers that the user gave. `spread_by` is the node's name.
    ///
    /// # Errors
    /// A URL is not valid, or there is none.
    pub fn new(given: &[String], spread_by: &str) -> Result<Self, ServerUrlError> {
        let given = given.iter().map(|url| server_url(url)).collect::<Result<Vec<_>, _>>()?;
        let current = given.first().cloned().ok_or(ServerUrlError::Empty)?;
        let mut choice = Choice {
            spread_by: spread_by.to_owned(),
            given,
            prefers_given: false,
            present: Vec::new(),
            former: Vec::new(),
            current,
            generation: 0,
            connections: HashMap::new(),
        };
        choice.begin();
        Ok(Self { choice: Mutex::new(choice), listed: watch::Sender::new(0), switched: watch::Sender::new(0) })
    }

    /// The same, preferring the given servers: for the node of a server, which prefers the server of its machine.
    pub fn preferring_given(self) -> Self {
        {
            let mut choice = self.choice.lock();
            choice.prefers_given = true;
            choice.begin();
        }
        self
    }

    /// Takes the servers that an earlier process used, before the first connection.
    pub fn remembering(self, known: &[String]) -> Self {
        self.learn(known);
        self.choice.lock().begin();
        self
    }

    /// Takes the servers that the cluster lists. A single one is no choice, so the given ones stay in use. Those that
    /// are listed no longer are remembered, as a server that is away is not listed. Returns whether the list changed.
    pub fn learn(&self, listed: &[String]) -> bool {
        let mut listed: Vec<Uri> = listed.iter().filter_map(|url| server_url(url).ok()).collect();
        listed.sort_by_key(Uri::to_string);
        listed.dedup();
        listed.truncate(SERVERS_MAX);
        let changed = self.choice.lock().learn(listed);
        if changed {
            count(&self.listed);
        }
        changed
    }

    /// Returns the listed servers, for the next start of the node.
    pub fn learned(&self) -> Vec<String> {
        let choice = self.choice.lock();
        choice.present.iter().chain(&choice.former).map(url).collect()
    }

    /// Returns all servers: the one in use, then the others by preference.
    pub fn order(&self) -> Vec<Uri> {
        let choice = self.choice.lock();
        let others = choice.ranked().into_iter().filter(|server| *server != choice.current);
        std::iter::once(choice.current.clone()).chain(others).collect()
    }

    /// Returns the servers that are preferred to the one in use, the most preferred first.
    pub fn better(&self) -> Vec<Uri> {
        let choice = self.choice.lock();
        choice.ranked().into_iter().take_while(|server| *server != choice.current).collect()
    }

    /// Returns the server in use, and a number that changes when requests must use other connections.
    pub fn current(&self) -> (Uri, u64) {
        let choice = self.choice.lock();
        (choice.current.clone(), choice.generation)
    }

    /// Uses this server from now on. If it is the one in use and has not answered for a while, requests use other
    /// connections to it.
    pub fn switch(&self, to: &Uri, previous: Previous) {
        let mut choice = self.choice.lock();
        if choice.current == *to {
            if previous == Previous::Cut {
                choice.generation = choice.generation.wrapping_add(1);
            }
            return;
        }
        let from = std::mem::replace(&mut choice.current, to.clone());
        choice.generation = choice.generation.wrapping_add(1);
        if previous == Previous::Cut
            && let Some(open) = choice.connections.remove(&url(&from))
        {
            open.cancel();
        }
        // A server that is neither in use nor known has no connection that must be cut later.
        let known: Vec<String> = choice.ranked().iter().map(url).collect();
        choice.connections.retain(|server, _| known.contains(server));
        drop(choice);
        count(&self.switched);
    }

    /// Returns the token that ends a connection to this server when it is cut.
    pub fn connection(&self, to: &Uri) -> CancellationToken {
        self.choice.lock().connections.entry(url(to)).or_default().child_token()
    }

    /// Returns whether there is a choice.
    pub fn are_several(&self) -> bool {
        self.choice.lock().ranked().len() > 1
    }

    /// Returns the signal that the list changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.listed.subscribe()
    }

    /// Returns the signal that another server is in use.
    pub fn switches(&self) -> watch::Receiver<u64> {
        self.switched.subscribe()
    }
}

impl Choice {
    /// Uses the most preferred server.
    fn begin(&mut self) {
        if let Some(first) = self.ranked().into_iter().next() {
            self.current = first;
        }
    }

    fn learn(&mut self, listed: Vec<Uri>) -> bool {
        let is_choice = listed.len() > 1 || !self.present.is_empty();
        if !is_choice || listed.is_empty() || listed == self.present {
            return false;
        }
        let gone = self.present.iter().chain(&self.former).filter(|server| !listed.contains(server)).cloned();
        self.former = gone.take(SERVERS_MAX - listed.len()).collect();
        self.present = listed;
        true
    }

    /// Returns the known servers, the most preferred first.
    fn ranked(&self) -> Vec<Uri> {
        let by_hash = |servers: &[Uri]| {
            let mut servers = servers.to_vec();
            servers.sort_by_key(|server| self.rank(server));
            servers
        };
        let (given, present) = (by_hash(&self.given), by_hash(&self.present));
        let [first, second] = if self.prefers_given { [given, present] } else { [present, given] };
        let mut ranked: Vec<Uri> = Vec::new();
        for server in first.into_iter().chain(second).chain(self.former.iter().cloned()) {
            if !ranked.contains(&server) {
                ranked.push(server);
            }
        }
        ranked
    }

    /// Returns the rank of a server for this node: the nodes of a server that is away spread over all others.
    fn rank(&self, server: &Uri) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.spread_by, server).hash(&mut hasher);
        hasher.finish()
    }
}

fn count(signal: &watch::Sender<u64>) {
    signal.send_modify(|count| *count = count.wrapping_add(1));
}

/// Returns the URL of a server without a trailing slash.
fn url(server: &Uri) -> String {
    server.to_string().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("https://{name}:6443")).collect()
    }

    fn order(servers: &Servers) -> Vec<String> {
        servers.order().iter().map(|server| server.host().unwrap().to_owned()).collect()
    }

    fn sorted(mut names: Vec<String>) -> Vec<String> {
        names.sort();
        names
    }

    #[test]
    fn nodes_spread_over_the_servers() {
        let mut uses: HashMap<String, usize> = HashMap::new();
        for node in 0..300 {
            let servers =
                Servers::new(&urls(&["a"]), &format!("n{node}")).unwrap().remembering(&urls(&["a", "b", "c"]));
            *uses.entry(order(&servers)[0].clone()).or_default() += 1;
        }
        assert!(uses.len() == 3 && uses.values().all(|nodes| *nodes > 60), "{uses:?}");
    }

    #[test]
    fn the_order_of_a_list_does_not_matter_and_a_slash_is_no_other_server() {
        let given = Servers::new(&urls(&["a", "b", "c"]), "n").unwrap();
        let other = Servers::new(&urls(&["c", "a", "b"]), "n").unwrap();
        assert_eq!(order(&given), order(&other));
        let slash = Servers::new(&["https://a:6443/".to_owned(), "https://a:6443".to_owned()], "n").unwrap();
        assert!(!slash.are_several());
    }

    #[test]
    fn one_listed_server_is_no_choice() {
        let servers = Servers::new(&urls(&["public"]), "n").unwrap();
        assert!(!servers.learn(&urls(&["inside"])));
        assert_eq!((order(&servers), servers.are_several()), (vec!["public".to_owned()], false));
        assert!(servers.learn(&urls(&["inside", "other"])));
        assert_eq!(order(&servers)[0], "public", "what works is not left");
        assert_eq!(sorted(order(&servers)), ["inside", "other", "public"]);
        assert_eq!(servers.better().len(), 2);
    }

    #[test]
    fn a_server_that_is_listed_no_longer_is_the_last_resort() {
        let servers = Servers::new(&urls(&["a"]), "n").unwrap();
        let mut changes = servers.changes();
        assert!(servers.learn(&urls(&["a", "b", "c"])) && changes.has_changed().unwrap());
        changes.borrow_and_update();
        assert!(!servers.learn(&urls(&["c", "a", "b"])) && !servers.learn(&[]), "nothing new");
        assert!(!changes.has_changed().unwrap());
        assert!(servers.learn(&urls(&["a"])), "one of several is left");
        assert_eq!(sorted(order(&servers)[1..].to_vec()), ["b", "c"]);
        assert_eq!(servers.learned().len(), 3, "for the next start");
        assert!(servers.learn(&urls(&["a", "c"])));
        assert_eq!(order(&servers).last().unwrap(), "b");
    }

    #[test]
    fn the_list_is_bounded() {
        let servers = Servers::new(&urls(&["a"]), "n").unwrap();
        for round in 0..50 {
            servers.learn(&urls(&[&format!("a{round}"), &format!("b{round}")]));
        }
        assert_eq!(servers.learned().len(), SERVERS_MAX);
        let many: Vec<String> = (0..50).map(|n| format!("https://c{n}:1")).collect();
        servers.learn(&many);
        assert_eq!(servers.learned().len(), SERVERS_MAX);
    }

    #[test]
    fn a_server_of_this_machine_is_preferred() {
        for node in 0..20 {
            let servers = Servers::new(&urls(&["local"]), &format!("n{node}")).unwrap().preferring_given();
            servers.learn(&urls(&["a", "b"]));
            assert_eq!(order(&servers)[0], "local");
            servers.switch(&server_url("https://a:6443").unwrap(), Previous::Cut);
            assert_eq!(servers.better()[0].host(), Some("local"));
        }
    }

    #[test]
    fn only_connections_to_a_server_that_does_not_answer_are_cut() {
        let servers = Servers::new(&urls(&["a", "b"]), "n").unwrap();
        let [first, second]: [Uri; 2] = servers.order().try_into().unwrap();
        let (to_first, to_second) = (servers.connection(&first), servers.connection(&second));
        servers.switch(&first, Previous::Drain);
        assert_eq!(servers.current().1, 0, "it is in use");
        servers.switch(&first, Previous::Cut);
        assert_eq!((servers.current().1, to_first.is_cancelled()), (1, false), "it answers again");
        servers.switch(&second, Previous::Drain);
        assert_eq!((servers.current().1, to_first.is_cancelled()), (2, false));
        servers.switch(&first, Previous::Cut);
        assert_eq!((to_first.is_cancelled(), to_second.is_cancelled()), (false, true));
        assert!(!servers.connection(&second).is_cancelled(), "a returned server is used again");
    }

    #[test]
    fn what_is_no_url_of_a_server_is_named() {
        for bad in ["http://a:1", "a:6443", "https://", "https:// ", ""] {
            let error = Servers::new(&[bad.to_owned()], "n").unwrap_err().to_string();
            assert!(error.starts_with(&format!("server {bad:?}: ")), "{error}");
        }
        assert_eq!(Servers::new(&[], "n").unwrap_err(), ServerUrlError::Empty);
    }
}
