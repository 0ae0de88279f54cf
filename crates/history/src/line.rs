//! The lines of a history: calls, answers and what watchers saw, as values and as text.

/// A revision and the value that was written at it.
pub type Version = (u64, String);

/// An operation on a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Writes a value, into an empty register or over the value at this revision.
    Put(Option<u64>, String),
    /// Empties the register if it is at this revision.
    Delete(u64),
    /// Reads the register.
    Read,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write happened at this revision.
    Written(u64),
    /// A read found this, or a write that expected something else did.
    Found(Option<Version>),
    /// The write did not happen, because the register was not at the revision that it expected.
    Rejected,
}

/// One line of the history, in the order of time: a call comes before its effect, and an answer after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A client sends an operation.
    Call {
        /// The number of the operation, which no other one has.
        id: u64,
        /// The name of the register.
        key: String,
        /// The operation that begins.
        call: Call,
    },
    /// A client has received the answer. An operation without this line may have happened or not.
    Answer {
        /// The number of the operation.
        id: u64,
        /// The answer to the operation.
        answer: Answer,
    },
    /// A watcher started at this revision.
    Watch {
        /// The number of the watcher.
        watcher: u64,
        /// It sees the writes after this revision.
        from: u64,
    },
    /// A watcher saw this event. Without a value, the register was emptied.
    Event {
        /// The number of the watcher.
        watcher: u64,
        /// The revision of the write.
        revision: u64,
        /// The name of the register.
        key: String,
        /// The value that was written.
        value: Option<String>,
    },
}

impl Line {
    /// Formats the line, as [`Line::parse`] reads it.
    pub fn text(&self) -> String {
        let version = |v: &Option<Version>| v.as_ref().map_or("-".into(), |(at, value)| format!("{at} {value}"));
        match self {
            Self::Call { id, key, call: Call::Put(at, value) } => {
                format!("call {id} {key} put {} {value}", at.unwrap_or(0))
            }
            Self::Call { id, key, call: Call::Delete(at) } => format!("call {id} {key} delete {at}"),
            Self::Call { id, key, call: Call::Read } => format!("call {id} {key} read"),
            Self::Answer { id, answer: Answer::Written(at) } => format!("answer {id} written {at}"),
            Self::Answer { id, answer: Answer::Found(found) } => format!("answer {id} found {}", version(found)),
            Self::Answer { id, answer: Answer::Rejected } => format!("answer {id} rejected"),
            Self::Watch { watcher, from } => format!("watch {watcher} {from}"),
            Self::Event { watcher, revision, key, value } => {
                format!("event {watcher} {revision} {key} {}", value.as_deref().unwrap_or("-"))
            }
        }
    }

    /// Parses a line. Returns `None` if it is not one or was cut short.
    pub fn parse(text: &str) -> Option<Self> {
        let n = |text: &str| text.parse::<u64>().ok();
        let words: Vec<&str> = text.split(' ').collect();
        Some(match words[..] {
            ["call", id, key, "put", at, value] => {
                let call = Call::Put(Some(n(at)?).filter(|at| *at > 0), value.into());
                Self::Call { id: n(id)?, key: key.into(), call }
            }
            ["call", id, key, "delete", at] => Self::Call { id: n(id)?, key: key.into(), call: Call::Delete(n(at)?) },
            ["call", id, key, "read"] => Self::Call { id: n(id)?, key: key.into(), call: Call::Read },
            ["answer", id, "written", at] => Self::Answer { id: n(id)?, answer: Answer::Written(n(at)?) },
            ["answer", id, "rejected"] => Self::Answer { id: n(id)?, answer: Answer::Rejected },
            ["answer", id, "found", "-"] => Self::Answer { id: n(id)?, answer: Answer::Found(None) },
            ["answer", id, "found", at, value] => {
                Self::Answer { id: n(id)?, answer: Answer::Found(Some((n(at)?, value.into()))) }
            }
            ["watch", watcher, from] => Self::Watch { watcher: n(watcher)?, from: n(from)? },
            ["event", watcher, revision, key, value] => {
                let value = (value != "-").then(|| value.to_owned());
                Self::Event { watcher: n(watcher)?, revision: n(revision)?, key: key.into(), value }
            }
            _ => return None,
        })
    }
}
