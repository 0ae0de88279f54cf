//! Calls to the member of this server, each with a deadline.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kelson_etcd::client::Client;
use kelson_etcd::endpoint::{Connector, Endpoints};
use kelson_etcd::proto::{self, Member};
use kelson_tasks::FILES;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::error::MemberError;
use crate::http;
use crate::layout::Layout;

/// The longest time of a call.
const CALL_MAX: Duration = Duration::from_secs(5);
/// The longest time of a defragmentation, which stops the member while it copies its database.
const DEFRAGMENT_MAX: Duration = Duration::from_secs(300);
/// The largest answer: a list of members.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The largest page of metrics.
const METRICS_BYTES_MAX: usize = 8 << 20;

/// A client of one member.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    client: Client<Channel>,
    layout: Layout,
    port: u16,
}

/// Returns the address of a member on its loopback port.
pub(crate) fn client_url(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

impl Local {
    /// Creates a client; it connects when it is first used.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub async fn new(layout: &Layout, port: u16) -> Result<Self, MemberError> {
        let (urls, files) = ([client_url(port)], layout.client_tls());
        let endpoints = FILES.run(move || Endpoints::new(&urls, &files)).await?.map_err(MemberError::Tls)?;
        let connector = Connector::new(&Arc::new(endpoints), 0);
        let channel = Endpoint::from_static("http://etcd").connect_with_connector_lazy(connector);
        Ok(Self { client: Client::new(channel, ANSWER_BYTES_MAX), layout: layout.clone(), port })
    }

    /// Returns version, sizes, leader and alarms of the member. Needs no quorum.
    pub async fn status(&self) -> Result<proto::StatusResponse, Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.status()).await
    }

    /// Returns the members; with `agreed` as a quorum knows them, else as this member does.
    pub async fn members(&self, agreed: bool) -> Result<Vec<Member>, Status> {
        let mut client = self.client.clone();
        let request = proto::MemberListRequest { linearizable: agreed };
        Ok(within(CALL_MAX, client.member_list(request)).await?.members)
    }

    /// Adds a learner with these peer URLs, and returns it with all members.
    pub async fn add_learner(&self, peer_urls: &[String]) -> Result<proto::MemberAddResponse, Status> {
        let mut client = self.client.clone();
        let request = proto::MemberAddRequest { peer_urls: peer_urls.to_vec(), is_learner: true };
        within(CALL_MAX, client.member_add(request)).await
    }

    /// Makes a learner a voter; see [`Client::member_promote`].
    pub async fn promote(&self, id: u64) -> Result<(), Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.member_promote(id)).await.map(drop)
    }

    /// Removes a member; see [`Client::member_remove`].
    pub async fn remove(&self, id: u64) -> Result<(), Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.member_remove(id)).await.map(drop)
    }

    /// Hands leadership to another voter; see [`Client::move_leader`].
    pub async fn move_leader(&self, to: u64) -> Result<(), Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.move_leader(to)).await.map(drop)
    }

    /// Returns the alarms of all members.
    pub async fn alarms(&self) -> Result<Vec<proto::AlarmMember>, Status> {
        self.alarm(proto::alarm_request::AlarmAction::Get, proto::AlarmMember::default()).await
    }

    /// Clears an alarm.
    pub async fn clear_alarm(&self, alarm: proto::AlarmMember) -> Result<(), Status> {
        self.alarm(proto::alarm_request::AlarmAction::Deactivate, alarm).await.map(drop)
    }

    async fn alarm(
        &self,
        action: proto::alarm_request::AlarmAction,
        of: proto::AlarmMember,
    ) -> Result<Vec<proto::AlarmMember>, Status> {
        let mut client = self.client.clone();
        let request = proto::AlarmRequest { action: action as i32, member_id: of.member_id, alarm: of.alarm };
        Ok(within(CALL_MAX, client.alarm(request)).await?.alarms)
    }

    /// Releases unused space on the disk of this member.
    pub async fn defragment(&self) -> Result<(), Status> {
        let mut client = self.client.clone();
        within(DEFRAGMENT_MAX, client.defragment()).await.map(drop)
    }

    /// Forgets what was replaced before a revision.
    pub async fn compact(&self, revision: i64) -> Result<(), Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.compact(proto::CompactionRequest { revision, physical: false })).await.map(drop)
    }

    /// Returns keys and values of a range.
    pub async fn range(&self, request: proto::RangeRequest) -> Result<proto::RangeResponse, Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.range(request)).await
    }

    /// Runs a transaction.
    pub async fn txn(&self, request: proto::TxnRequest) -> Result<proto::TxnResponse, Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.txn(request)).await
    }

    /// Grants a lease of so many seconds and returns its ID.
    pub async fn grant(&self, ttl_s: i64) -> Result<i64, Status> {
        let mut client = self.client.clone();
        let request = proto::LeaseGrantRequest { ttl: ttl_s, id: 0 };
        Ok(within(CALL_MAX, client.lease_grant(request)).await?.id)
    }

    /// Revokes a lease, and deletes its keys.
    pub async fn revoke(&self, id: i64) -> Result<(), Status> {
        let mut client = self.client.clone();
        within(CALL_MAX, client.lease_revoke(proto::LeaseRevokeRequest { id })).await.map(drop)
    }

    /// Returns the metrics that the member serves to its clients, in Prometheus' text format.
    ///
    /// # Errors
    /// The member does not answer in time.
    pub async fn metrics(&self) -> io::Result<Bytes> {
        let read = async {
            let files = self.layout.client_tls();
            let config = FILES.run(move || files.config()).await.map_err(io::Error::other)?;
            let mut config = config.map_err(io::Error::other)?;
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            let tcp = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
            let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
            http::get(stream, "localhost", "/metrics", METRICS_BYTES_MAX).await
        };
        let done = tokio::time::timeout(CALL_MAX, read).await;
        done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let done = tokio::time::timeout(limit, call).await;
    done.unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "no answer in time")))
}

/// Returns what etcd or the connection says about a failed call.
pub(crate) fn reason(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
