//! Events that ask a process to stop: Ctrl-C, Ctrl-Break, and the end of the console, the session or the system.
use std::io;

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown,
};

/// Receives the events that ask the process to stop.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: CtrlC,
    stop: CtrlBreak,
    close: CtrlClose,
    logoff: CtrlLogoff,
    shutdown: CtrlShutdown,
}

impl EndSignals {
    /// Starts to receive the events. They no longer end the process by themselves.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: ctrl_c()?,
            stop: ctrl_break()?,
            close: ctrl_close()?,
            logoff: ctrl_logoff()?,
            shutdown: ctrl_shutdown()?,
        })
    }

    /// Waits for an event.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.stop.recv() => {}
            _ = self.close.recv() => {}
            _ = self.logoff.recv() => {}
            _ = self.shutdown.recv() => {}
        }
    }
}

/// Receives requests to reload, which do not exist on this system.
#[derive(Debug)]
pub struct ReloadSignal(());

impl ReloadSignal {
    /// Creates a receiver that never receives anything.
    ///
    /// # Errors
    /// This function never fails.
    pub fn listen() -> io::Result<Self> {
        Ok(Self(()))
    }

    /// Waits without end, because no request can arrive.
    pub async fn asked(&mut self) {
        std::future::pending().await
    }
}
