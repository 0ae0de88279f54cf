//! Client of logind: an inhibitor lock that delays the machine's shutdown, and the signal before a shutdown.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kelson_tasks::FILES;

use super::bus::{Bus, BusError};
use super::wire::{Message, Value};

const SERVICE: &str = "org.freedesktop.login1";
const OBJECT: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SHUTDOWN: &str = "PrepareForShutdown";
/// Directory of logind's drop-in configuration files, and the name of the kubelet's file.
const SETTINGS: &str = "/etc/systemd/logind.conf.d";
const OWN_SETTINGS: &str = "99-kubelet.conf";
/// After a reload of logind: delay before the first check, which doubles each time, and the number of checks.
const RELOAD_WAIT: Duration = Duration::from_millis(100);
const RELOAD_LOOKS: u32 = 5;

/// Inhibitor lock that delays the shutdown while it is held.
#[derive(Debug)]
pub struct ShutdownLock(#[allow(dead_code, reason = "held open")] OwnedFd);

/// A connection to logind.
#[derive(Debug)]
pub struct Logind {
    bus: Bus,
    settings: PathBuf,
}

impl Logind {
    /// Connects to logind on the bus at `socket` and subscribes to shutdown signals.
    ///
    /// # Errors
    /// The bus does not exist.
    pub async fn connect(socket: &Path) -> Result<Self, BusError> {
        let mut bus = Bus::connect(socket).await?;
        bus.listen(&format!("type='signal',interface='{MANAGER}',member='{SHUTDOWN}',path='{OBJECT}'")).await?;
        Ok(Self { bus, settings: SETTINGS.into() })
    }

    /// Uses another directory for configuration files.
    #[must_use]
    pub fn with_settings(self, dir: &Path) -> Self {
        Self { settings: dir.to_owned(), ..self }
    }

    /// Returns the maximum delay of a shutdown by locks (`InhibitDelayMaxSec`).
    ///
    /// # Errors
    /// logind does not return a number.
    pub async fn delay_max(&mut self) -> Result<Duration, BusError> {
        let body = vec![Value::text(MANAGER), Value::text("InhibitDelayMaxUSec")];
        let get = Message::call(SERVICE, OBJECT, "org.freedesktop.DBus.Properties", "Get", body);
        match self.bus.call(get).await?.body.into_iter().next() {
            Some(Value::Variant(value)) => match *value {
                Value::U64(micros) => Ok(Duration::from_micros(micros)),
                _ => Err(BusError::Answer("InhibitDelayMaxUSec is not a number")),
            },
            _ => Err(BusError::Answer("InhibitDelayMaxUSec has no value")),
        }
    }

    /// Configures logind by a drop-in file to allow this delay.
    ///
    /// # Errors
    /// logind's maximum delay is still shorter.
    pub async fn allow_delay(&mut self, wanted: Duration) -> Result<(), BusError> {
        if self.delay_max().await? >= wanted {
            return Ok(());
        }
        let dir = self.settings.clone();
        let written = FILES.run(move || {
            std::fs::create_dir_all(&dir)?;
            let text = format!("# The kubelet's graceful shutdown\n[Login]\nInhibitDelayMaxSec={}\n", wanted.as_secs());
            std::fs::write(dir.join(OWN_SETTINGS), text)
        });
        written.await.map_err(std::io::Error::other)??;
        let body = vec![Value::text("systemd-logind.service"), Value::text("all"), Value::I32(1)];
        let (service, object) = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1");
        self.bus.call(Message::call(service, object, "org.freedesktop.systemd1.Manager", "KillUnit", body)).await?;
        for look in 0..RELOAD_LOOKS {
            tokio::time::sleep(RELOAD_WAIT * 2u32.pow(look)).await;
            if self.delay_max().await? >= wanted {
                return Ok(());
            }
        }
        Err(BusError::Answer("logind's maximum inhibitor delay is shorter than shutdownGracePeriod"))
    }

    /// Takes an inhibitor lock.
    ///
    /// # Errors
    /// logind returned no lock.
    pub async fn lock(&mut self) -> Result<ShutdownLock, BusError> {
        let why = "pods end before the machine does";
        let body = ["shutdown", "kubelet", why, "delay"].map(Value::text).into();
        let answer = self.bus.call(Message::call(SERVICE, OBJECT, MANAGER, "Inhibit", body)).await?;
        let lock = answer.descriptors.into_iter().next();
        lock.map(ShutdownLock).ok_or(BusError::Answer("logind returned no inhibitor lock"))
    }

    /// Waits for a shutdown to begin (`true`) or to be cancelled (`false`).
    ///
    /// # Errors
    /// The connection was closed.
    pub async fn shutdown(&mut self) -> Result<bool, BusError> {
        loop {
            let signal = self.bus.signal().await?;
            if let (SHUTDOWN, Some(Value::Bool(begins))) = (signal.member.as_str(), signal.body.first()) {
                return Ok(*begins);
            }
        }
    }
}
