//! Which thread makes a piece of a list, and when.
use std::sync::Arc;

use futures::future::BoxFuture;
use kelson_meta::Status;
use kelson_tasks::{FairLane, Turns, scoped};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::run::HasRun;
use crate::shared::context::RequestContext;
use crate::shared::pool::Class;

/// Where pieces are made. Those that compute for long, of large objects that are converted or formatted, have their own threads. The
/// others are made by the threads of the runtime. As many lists as there are threads take their place in the runtime's queue, and the
/// remaining ones wait outside it, so a request that is ready waits for one piece and not for a piece of every list.
pub(super) struct Threads {
    lane: Arc<FairLane>,
    turns: Turns,
    pieces: Arc<Semaphore>,
    /// Threads of the runtime.
    threads: usize,
}

impl Threads {
    /// The threads for a list of this user.
    pub fn of(cx: &RequestContext) -> Self {
        Self {
            lane: Arc::clone(&cx.server.heavy),
            turns: Class::of(&cx.user, false).turns(&cx.user),
            pieces: Arc::clone(&cx.server.list_pieces),
            threads: Handle::current().metrics().num_workers(),
        }
    }

    /// Whether more lists are open than the runtime has threads. Each of them has a reference to the permits.
    fn is_contended(&self) -> bool {
        Arc::strong_count(&self.pieces) > self.threads + 1
    }

    /// Runs work on a list: the next piece, or a part of the preparation. Returns the list with the result. A task for each piece costs
    /// wake-ups of other threads, so few lists make their pieces without.
    ///
    /// # Errors
    /// An object cannot be converted or encoded.
    pub async fn run<P, T, W>(&self, mut list: P, is_first: bool, work: W) -> Result<(P, T), Status>
    where
        P: HasRun,
        T: Send + 'static,
        W: for<'a> FnOnce(&'a mut P) -> BoxFuture<'a, Result<T, Status>> + Send + 'static,
    {
        let (heavy, converts) = (list.run().is_heavy(), list.run().served.converts());
        let work = async move {
            let result = work(&mut list).await?;
            Ok::<_, Status>((list, result))
        };
        if heavy {
            return self
                .lane
                .drive(self.turns.clone(), work)
                .await
                .unwrap_or_else(|error| Err(Status::internal(error)));
        }
        // A conversion may wait for its webhook, and other lists do not wait for that.
        if converts || !self.is_contended() {
            if !is_first {
                tokio::task::yield_now().await;
            }
            return work.await;
        }
        let pieces = Arc::clone(&self.pieces);
        // The permit belongs to a task, because a client that stops reading must not hold it.
        let task = scoped("list piece", async move {
            let _permit = pieces.acquire_owned().await.map_err(Status::internal)?;
            tokio::task::yield_now().await;
            work.await
        });
        task.await.unwrap_or_else(|| Err(Status::internal("encoding a part of the list failed")))
    }
}
