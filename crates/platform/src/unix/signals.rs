//! What asks a process to end: SIGTERM of supervisors, SIGINT of a terminal.
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears of the signals from when it is made on.
#[derive(Debug)]
pub struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// From now on the signals are heard here, and no longer end the process by themselves.
    ///
    /// # Errors
    /// The system's.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one of them.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Hears of SIGHUP, by which service managers ask a process to reload.
#[derive(Debug)]
pub struct ReloadSignal(Signal);

impl ReloadSignal {
    /// From now on the signal is heard here, and no longer ends the process.
    ///
    /// # Errors
    /// The system's.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next one.
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
