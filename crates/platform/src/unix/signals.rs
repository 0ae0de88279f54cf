//! Signals that ask a process to stop (SIGTERM from supervisors, SIGINT from a terminal) or to reload (SIGHUP).
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives the signals that ask the process to stop.
#[derive(Debug)]
pub struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// Starts to receive the signals. They no longer end the process by themselves.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for a signal.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Receives SIGHUP, with which service managers ask a process to reload.
#[derive(Debug)]
pub struct ReloadSignal(Signal);

impl ReloadSignal {
    /// Starts to receive the signal. It no longer ends the process.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next signal.
    pub async fn asked(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal as Kind, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn a_hangup_asks_to_reload() {
        let mut reload = ReloadSignal::listen().unwrap();
        kill_process(getpid(), Kind::HUP).unwrap();
        reload.asked().await;
    }

    #[tokio::test]
    async fn both_signals_are_heard() {
        for kind in [Kind::TERM, Kind::INT] {
            let mut signals = EndSignals::listen().unwrap();
            kill_process(getpid(), kind).unwrap();
            signals.asked().await;
        }
    }
}
