//! Forwards queries for other domains to the machine's resolvers as bytes, and caches the responses.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use crate::cache::{CACHE_BYTES_MAX, Cache, Key};
use crate::metrics::Metrics;
use crate::wire::{self, HEADER_BYTES};

/// The timeout of one resolver.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of upstream resolvers, which are tried in order as in libc.
const RESOLVERS_MAX: usize = 3;
/// The maximum size of UDP responses. Larger ones are truncated and requested again over TCP.
const UDP_ANSWER_MAX_BYTES: usize = 4096;
/// The time for which a resolver that did not answer is tried last.
const FAILED_FOR: Duration = Duration::from_secs(10);
const DNS_PORT: u16 = 53;

/// Forwards queries to upstream resolvers. Clones share the cache.
#[derive(Clone, Debug)]
pub struct Forwarder {
    resolvers: Arc<[Resolver]>,
    cache: Arc<Mutex<Cache>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Resolver {
    address: SocketAddr,
    /// The time until which the resolver is tried last, because it did not answer.
    failed_until: Mutex<Option<Instant>>,
}

impl Default for Forwarder {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Forwarder {
    /// Creates a forwarder for these resolvers in order.
    pub fn new(resolvers: Vec<SocketAddr>) -> Self {
        let resolver = |address| Resolver { address, failed_until: Mutex::default() };
        let cache = Arc::new(Mutex::new(Cache::new(CACHE_BYTES_MAX)));
        let cached = Arc::downgrade(&cache);
        let metrics = Metrics::new(move || cached.upgrade().map_or(0, |cache| cache.lock().len()));
        Self { resolvers: resolvers.into_iter().map(resolver).collect(), cache, metrics: Arc::new(metrics) }
    }

    /// Returns the metrics of queries and responses.
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Reads the `nameserver` lines of a resolv.conf. Addresses in `own` are skipped, because they would cause a loop.
    pub fn from_resolv_conf(text: &str, own: &[IpAddr]) -> Self {
        let servers = text
            .lines()
            .filter_map(|l| l.trim().strip_prefix("nameserver"))
            .filter_map(|a| a.trim().parse::<IpAddr>().ok());
        let resolvers = servers.filter(|a| !own.contains(a)).take(RESOLVERS_MAX).map(|a| SocketAddr::new(a, DNS_PORT));
        Self::new(resolvers.collect())
    }

    /// Reports whether there is no upstream resolver.
    pub fn is_empty(&self) -> bool {
        self.resolvers.is_empty()
    }

    /// Returns the cached response with the ID of the query.
    pub fn cached(&self, question: &[u8]) -> Option<Vec<u8>> {
        let key = Key::of(question)?;
        let found = self.cache.lock().get(&key, question, Instant::now());
        self.metrics.looked_up(found.as_ref().map(|(_, kind)| *kind));
        found.map(|(answer, _)| answer)
    }

    /// Returns the first response of any resolver with the ID of the query, or `None` if none answers in time. It
    /// bypasses the cache, but stores the response.
    pub async fn ask(&self, question: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        let id = question.get(..2)?;
        for resolver in self.order(Instant::now()) {
            // Each query has a new ID and port, so that a response must match exactly this query.
            let mut own = question.to_vec();
            own[..2].copy_from_slice(&rand::random::<[u8; 2]>());
            let address = resolver.address;
            let answer = if over_tcp { ask_tcp(address, &own).await } else { ask_udp(address, &own).await };
            resolver.answered(answer.is_ok(), Instant::now());
            match answer {
                Ok(mut answer) => {
                    if let Some(key) = Key::of(question) {
                        self.cache.lock().put(key, &answer, Instant::now());
                    }
                    answer[..2].copy_from_slice(id);
                    return Some(answer);
                }
                Err(e) => {
                    self.metrics.upstream_failed(address);
                    tracing::debug!(resolver = %address, error = %e, "query to the upstream resolver failed");
                }
            }
        }
        None
    }

    /// Returns the resolvers in the order in which they are tried. Those that failed recently are last.
    fn order(&self, now: Instant) -> Vec<&Resolver> {
        let (failed, good): (Vec<_>, Vec<_>) = self.resolvers.iter().partition(|resolver| resolver.has_failed(now));
        good.into_iter().chain(failed).collect()
    }
}

impl Resolver {
    fn has_failed(&self, now: Instant) -> bool {
        self.failed_until.lock().is_some_and(|until| now < until)
    }

