//! DNS over UDP and TCP. Queries are answered by the [`Zone`] or by the [`Forwarder`].
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::RecordType;
use kelson_metrics::Registry;
use kelson_tasks::{OnPanic, Tasks};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::sources::{Share, Shares};
use crate::wire::HEADER_BYTES;
use crate::{Answer, Forwarder, Sources, Zone};

/// The maximum size of a UDP query. Real ones are far smaller.
const UDP_QUESTION_MAX_BYTES: usize = 4096;
/// The maximum size of a UDP response, regardless of the client's limit. Larger packets are fragmented and may be
/// lost.
const UDP_ANSWER_MAX_BYTES: u16 = 1232;
/// The maximum number of concurrently forwarded queries; further ones get the response code REFUSED.
const FORWARDED_MAX: usize = 1024;
/// The maximum number of concurrently forwarded queries of one source.
const FORWARDED_PER_SOURCE_MAX: usize = 128;
/// The maximum number of TCP connections. Further ones are closed.
const CONNECTIONS_MAX: usize = 256;
/// The maximum number of TCP connections of one source.
const CONNECTIONS_PER_SOURCE_MAX: usize = 32;
/// The idle timeout of a TCP connection, and the timeout for a client to read a response.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// The pause after a failed receive or accept, for each failure in a row. Meanwhile other work may free descriptors or
/// memory.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);
/// The maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The maximum number of aliases within the zone that one query follows.
const ALIASES_MAX: usize = 8;

/// A running server; it ends when [`Server::shutdown`] is called or it is dropped.
pub struct Server {
    address: SocketAddr,
    tasks: Tasks,
    registry: Registry,
}

struct Shared {
    zone: Zone,
    forwarder: Forwarder,
    sources: Arc<Sources>,
    forwarding: Arc<Semaphore>,
    forwarding_shares: Shares,
    tasks: Tasks,
}

