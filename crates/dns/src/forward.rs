//! Passes questions about other domains on to the machine's own resolvers, bytes in, bytes out.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// The timeout of one resolver.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of upstream resolvers, which are tried in order as in libc.
const RESOLVERS_MAX: usize = 3;
/// The maximum size of UDP responses. Larger ones are truncated and requested again over TCP.
const UDP_ANSWER_MAX_BYTES: usize = 4096;
const DNS_PORT: u16 = 53;

/// Forwards queries to upstream resolvers.
#[derive(Clone, Debug, Default)]
pub struct Forwarder {
    resolvers: Vec<SocketAddr>,
}

impl Forwarder {
    /// Asks these, in order.
    pub fn new(resolvers: Vec<SocketAddr>) -> Self {
        Self { resolvers }
    }

    /// Reads the `nameserver` lines of a resolv.conf. `own` are our own addresses: asking ourselves would be a loop.
    pub fn from_resolv_conf(text: &str, own: &[IpAddr]) -> Self {
        let servers = text
            .lines()
            .filter_map(|l| l.trim().strip_prefix("nameserver"))
            .filter_map(|a| a.trim().parse::<IpAddr>().ok());
        let resolvers = servers.filter(|a| !own.contains(a)).take(RESOLVERS_MAX).map(|a| SocketAddr::new(a, DNS_PORT));
        Self { resolvers: resolvers.collect() }
    }

    /// Reports whether there is no upstream resolver.
    pub fn is_empty(&self) -> bool {
        self.resolvers.is_empty()
    }

    /// The first answer any resolver gives; `None` when none does in time. The answer carries the question's id.
    pub async fn ask(&self, question: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        let id = question.get(..2)?;
        for &resolver in &self.resolvers {
            // A fresh id and port per question: what comes back must be an answer to this very question.
            let mut own = question.to_vec();
            own[..2].copy_from_slice(&rand::random::<[u8; 2]>());
            let answer = if over_tcp { ask_tcp(resolver, &own).await } else { ask_udp(resolver, &own).await };
            match answer {
                Ok(mut answer) => {
                    answer[..2].copy_from_slice(id);
                    return Some(answer);
                }
                Err(e) => tracing::debug!(%resolver, error = %e, "query to the upstream resolver failed"),
            }
        }
        None
    }
}

/// Bytes of a message's header.
const HEADER_BYTES: usize = 12;

/// Whether a message is the response to a query: it has the same ID and question (RFC 5452, section 9.1), or no
/// question if the resolver could not parse it.
fn is_answer(message: &[u8], question: &[u8]) -> bool {
    if message.len() < HEADER_BYTES || message[..2] != question[..2] {
        return false;
    }
    match (asked(message), asked(question)) {
        (Some(theirs), Some(ours)) => theirs.eq_ignore_ascii_case(ours),
        _ => message[4..6] == [0, 0],
    }
}

/// The first question of a message: its name, type and class. Names of questions are not compressed.
fn asked(message: &[u8]) -> Option<&[u8]> {
    if message.get(4..6)? == [0, 0] {
        return None;
    }
    let mut at = HEADER_BYTES;
    loop {
        match *message.get(at)? {
            0 => break,
            length if length < 64 => at += usize::from(length) + 1,
            _ => return None,
        }
    }
    message.get(HEADER_BYTES..at + 5)
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
    fn reads_resolv_conf() {
        let text = "# c\nsearch x\nnameserver 10.0.0.1\nnameserver 10.42.0.1\n nameserver ::1\nnameserver bad\n";
        let f = Forwarder::from_resolv_conf(text, &["10.42.0.1".parse().unwrap()]);
        assert_eq!(f.resolvers, ["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
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
