//! `kelson agent --vote`: an etcd member beside a node. The node does not wait for it, and runs without it while it cannot join.
use std::sync::Arc;
use std::time::Duration;

use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;

use crate::host::NodeIdentity;
use crate::vote::{Vote, VoteArgs};

/// The pause after a failed start.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The member, once it has started.
pub struct NodeVote(Arc<Mutex<Option<Vote>>>);

impl NodeVote {
    /// Starts the member, or joins, in the background. The caller has the lock of its directory.
    pub fn begin(args: VoteArgs, me: NodeIdentity, tasks: &Tasks) -> Self {
        let running = Arc::new(Mutex::new(None));
        let (started, group) = (Arc::clone(&running), tasks.clone());
        tasks.spawn("vote", OnPanic::EndProcess, async move {
            let vote = loop {
                match Vote::start(&args, &me, &group).await {
                    Ok(vote) => break vote,
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::error!(
                            error,
                            "this machine does not vote in the etcd cluster; trying again. Its node runs without it"
                        );
                        tokio::time::sleep(AGAIN_AFTER).await;
                    }
                }
            };
            *started.lock() = Some(vote);
        });
        Self(running)
    }

    /// Stops the member, if it runs.
    pub async fn end(self) {
        let vote = self.0.lock().take();
        if let Some(vote) = vote {
            vote.end().await;
        }
    }
}
