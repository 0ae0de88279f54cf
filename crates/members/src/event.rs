//! What happened to members, for those who show it: events of the API, metrics.

use tokio::sync::broadcast;

/// Events that a slow reader may be behind.
const KEPT: usize = 64;

/// Something that happened to a member. The first word of each message is its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A server joined, as a learner.
    Joined {
        /// The name of the member.
        name: String,
    },
    /// A learner has caught up and is a voter.
    Promoted {
        /// The name of the member.
        name: String,
    },
    /// A learner did not catch up in time.
    LearnerRemoved {
        /// The name of the member.
        name: String,
    },
    /// A lost member was removed because its server joined again.
    Replaced {
        /// The name of the member.
        name: String,
    },
    /// The member of this server has an alarm: its quota is used up, or its data is damaged.
    Alarm {
        /// The name of the member.
        name: String,
        /// etcd's name of the alarm, `NOSPACE` or `CORRUPT`.
        alarm: String,
    },
    /// The disk of the member of this server is slow.
    SlowDisk {
        /// The name of the member.
        name: String,
        /// The 99th percentile of the duration of a sync, in milliseconds.
        p99_ms: u64,
    },
}

impl MemberEvent {
    /// Returns the reason of an event of the API.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Joined { .. } => "EtcdMemberJoined",
            Self::Promoted { .. } => "EtcdMemberPromoted",
            Self::LearnerRemoved { .. } => "EtcdLearnerRemoved",
            Self::Replaced { .. } => "EtcdMemberReplaced",
            Self::Alarm { .. } => "EtcdAlarm",
            Self::SlowDisk { .. } => "EtcdSlowDisk",
        }
    }

    /// Returns the name of the member.
    pub fn name(&self) -> &str {
        match self {
            Self::Joined { name }
            | Self::Promoted { name }
            | Self::LearnerRemoved { name }
            | Self::Replaced { name }
            | Self::Alarm { name, .. }
            | Self::SlowDisk { name, .. } => name,
        }
    }

    /// Reports whether an administrator should look at it.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::LearnerRemoved { .. } | Self::Alarm { .. } | Self::SlowDisk { .. })
    }

    /// Returns the message of an event of the API.
    pub fn message(&self) -> String {
        match self {
            Self::Joined { name } => format!("etcd member {name} joined as a learner"),
            Self::Promoted { name } => format!("etcd member {name} caught up and is a voter"),
            Self::LearnerRemoved { name } => {
                format!("etcd member {name} did not catch up and was removed; restart its server to retry")
            }
            Self::Replaced { name } => {
                format!("etcd member {name} was removed: its server joins again with an empty disk")
            }
            Self::Alarm { name, alarm } => format!("etcd member {name} raised the alarm {alarm}"),
            Self::SlowDisk { name, p99_ms } => {
                format!(
                    "etcd member {name} needs {p99_ms} ms for a sync (99th percentile), more than 10 ms; use a faster disk"
                )
            }
        }
    }
}

/// Sends events to all readers.
#[derive(Clone, Debug)]
pub(crate) struct Events(broadcast::Sender<MemberEvent>);

impl Events {
    pub fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// Sends an event; without a reader it is only in the log.
    pub fn send(&self, event: MemberEvent) {
        let _ = self.0.send(event);
    }

    /// Returns the events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<MemberEvent> {
        self.0.subscribe()
    }
}