/// A permit to forward one query.
struct Turn(#[expect(dead_code, reason = "held until dropped")] (OwnedSemaphorePermit, Share));

/// The number of ports that [`bind`] tries if it may choose one.
const PORTS_TRIED: usize = 16;

/// Binds one port for UDP and TCP. With port 0, a port that is free for UDP may be in use for TCP; then another one is
/// tried.
async fn bind(ip: IpAddr, port: u16) -> std::io::Result<(UdpSocket, TcpListener)> {
    let mut tries = if port == 0 { PORTS_TRIED } else { 1 };
    loop {
        tries -= 1;
        let udp = UdpSocket::bind((ip, port)).await?;
        match TcpListener::bind(udp.local_addr()?).await {
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && tries > 0 => {}
            tcp => return Ok((udp, tcp?)),
        }
    }
}

impl Server {
    /// Listens on one address with UDP and TCP on the same port, where 0 selects a free one, and responds to `sources`.
    /// The listening tasks are restarted after a panic.
    pub async fn start(
        ip: IpAddr,
        port: u16,
        zone: Zone,
        forwarder: Forwarder,
        sources: Arc<Sources>,
        tasks: &Tasks,
    ) -> std::io::Result<Self> {
        let (udp, tcp) = bind(ip, port).await?;
        let (address, udp, tcp) = (udp.local_addr()?, Arc::new(udp), Arc::new(tcp));
        let tasks = tasks.child("dns");
        let registry = forwarder.metrics().registry().clone();
        let shared = Arc::new(Shared {
            zone,
            forwarder,
            sources,
            forwarding: Arc::new(Semaphore::new(FORWARDED_MAX)),
            forwarding_shares: Shares::new(FORWARDED_PER_SOURCE_MAX),
            tasks: tasks.clone(),
        });
        let s = Arc::clone(&shared);
        tasks.supervise("dns-udp", move || serve_udp(Arc::clone(&udp), Arc::clone(&s)));
        tasks.supervise("dns-tcp", move || serve_tcp(Arc::clone(&tcp), Arc::clone(&shared)));
        Ok(Self { address, tasks, registry })
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the metrics of the server, for the port that serves them.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Stops the listeners and the queries in progress.
    pub fn shutdown(&self) {
        self.tasks.token().cancel();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

/// Pauses that grow with the failures in a row.
#[derive(Default)]
struct Pauses(u32);

impl Pauses {
    fn good(&mut self) {
        self.0 = 0;
    }

    async fn failed(&mut self) {
        self.0 = self.0.saturating_add(1);
        tokio::time::sleep(PAUSE_AFTER_ERROR.saturating_mul(self.0).min(PAUSE_MAX)).await;
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut buffer = vec![0; UDP_QUESTION_MAX_BYTES];
    let mut pauses = Pauses::default();
    loop {
        // An ICMP error for an earlier answer surfaces here; the socket itself is fine.
        let Ok((n, from)) = socket.recv_from(&mut buffer).await else {
            pauses.failed().await;
            continue;
        };
        pauses.good();
        if !shared.sources.allows(from.ip()) {
            continue;
        }
        match shared.local(&buffer[..n], false) {
            Handled::Answer(bytes) => shared.respond(&socket, &bytes, from).await,
            Handled::Drop => {}
            Handled::Forward(pending) => match shared.turn(from.ip()) {
                Some(turn) => {
                    let (socket, shared, question) = (Arc::clone(&socket), Arc::clone(&shared), buffer[..n].to_vec());
                    let tasks = shared.tasks.clone();
                    tasks.spawn("dns-forward", OnPanic::Contain, async move {
                        let bytes = shared.forward(*pending, &question, false).await;
                        shared.respond(&socket, &bytes, from).await;
                        drop(turn);
                    });
                }
                None => shared.respond(&socket, &pending.refused(), from).await,
            },
        }
    }
}

async fn serve_tcp(listener: Arc<TcpListener>, shared: Arc<Shared>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let shares = Shares::new(CONNECTIONS_PER_SOURCE_MAX);
    let mut pauses = Pauses::default();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            pauses.failed().await;
            continue;
        };
        pauses.good();
        if !shared.sources.allows(from.ip()) {
            continue;
        }
        let Some(share) = shares.take(from.ip()) else { continue };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else { continue };
        let shared = Arc::clone(&shared);
        let tasks = shared.tasks.clone();
        tasks.spawn("dns-connection", OnPanic::Contain, async move {
            if let Err(e) = serve_connection(stream, from.ip(), &shared).await {
                tracing::trace!(error = %e, "connection failed");
            }
            drop((permit, share));
        });
    }
}

async fn serve_connection(mut stream: TcpStream, source: IpAddr, shared: &Shared) -> std::io::Result<()> {
    loop {
        let Ok(length) = timeout(TCP_IDLE, stream.read_u16()).await else { return Ok(()) };
        let mut question = vec![0; usize::from(length?)];
        timeout(TCP_IDLE, stream.read_exact(&mut question)).await.map_err(|_| std::io::ErrorKind::TimedOut)??;
        let answer = match shared.local(&question, true) {
            Handled::Answer(bytes) => bytes,
            Handled::Drop => return Ok(()),
            Handled::Forward(pending) => match shared.turn(source) {
                Some(_turn) => shared.forward(*pending, &question, true).await,
                None => pending.refused(),
            },
        };
        shared.forwarder.metrics().responded("tcp", &answer);
        let length = u16::try_from(answer.len()).map_err(std::io::Error::other)?;
        let whole = [&length.to_be_bytes(), answer.as_slice()].concat();
        // A client that does not read must not occupy its slot without end.
        timeout(TCP_IDLE, stream.write_all(&whole)).await.map_err(|_| std::io::ErrorKind::TimedOut)??;
    }
}

/// The result for a query.
enum Handled {
    Answer(Vec<u8>),
    /// The message is not a query.
    Drop,
    Forward(Box<Pending>),
}

/// A query that must be forwarded.
struct Pending {
    /// The partial response: its header, and aliases found in the zone.
    response: Message,
    /// The name to query, if it differs from the name in the question.
    target: Option<Query>,
    limit: u16,
}

impl Pending {
    /// Returns the response when too many queries are being forwarded.
    fn refused(mut self) -> Vec<u8> {
        self.response.metadata.response_code = ResponseCode::Refused;
        encode(&self.response, self.limit)
    }
}

impl Shared {
    /// Returns a permit to forward one more query of this source.
    fn turn(&self, source: IpAddr) -> Option<Turn> {
        let share = self.forwarding_shares.take(source)?;
        Some(Turn((Arc::clone(&self.forwarding).try_acquire_owned().ok()?, share)))
    }

    /// Sends a response over UDP.
    async fn respond(&self, socket: &UdpSocket, bytes: &[u8], to: SocketAddr) {
        self.forwarder.metrics().responded("udp", bytes);
        // A client that has gone does not need the response.
        let _ = socket.send_to(bytes, to).await;
    }

    fn local(&self, bytes: &[u8], tcp: bool) -> Handled {
        let Ok(request) = Message::from_vec(bytes) else { return Handled::Drop };
        if request.metadata.message_type != MessageType::Query {
            return Handled::Drop;
        }
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        let limit = match (&request.edns, tcp) {
            (_, true) => u16::MAX,
            (Some(e), false) => e.max_payload().clamp(512, UDP_ANSWER_MAX_BYTES),
            (None, false) => 512,
        };
        if request.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_ANSWER_MAX_BYTES);
            response.set_edns(edns);
        }
        let [query] = request.queries.as_slice() else {
            response.metadata.response_code = ResponseCode::FormErr;
            return Handled::Answer(encode(&response, limit));
        };
        if request.metadata.op_code != OpCode::Query {
            response.metadata.response_code = ResponseCode::NotImp;
            return Handled::Answer(encode(&response, limit));
        }
        response.add_query(query.clone());
        // Zone transfers are neither served nor forwarded.
        if matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR) {
            response.metadata.response_code = ResponseCode::Refused;
            return Handled::Answer(encode(&response, limit));
        }
        self.resolve(bytes, query.clone(), response, limit)
    }

    fn resolve(&self, question: &[u8], mut query: Query, mut response: Message, limit: u16) -> Handled {
        let mut aliased = false;
        for _ in 0..ALIASES_MAX {
            match self.zone.answer(&query) {
                Answer::Elsewhere => {
                    if !aliased && let Some(answer) = self.forwarder.cached(question) {
                        return Handled::Answer(within(answer, limit));
                    }
                    let target = aliased.then_some(query);
                    return Handled::Forward(Box::new(Pending { response, target, limit }));
                }
                Answer::Records { answers, code } => {
                    response.metadata.authoritative = true;
                    response.metadata.response_code = code;
                    if answers.is_empty() {
                        response.add_authority(self.zone.soa());
                    }
                    response.add_answers(answers);
                    return Handled::Answer(encode(&response, limit));
                }
                Answer::Alias { cname, target } => {
                    response.add_answer(*cname);
                    query = Query::query(target, query.query_type());
                    aliased = true;
                }
            }
        }
        response.metadata.response_code = ResponseCode::ServFail;
        Handled::Answer(encode(&response, limit))
    }

    async fn forward(&self, pending: Pending, question: &[u8], tcp: bool) -> Vec<u8> {
        let Pending { mut response, target, limit } = pending;
        match target {
            None => {
                if let Some(answer) = self.forwarder.ask(question, tcp).await {
                    return within(answer, limit);
                }
                response.metadata.response_code = ResponseCode::ServFail;
            }
            Some(query) => {
                let mut ask = Message::query();
                ask.metadata.recursion_desired = true;
                ask.add_query(query);
                let bytes = ask.to_vec().unwrap_or_default();
                let answer = match self.forwarder.cached(&bytes) {
                    Some(cached) => Some(cached),
                    None => self.forwarder.ask(&bytes, tcp).await,
                };
                match answer.and_then(|b| Message::from_vec(&b).ok()) {
                    Some(a) => {
                        response.metadata.response_code = a.metadata.response_code;
                        response.add_answers(a.answers);
                    }
                    // The alias is known and returned, as CoreDNS does. The client sees its target.
                    None => response.metadata.response_code = ResponseCode::NoError,
                }
            }
        }
        encode(&response, limit)
    }
}

/// Returns a resolver's answer, truncated when it is larger than the client accepts: over UDP a small question with a
/// large answer would turn this server into an amplifier, and fragments get lost. The client retries over TCP.
fn within(answer: Vec<u8>, limit: u16) -> Vec<u8> {
    if answer.len() <= usize::from(limit) {
        return answer;
    }
    match Message::from_vec(&answer) {
        Ok(message) => encode(&message, limit),
        // The response cannot be parsed here. Only the header is returned, marked as truncated.
        Err(_) => {
            let mut head = answer[..HEADER_BYTES.min(answer.len())].to_vec();
            if head.len() == HEADER_BYTES {
                head[2] |= 0b10;
                head[4..].fill(0);
            }
            head
        }
    }
}

/// Encodes the message. Above the limit it is marked as truncated and has no records.
fn encode(message: &Message, limit: u16) -> Vec<u8> {
    let bytes = message.to_vec().unwrap_or_default();
    if bytes.len() <= usize::from(limit) { bytes } else { message.truncate().to_vec().unwrap_or_default() }
}

#[cfg(test)]
mod tests;
