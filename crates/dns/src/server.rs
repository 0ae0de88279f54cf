//! DNS over UDP and TCP: reads questions, asks the [`Zone`] or the [`Forwarder`], writes answers.
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{Answer, Forwarder, Zone};

/// Largest UDP question read; real ones are far smaller.
const UDP_QUESTION_MAX_BYTES: usize = 4096;
/// Largest UDP answer, whatever the client offers: above this, fragments get lost.
const UDP_ANSWER_MAX_BYTES: u16 = 1232;
/// Questions being forwarded at once; more are refused.
const FORWARDED_MAX: usize = 1024;
/// TCP connections at once; more are closed.
const CONNECTIONS_MAX: usize = 256;
/// A TCP connection may be silent this long.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Aliases followed inside the zone for one question.
const ALIASES_MAX: usize = 8;

/// A running server; it ends when [`Server::shutdown`] is called or it is dropped.
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
}

struct Shared {
    zone: Zone,
    forwarder: Forwarder,
    forwarding: Semaphore,
}

impl Server {
    /// Listens on one address, UDP and TCP on the same port (0: any free one).
    pub async fn start(ip: IpAddr, port: u16, zone: Zone, forwarder: Forwarder) -> std::io::Result<Self> {
        let udp = Arc::new(UdpSocket::bind((ip, port)).await?);
        let address = udp.local_addr()?;
        let tcp = TcpListener::bind(address).await?;
        let shared = Arc::new(Shared { zone, forwarder, forwarding: Semaphore::new(FORWARDED_MAX) });
        let stop = CancellationToken::new();
        let (token, s) = (stop.clone(), Arc::clone(&shared));
        tokio::spawn(async move { token.run_until_cancelled(serve_udp(udp, s)).await });
        let token = stop.clone();
        tokio::spawn(async move { token.run_until_cancelled(serve_tcp(tcp, shared)).await });
        Ok(Self { address, stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it.
    pub fn shutdown(&self) {
        self.stop.cancel();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut buffer = vec![0; UDP_QUESTION_MAX_BYTES];
    loop {
        // An ICMP error for an earlier answer surfaces here; the socket itself is fine.
        let Ok((n, from)) = socket.recv_from(&mut buffer).await else { continue };
        match shared.local(&buffer[..n], false) {
            Handled::Answer(bytes) => drop(socket.send_to(&bytes, from).await),
            Handled::Drop => {}
            Handled::Forward(pending) => {
                let (socket, shared, question) = (Arc::clone(&socket), Arc::clone(&shared), buffer[..n].to_vec());
                tokio::spawn(async move {
                    let bytes = shared.forward(*pending, &question, false).await;
                    drop(socket.send_to(&bytes, from).await);
                });
            }
        }
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: let some connections end first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            if let Err(e) = serve_connection(stream, &shared).await {
                tracing::trace!(error = %e, "connection ended");
            }
            drop(permit);
        });
    }
}

async fn serve_connection(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    loop {
        let Ok(length) = timeout(TCP_IDLE, stream.read_u16()).await else { return Ok(()) };
        let mut question = vec![0; usize::from(length?)];
        timeout(TCP_IDLE, stream.read_exact(&mut question)).await.map_err(|_| std::io::ErrorKind::TimedOut)??;
        let answer = match shared.local(&question, true) {
            Handled::Answer(bytes) => bytes,
            Handled::Drop => return Ok(()),
            Handled::Forward(pending) => shared.forward(*pending, &question, true).await,
        };
        let length = u16::try_from(answer.len()).map_err(std::io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes(), answer.as_slice()].concat()).await?;
    }
}

/// What became of a question.
enum Handled {
    Answer(Vec<u8>),
    /// Not a question at all.
    Drop,
    Forward(Box<Pending>),
}

/// A question that others must help to answer.
struct Pending {
    /// What is known so far: the answer's head, and aliases found in the zone.
    response: Message,
    /// The name to ask for when it is not the question's own.
    target: Option<Query>,
    limit: u16,
}

impl Shared {
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
        self.resolve(query.clone(), response, limit)
    }

