//! A revision for its event's sake: it shows that the watch has brought everything before it. Etcd says so when it is asked for its
//! progress. Kine on NATS does not after a deletion, which takes two revisions there, the second without an event.

use bytes::Bytes;
use kelson_etcd::proto::{PutRequest, RangeRequest, request_op};
use tokio::sync::Mutex;

use crate::connection::{CallError, Connection, when_at};
use crate::key::Keys;

/// The key that is written, below `--etcd-prefix`, where no API server stores an object.
const KEY: &str = "kelson/progress";

/// Writes such revisions, one at a time.
pub(crate) struct Marker {
    key: Bytes,
    turn: Mutex<()>,
}

impl Marker {
    pub fn new(keys: &Keys) -> Self {
        Self { key: keys.beside(KEY).into(), turn: Mutex::default() }
    }

    /// Writes one behind `revision`, unless another reader is doing so.
    ///
    /// # Errors
    /// The storage cannot be read or written.
    pub async fn write(&self, connection: &Connection, revision: u64) -> Result<(), CallError> {
        let Ok(_turn) = self.turn.try_lock() else { return Ok(()) };
        let key = self.key.clone();
        let stored = connection.range("get", RangeRequest { key: key.clone(), ..Default::default() }).await?;
        let at = stored.kvs.first().map_or(0, |kv| u64::try_from(kv.mod_revision).unwrap_or(0));
        let put = PutRequest { key: key.clone(), value: revision.to_string().into(), ..Default::default() };
        // When the condition fails, another API server wrote one after the read.
        connection.txn("update", when_at(&key, at, request_op::Request::RequestPut(put))).await?;
        Ok(())
    }
}
