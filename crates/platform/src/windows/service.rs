//! No service manager that speaks `sd_notify(3)`, and no journal.
use std::io;
use std::time::Duration;

/// The way to a service manager: there is none.
#[derive(Debug)]
pub enum Notifier {}

impl Notifier {
    /// Always `None`.
    ///
    /// # Errors
    /// None.
    pub fn from_env() -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Nothing can be sent.
    ///
    /// # Errors
    /// None.
    pub fn send(&self, _: &str) -> io::Result<()> {
        match *self {}
    }
}

/// No manager expects anything.
pub fn watchdog() -> Option<Duration> {
    None
}

/// Standard error is read by no journal.
pub fn logs_to_journal() -> bool {
    false
}
