//! The revision that etcd is at: a read that must not be stale waits until the mirror is there. All who ask while a question is
//! under way share the next one.

use kelson_store::StoreError;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::connection::{CallError, Connection};

/// Readers that wait; further ones wait for room.
const READERS_MAX: usize = 4096;

type Ask = oneshot::Sender<Result<u64, CallError>>;

/// Readers ask here for the revision that their reads must have reached.
pub(crate) struct Fence {
    ask: mpsc::Sender<Ask>,
    asked: Mutex<mpsc::Receiver<Ask>>,
}

impl Fence {
    pub fn new() -> Self {
        let (ask, asked) = mpsc::channel(READERS_MAX);
        Self { ask, asked: Mutex::new(asked) }
    }

    /// A revision that is not before any write that was done when this was called.
    pub async fn revision(&self) -> Result<u64, StoreError> {
        let (ask, answer) = oneshot::channel();
        self.ask.send(ask).await.map_err(|_| StoreError::Closed)?;
        Ok(answer.await.map_err(|_| StoreError::Closed)??)
    }

    /// Answers readers, for as long as it runs.
    pub async fn serve(&self, connection: &Connection) {
        let mut asked = self.asked.lock().await;
        while let Some(first) = asked.recv().await {
            let mut readers = vec![first];
            while let Ok(next) = asked.try_recv() {
                readers.push(next);
            }
            let revision = connection.revision().await;
            for reader in readers {
                // Who went away meanwhile needs no answer.
                let _ = reader.send(revision.clone());
            }
        }
    }
}