    /// Records whether the resolver has answered.
    fn answered(&self, in_time: bool, now: Instant) {
        *self.failed_until.lock() = (!in_time).then(|| now + FAILED_FOR);
    }
}

/// Whether a message is the response to a query: it has the same ID and question (RFC 5452, section 9.1), or no
/// question if the resolver could not parse it.
fn is_answer(message: &[u8], question: &[u8]) -> bool {
    if message.len() < HEADER_BYTES || message[..2] != question[..2] {
        return false;
    }
    match (wire::question(message), wire::question(question)) {
        (Some(theirs), Some(ours)) => message[theirs].eq_ignore_ascii_case(&question[ours]),
        _ => message[4..6] == [0, 0],
    }
}

async fn ask_udp(resolver: SocketAddr, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: SocketAddr =
        if resolver.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(question).await?;
    let mut answer = vec![0; UDP_ANSWER_MAX_BYTES];
    let receive = async {
        loop {
            let n = socket.recv(&mut answer).await?;
            if is_answer(&answer[..n], question) {
                return std::io::Result::Ok(n);
            }
        }
    };
    let n = timeout(RESOLVER_TIMEOUT, receive).await.map_err(|_| std::io::ErrorKind::TimedOut)??;
    answer.truncate(n);
    Ok(answer)
}

async fn ask_tcp(resolver: SocketAddr, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let exchange = async {
        let mut stream = TcpStream::connect(resolver).await?;
        let length = u16::try_from(question.len()).map_err(std::io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        if !is_answer(&answer, question) {
            return Err(std::io::Error::other("response to another question"));
        }
        Ok(answer)
    };
    timeout(RESOLVER_TIMEOUT, exchange).await.map_err(|_| std::io::ErrorKind::TimedOut)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_of_resolv_conf_are_asked_in_order_unless_they_failed() {
        let text = "# c\nsearch x\nnameserver 10.0.0.1\nnameserver 10.42.0.1\n nameserver ::1\nnameserver bad\n";
        let f = Forwarder::from_resolv_conf(text, &["10.42.0.1".parse().unwrap()]);
        let order = |f: &Forwarder, now| f.order(now).iter().map(|r| r.address.to_string()).collect::<Vec<_>>();
        let now = Instant::now();
        assert_eq!(order(&f, now), ["10.0.0.1:53", "[::1]:53"]);
        // A resolver that does not answer costs one timeout, but not for every query.
        f.resolvers[0].answered(false, now);
        assert_eq!(order(&f, now), ["[::1]:53", "10.0.0.1:53"]);
        assert_eq!(order(&f, now + FAILED_FOR), ["10.0.0.1:53", "[::1]:53"]);
        f.resolvers[0].answered(true, now);
        assert_eq!(order(&f, now), ["10.0.0.1:53", "[::1]:53"]);
    }

    fn message(id: u16, name: &[&str], kind: u16) -> Vec<u8> {
        let mut m = id.to_be_bytes().to_vec();
        m.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in name {
            m.push(label.len() as u8);
            m.extend(label.as_bytes());
        }
        m.push(0);
        m.extend(kind.to_be_bytes());
        m.extend([0, 1]);
        m
    }

    #[test]
    fn an_answer_says_the_question_again() {
        let question = message(7, &["example", "com"], 1);
        let with_record = [message(7, &["EXAMPLE", "com"], 1), vec![0xc0, 12, 0, 1]].concat();
        let unread = [&[0, 7, 0x80, 1][..], &[0; 8]].concat();
        for (answer, expected) in [
            (question.clone(), true),
            (with_record, true),
            (unread, true),
            (message(8, &["example", "com"], 1), false),
            (message(7, &["evil", "com"], 1), false),
            (message(7, &["example", "com"], 28), false),
            (message(7, &["example"], 1), false),
            (question[..20].to_vec(), false),
            (question[..5].to_vec(), false),
        ] {
            assert_eq!(is_answer(&answer, &question), expected, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn keeps_the_questions_id_and_skips_dead_resolvers() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let mut b = [0; 64];
            let (n, from) = server.recv_from(&mut b).await.unwrap();
            server.send_to(&[9; 12], from).await.unwrap();
            server.send_to(&b[..n], from).await.unwrap();
        });
        let dead: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let question = message(1, &["example"], 1);
        let answer = Forwarder::new(vec![dead, address]).ask(&question, false).await;
        assert_eq!(answer.as_deref(), Some(question.as_slice()));
        answering.await.unwrap();
    }
}
