//! Questions to whatever listens at a peer URL: a running member of the cluster, or a server that is about to join and has a
//! listener there until it starts its member. Both prove with a certificate of the cluster's CA that they belong to it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kelson_etcd::proto::Member;
use kelson_tasks::FILES;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::MemberError;
use crate::http;
use crate::layout::Layout;
use crate::options::host_and_port;
use crate::version::Version;

/// The path that etcd serves to peers with its version.
pub(crate) const PATH: &str = "/version";
/// The path that etcd serves to peers with its list of members.
const MEMBERS_PATH: &str = "/members";
/// The largest answer: a list of members.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// The time that a question may take, with the connection.
const ASK_MAX: Duration = Duration::from_secs(3);

/// The answer at a peer URL: a member's has versions, a joining server's its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// The release of a member.
    #[serde(default, rename = "etcdserver", skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The version of its cluster.
    #[serde(default, rename = "etcdcluster", skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The name of a joining server.
    #[serde(default, rename = "kelsonJoiner", skip_serializing_if = "Option::is_none")]
    pub joiner: Option<String>,
}

impl Greeting {
    /// Returns the minor version of the cluster, if a member answered that knows it.
    pub fn cluster_minor(&self) -> Option<u32> {
        self.cluster.as_deref().and_then(Version::parse).map(|version| version.minor)
    }
}

/// A member in etcd's list for peers.
#[derive(Deserialize)]
struct ListedMember {
    id: u64,
    #[serde(default, rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "isLearner")]
    is_learner: bool,
}

/// Asks peers with the certificate of this server's member.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    layout: Layout,
}

impl Peers {
    /// Creates it for the member with these files.
    pub fn new(layout: &Layout) -> Self {
        Self { layout: layout.clone() }
    }

    /// Returns the answer at a peer URL, and the time of one round trip to it.
    ///
    /// # Errors
    /// Nothing answers there in time, or something that is not of this cluster.
    pub async fn ask(&self, url: &str) -> io::Result<(Greeting, Duration)> {
        let (body, round_trip) = self.get(url, PATH).await?;
        Ok((serde_json::from_slice(&body)?, round_trip))
    }

    /// Returns the members that the one at this URL knows. A member that has just started answers its clients only when it
    /// has a leader, and its peers at once.
    ///
    /// # Errors
    /// As of [`Peers::ask`].
    pub async fn members(&self, url: &str) -> io::Result<Vec<Member>> {
        let (body, _) = self.get(url, MEMBERS_PATH).await?;
        let listed: Vec<ListedMember> = serde_json::from_slice(&body)?;
        let of = |member: ListedMember| Member {
            id: member.id,
            name: member.name,
            peer_urls: member.peer_urls,
            client_urls: Vec::new(),
            is_learner: member.is_learner,
        };
        Ok(listed.into_iter().map(of).collect())
    }

    async fn get(&self, url: &str, path: &str) -> io::Result<(Bytes, Duration)> {
        let got = tokio::time::timeout(ASK_MAX, self.get_now(url, path)).await;
        got.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "timed out")))
    }

    async fn get_now(&self, url: &str, path: &str) -> io::Result<(Bytes, Duration)> {
        let (host, port) = host_and_port(url).ok_or_else(|| io::Error::other("must be https://HOST:PORT"))?;
        let config = self.config().await.map_err(io::Error::other)?;
        let begun = Instant::now();
        let tcp = TcpStream::connect((host.as_str(), port)).await?;
        let round_trip = begun.elapsed();
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, tcp).await?;
        Ok((http::get(stream, &host, path, ANSWER_BYTES_MAX).await?, round_trip))
    }

    /// The files are read for each question: they may have been renewed.
    async fn config(&self) -> Result<Arc<ClientConfig>, MemberError> {
        let files = self.layout.peer_tls();
        let mut config = FILES.run(move || files.config()).await?.map_err(MemberError::Tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Reports whether a member answers at one of its peer URLs.
    pub async fn is_running(&self, urls: &[String]) -> bool {
        for url in urls {
            if matches!(self.ask(url).await, Ok((greeting, _)) if greeting.server.is_some()) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_joining_servers_answer_differently() {
        let member: Greeting =
            serde_json::from_str(r#"{"etcdserver":"3.5.30","etcdcluster":"3.5.0","storage":"3.5.0"}"#).unwrap();
        assert_eq!((member.cluster_minor(), member.joiner), (Some(5), None));
        let joiner: Greeting = serde_json::from_str(r#"{"kelsonJoiner":"b"}"#).unwrap();
        assert_eq!((joiner.server.as_deref(), joiner.joiner.as_deref()), (None, Some("b")));
        // A member that has no cluster version yet says so in words.
        let early = Greeting { cluster: Some("not_decided".to_owned()), ..Greeting::default() };
        assert_eq!(early.cluster_minor(), None);
    }
}