    fn resolve(&self, mut query: Query, mut response: Message, limit: u16) -> Handled {
        let mut aliased = false;
        for _ in 0..ALIASES_MAX {
            match self.zone.answer(&query) {
                Answer::Elsewhere => {
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
        let Ok(_permit) = self.forwarding.try_acquire() else {
            response.metadata.response_code = ResponseCode::Refused;
            return encode(&response, limit);
        };
        match target {
            None => {
                if let Some(answer) = self.forwarder.ask(question, tcp).await {
                    return answer;
                }
                response.metadata.response_code = ResponseCode::ServFail;
            }
            Some(query) => {
                let mut ask = Message::query();
                ask.metadata.recursion_desired = true;
                ask.add_query(query);
                let bytes = ask.to_vec().unwrap_or_default();
                let answer = self.forwarder.ask(&bytes, tcp).await.and_then(|b| Message::from_vec(&b).ok());
                match answer {
                    Some(a) => {
                        response.metadata.response_code = a.metadata.response_code;
                        response.add_answers(a.answers);
                    }
                    // The alias itself is known and answered, as CoreDNS does; the client sees where it points.
                    None => response.metadata.response_code = ResponseCode::NoError,
                }
            }
        }
        encode(&response, limit)
    }
}

/// The message's bytes; over the limit it says so and carries no records.
fn encode(message: &Message, limit: u16) -> Vec<u8> {
    let bytes = message.to_vec().unwrap_or_default();
    if bytes.len() <= usize::from(limit) { bytes } else { message.truncate().to_vec().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::rr::{Name, RecordType};
    use serde_json::json;

    use super::*;
    use crate::Directory;

    async fn server(endpoints: u8) -> Server {
        let d = Directory::default();
        let service = json!({"metadata": {"name": "many", "namespace": "a"}, "spec": {"clusterIP": "None"}});
        d.put_service(&serde_json::from_value(service).unwrap());
        let list: Vec<_> = (0..endpoints).map(|i| json!({"addresses": [format!("10.42.0.{i}")]})).collect();
        let slice = json!({"metadata": {"name": "m", "namespace": "a", "labels": {"kubernetes.io/service-name": "many"}}, "endpoints": list});
        d.put_slice(&serde_json::from_value(slice).unwrap(), true);
        let zone = Zone::new("cluster.local", Arc::new(d)).unwrap();
        Server::start(Ipv4Addr::LOCALHOST.into(), 0, zone, Forwarder::default()).await.unwrap()
    }

    fn question(name: &str) -> Vec<u8> {
        let mut m = Message::query();
        m.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        m.to_vec().unwrap()
    }

    async fn udp(server: &Server, bytes: &[u8]) -> Message {
        let s = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        s.send_to(bytes, server.address()).await.unwrap();
        let mut b = [0; 4096];
        let n = timeout(Duration::from_secs(10), s.recv(&mut b)).await.unwrap().unwrap();
        Message::from_vec(&b[..n]).unwrap()
    }

    #[tokio::test]
    async fn udp_truncates_and_tcp_tells_all() {
        let server = server(100).await;
        let q = question("many.a.svc.cluster.local.");
        let short = udp(&server, &q).await;
        assert!(short.metadata.truncation);
        let mut c = TcpStream::connect(server.address()).await.unwrap();
        c.write_all(&[&(q.len() as u16).to_be_bytes(), q.as_slice()].concat()).await.unwrap();
        let mut b = vec![0; usize::from(c.read_u16().await.unwrap())];
        c.read_exact(&mut b).await.unwrap();
        assert_eq!(Message::from_vec(&b).unwrap().answers.len(), 100);
    }

    #[tokio::test]
    async fn negative_answers_carry_the_soa_and_strangers_fail() {
        let server = server(1).await;
        let m = udp(&server, &question("no.a.svc.cluster.local.")).await;
        assert_eq!((m.metadata.response_code, m.authorities.len()), (ResponseCode::NXDomain, 1));
        let m = udp(&server, &question("example.org.")).await;
        assert_eq!(m.metadata.response_code, ResponseCode::ServFail);
    }
}
