//! What asks a process to end: Ctrl-C, Ctrl-Break, and the end of its console, of the session or of the system.
use std::io;

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown,
};

/// Hears of the events from when it is made on.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: CtrlC,
    stop: CtrlBreak,
    close: CtrlClose,
    logoff: CtrlLogoff,
    shutdown: CtrlShutdown,
}

impl EndSignals {
    /// From now on the events are heard here, and no longer end the process by themselves.
    ///
    /// # Errors
    /// The system's.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: ctrl_c()?,
            stop: ctrl_break()?,
            close: ctrl_close()?,
            logoff: ctrl_logoff()?,
            shutdown: ctrl_shutdown()?,
        })
    }

    /// Waits for one of them.
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

/// Hears of requests to reload: on this system there are none.
#[derive(Debug)]
pub struct ReloadSignal(());

impl ReloadSignal {
    /// Hears nothing.
    ///
    /// # Errors
    /// None.
    pub fn listen() -> io::Result<Self> {
        Ok(Self(()))
    }

    /// Waits for ever: no request comes.
    pub async fn asked(&mut self) {
        std::future::pending().await
    }
}
