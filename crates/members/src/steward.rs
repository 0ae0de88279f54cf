//! Promotes learners that have caught up, and removes those that do not. The server with the leader does it: voters, never the
//! learner itself.

use std::collections::HashMap;
use std::time::Duration;

use kelson_etcd::proto::Member;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::decide::{LEARNER_MAX, LearnerStep, label, learner_step};
use crate::event::{Events, MemberEvent};
use crate::local::{Local, reason};

/// The interval of looks at the members.
const LOOK: Duration = Duration::from_secs(2);
/// The interval while there is a learner.
const LOOK_AT_LEARNER: Duration = Duration::from_millis(500);

/// The steward of one member.
pub(crate) struct Steward {
    local: Local,
    events: Events,
    /// When this server's leader first saw each learner.
    learners: HashMap<u64, Instant>,
}

impl Steward {
    /// Creates it for the member of this server.
    pub fn new(local: Local, events: Events) -> Self {
        Self { local, events, learners: HashMap::new() }
    }

    /// Looks at the members until the task is cancelled.
    pub async fn run(mut self) {
        loop {
            let is_waiting = match self.look().await {
                Ok(is_waiting) => is_waiting,
                Err(error) => {
                    tracing::debug!(error = reason(&error), "reading the members of etcd failed; retrying");
                    false
                }
            };
            tokio::time::sleep(if is_waiting { LOOK_AT_LEARNER } else { LOOK }).await;
        }
    }

    /// Takes one step for each learner, if this member is the leader. Returns whether there are learners.
    async fn look(&mut self) -> Result<bool, Status> {
        let status = self.local.status().await?;
        if status.header.is_none_or(|header| header.member_id != status.leader) {
            self.learners.clear();
            return Ok(false);
        }
        let members = self.local.members(false).await?;
        let learners: Vec<&Member> = members.iter().filter(|member| member.is_learner).collect();
        self.learners.retain(|id, _| learners.iter().any(|learner| learner.id == *id));
        for learner in &learners {
            let since = *self.learners.entry(learner.id).or_insert_with(Instant::now);
            self.step(learner, since.elapsed()).await;
        }
        Ok(!learners.is_empty())
    }

    async fn step(&self, learner: &Member, known_for: Duration) {
        let name = label(learner);
        match learner_step(known_for) {
            // It has no name before its first start.
            LearnerStep::Promote if learner.name.is_empty() => {}
            LearnerStep::Promote => match self.local.promote(learner.id).await {
                Ok(()) => {
                    tracing::info!(member = name, "promoted the learner to a voter");
                    self.events.send(MemberEvent::Promoted { name: name.to_owned() });
                }
                // It is behind the leader still, or another server was faster.
                Err(e) if matches!(e.code(), Code::FailedPrecondition | Code::NotFound) => {
                    tracing::debug!(member = name, error = reason(&e), "the learner is not promoted yet");
                }
                Err(e) => tracing::warn!(member = name, error = reason(&e), "promoting the learner failed; retrying"),
            },
            LearnerStep::Remove => match self.local.remove(learner.id).await {
                Ok(()) => {
                    let minutes = LEARNER_MAX.as_secs() / 60;
                    tracing::warn!(
                        member = name,
                        minutes,
                        "removed a learner that did not catch up; start its server again to retry"
                    );
                    self.events.send(MemberEvent::LearnerRemoved { name: name.to_owned() });
                }
                Err(e) => tracing::warn!(member = name, error = reason(&e), "removing the learner failed; retrying"),
            },
        }
    }
}
