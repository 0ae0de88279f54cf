//! There is no service manager with `sd_notify(3)` and no journal on Windows.
use std::io;
use std::time::Duration;

/// A connection to the service manager. It has no values on this system.
#[derive(Debug)]
pub enum Notifier {}

impl Notifier {
    /// Returns `None`.
    ///
    /// # Errors
    /// This function never fails.
    pub fn from_env() -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Cannot be called, because the type has no values.
    ///
    /// # Errors
    /// This function never fails.
    pub fn send(&self, _: &str) -> io::Result<()> {
        match *self {}
    }
}

/// Returns `None`, because no manager expects a `WATCHDOG=1`.
pub fn watchdog() -> Option<Duration> {
    None
}

/// Returns false, because there is no journal.
pub fn logs_to_journal() -> bool {
    false
}
