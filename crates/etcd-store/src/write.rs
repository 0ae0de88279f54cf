//! Requests to etcd. Each write is one transaction that compares the revision of the key. If another revision is
//! found, the store waits until the mirror contains the changes between, and evaluates the write again.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kelson_etcd::proto::{self, request_op};
use kelson_store::{
    Action, Answer, Body, Committed, PortChange, Record, RecordMeta, Remote, StoreError, Write, Writer,
};

use crate::connection::{CALL_MAX, revision_of, when_at};
use crate::core::Core;
use crate::reach::reach;
use crate::servers::ServerLease;
use crate::{ports, servers, value};

/// Times that a write without a condition is sent again because others were faster.
const ATTEMPTS_MAX: usize = 32;
/// The longest time that a completed write waits until the mirror contains it. After that it is answered anyway.
const SHOWN_MAX: Duration = Duration::from_secs(30);

/// The side of a store on etcd that asks.
pub(crate) struct Writes(pub Arc<Core>);

impl Remote for Writes {
    fn commit(&self, write: Write) -> Answer<'_, Committed> {
        Box::pin(commit(&self.0, write))
    }

    fn catch_up(&self) -> Answer<'_, ()> {
        Box::pin(catch_up(&self.0))
    }

    fn announce(&self, server: IpAddr, life: Duration) -> Answer<'_, ()> {
        Box::pin(servers::announce(&self.0, ServerLease::of_address(server), life))
    }

    fn withdraw(&self, server: IpAddr) -> Answer<'_, bool> {
        Box::pin(servers::withdraw(&self.0, servers::key_of(server)))
    }

    fn living(&self) -> Answer<'_, Vec<IpAddr>> {
        Box::pin(servers::living(&self.0))
    }

    fn announce_peer<'a>(&'a self, id: &'a str, address: SocketAddr, life: Duration) -> Answer<'a, ()> {
        Box::pin(servers::announce(&self.0, ServerLease::of_peer(id, address), life))
    }

    fn withdraw_peer<'a>(&'a self, id: &'a str) -> Answer<'a, bool> {
        Box::pin(servers::withdraw(&self.0, servers::peer_key_of(id)))
    }

    fn ports_in_use(&self) -> Answer<'_, Vec<u16>> {
        Box::pin(ports::in_use(&self.0))
    }

    fn change_ports(&self, change: PortChange) -> Answer<'_, Option<u16>> {
        Box::pin(ports::change(&self.0, change))
    }
}

/// A value to be stored.
struct Put {
    value: Bytes,
    writer: Writer,
    body: Body,
    /// The metadata that is kept beside the record.
    meta: RecordMeta,
    lease: i64,
}

async fn commit(core: &Arc<Core>, write: Write) -> Result<Committed, StoreError> {
    let name = Bytes::from(core.keys.of(&write.key));
    let mut current = core.mirror.get(&write.key);
    core.mirror.check(&write, current.as_ref())?;
    let put = put(core, &write).await?;
    for _ in 0..ATTEMPTS_MAX {
        match send(core, &name, &write, put.as_ref(), current.take()).await? {
            SendOutcome::Done(committed) => return Ok(committed),
            SendOutcome::Outrun { revision } => reach(core, revision, SHOWN_MAX).await?,
        }
        current = core.mirror.get(&write.key);
        core.mirror.check(&write, current.as_ref())?;
    }
    Err(StoreError::Elsewhere("etcd: too many conflicting writes of one object".to_owned()))
}

/// Returns the value that a write stores, or `None` for a deletion.
async fn put(core: &Core, write: &Write) -> Result<Option<Put>, StoreError> {
    let Action::Put { body, meta } = &write.action else { return Ok(None) };
    let plain = value::encode(core.media, &write.key, body)?;
    let at_rest = core.mirror.at_rest().filter(|at| at.writer(write.key.resource) != Some(Writer::CLEAR));
    let sealed = match at_rest {
        Some(at_rest) => at_rest.seal(&write.key, &plain).map_err(StoreError::Sealed)?,
        None => None,
    };
    let (value, writer) = sealed.map_or((plain, Writer::CLEAR), |sealed| (sealed.bytes, sealed.writer));
    let lease = match meta.expires_at_s {
        0 => 0,
        at_s => core.leases.of(at_s.saturating_sub(core.mirror.now_s()).max(1)).await?,
    };
    // Etcd ends it, by the lease.
    let meta = RecordMeta { expires_at_s: 0, ..meta.clone() };
    Ok(Some(Put { value: value.into(), writer, body: body.clone(), meta, lease }))
}

enum SendOutcome {
    Done(Committed),
    /// The key was at another revision; etcd was at this one.
    Outrun {
        revision: u64,
    },
}

async fn send(
    core: &Arc<Core>,
    name: &Bytes,
    write: &Write,
    put: Option<&Put>,
    current: Option<Arc<Record>>,
) -> Result<SendOutcome, StoreError> {
    // The write is registered as pending until its event arrives below.
    let _noted = put.map(|put| {
        core.pending.note(name.clone(), put.value.clone(), (put.body.clone(), put.meta.clone()), put.writer)
    });
    let (operation, op) = match &put {
        None => {
            let delete = proto::DeleteRangeRequest { key: name.clone(), ..Default::default() };
            ("delete", request_op::Request::RequestDeleteRange(delete))
        }
        Some(Put { value, lease, .. }) => {
            let put =
                proto::PutRequest { key: name.clone(), value: value.clone(), lease: *lease, ..Default::default() };
            (if current.is_some() { "update" } else { "create" }, request_op::Request::RequestPut(put))
        }
    };
    let at = current.as_ref().map_or(0, |record| record.revision());
    let answer = core.connection.txn(operation, when_at(name, at, op)).await?;
    let revision = revision_of(answer.header.as_ref());
    if !answer.succeeded {
        return Ok(SendOutcome::Outrun { revision });
    }
    match tokio::time::timeout(SHOWN_MAX, core.mirror.wait_for(revision)).await {
        Ok(Ok(())) => {}
        // The write took effect, so it is reported as successful.
        Ok(Err(_)) | Err(_) => {
            tracing::warn!(key = %write.key, revision, "timed out waiting to see a write in the watch")
        }
    }
    let last = match &write.action {
        Action::Delete { body } => body.as_ref(),
        Action::Put { .. } => None,
    };
    let put = put.map(|put| (&put.body, put.meta.clone()));
    Ok(SendOutcome::Done(core.mirror.committed(&write.key, revision, put, last, current)))
}

/// Resolves when the mirror shows everything that was written before the call.
async fn catch_up(core: &Arc<Core>) -> Result<(), StoreError> {
    let revision = core.fence.revision().await?;
    reach(core, revision, CALL_MAX).await
}
