//! A record of what happened, in order: a digest of everything, and the last part as text for debugging.
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The maximum size of one detail in bytes.
const DETAIL_MAX: usize = 600;
/// The maximum number of lines kept as text.
const KEPT_MAX: usize = 4000;

#[derive(Debug)]
struct TraceState {
    lines: VecDeque<String>,
    digest: u64,
    count: u64,
}

impl TraceState {
    fn keep(&mut self, line: String) {
        if self.lines.len() == KEPT_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

/// A trace; cheap to clone.
#[derive(Clone, Debug)]
pub struct Trace {
    begun: Instant,
    state: Arc<Mutex<TraceState>>,
}

impl Trace {
    /// Creates an empty trace that begins now.
    #[expect(clippy::new_without_default, reason = "it begins at a time")]
    pub fn new() -> Self {
        // FNV-1a, 64 bit.
        let state = TraceState { lines: VecDeque::new(), digest: 0xcbf2_9ce4_8422_2325, count: 0 };
        Self { begun: Instant::now(), state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the time since the start by the paused clock.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Adds what `who` did, with the time of the paused clock.
    pub fn note(&self, who: &str, what: impl Display) {
        let line = format!("{:>10.3} {who}: {what}", self.begun.elapsed().as_secs_f64());
        let mut s = self.state.lock();
        for byte in line.bytes().chain([b'\n']) {
            s.digest = (s.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        s.count += 1;
        s.keep(line);
    }

    /// Adds text that explains the previous line and is not part of the digest: it may depend on the machine.
    pub fn detail(&self, text: &[u8]) {
        let text = String::from_utf8_lossy(&text[..text.len().min(DETAIL_MAX)]);
        self.state.lock().keep(format!("           {text}"));
    }

    /// Returns a number that is equal for two runs only when all their lines are equal.
    pub fn digest(&self) -> String {
        let s = self.state.lock();
        format!("{:016x}/{}", s.digest, s.count)
    }

    /// Returns the last lines.
    pub fn tail(&self, lines: usize) -> String {
        let s = self.state.lock();
        let from = s.lines.len().saturating_sub(lines);
        s.lines.iter().skip(from).map(|l| format!("{l}\n")).collect()
    }
}
