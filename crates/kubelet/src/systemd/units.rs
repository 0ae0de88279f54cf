//! systemd slices: cgroups that systemd creates, and whose limits it sets again when it reloads. And scopes: units of processes that systemd
//! has not started.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;

use super::bus::{Bus, BusError};
use super::wire::{Message, Value};

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// A limit of a slice by systemd's name, such as `MemoryMax`, and its value.
pub type Property = (&'static str, u64);

/// Creates and stops slices, and creates scopes. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Slices {
    socket: PathBuf,
    bus: Arc<Mutex<Option<Bus>>>,
}

impl Slices {
    /// Uses the bus at `socket`; connects with the first call.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), bus: Arc::default() }
    }

    /// Creates the slice `name` below `parent`, unless it exists. It exists until the machine restarts.
    ///
    /// # Errors
    /// systemd could not create it.
    pub async fn make(&self, name: &str, parent: &str) -> Result<(), BusError> {
        let on = |name: &str| property(name, Value::Bool(true));
        let parents = Value::Array("s".into(), vec![Value::text(parent)]);
        let mut properties = vec![
            property("Description", Value::text("cgroup of pods")),
            property("Wants", parents),
            property("DefaultDependencies", Value::Bool(false)),
        ];
        properties.extend(["MemoryAccounting", "CPUAccounting", "IOAccounting", "TasksAccounting"].map(on));
        let body = vec![
            Value::text(name),
            Value::text("replace"),
            Value::Array("(sv)".into(), properties),
            Value::Array("(sa(sv))".into(), Vec::new()),
        ];
        match self.call("StartTransientUnit", body).await {
            Err(BusError::Refused { name, .. }) if name == EXISTS => Ok(()),
            other => other,
        }
    }

    /// Moves a process into a new scope, which exists until the last process in it has ended. Stopping the unit in which the process was
    /// started does not end it then. systemd leaves the cgroups below the scope alone, and does not end its processes at a shutdown of the
    /// machine before all units are stopped.
    ///
    /// # Errors
    /// systemd could not create it, or it exists.
    pub async fn scope(&self, name: &str, description: &str, pid: u32) -> Result<(), BusError> {
        let properties = vec![
            property("Description", Value::text(description)),
            property("PIDs", Value::Array("u".into(), vec![Value::U32(pid)])),
            property("Delegate", Value::Bool(true)),
            property("DefaultDependencies", Value::Bool(false)),
            property("CollectMode", Value::text("inactive-or-failed")),
        ];
        let body = vec![
            Value::text(name),
            Value::text("fail"),
            Value::Array("(sv)".into(), properties),
            Value::Array("(sa(sv))".into(), Vec::new()),
        ];
        self.call("StartTransientUnit", body).await
    }

    /// Sets limits of an existing slice.
    ///
    /// # Errors
    /// systemd rejected them.
    pub async fn set(&self, name: &str, bounds: &[Property]) -> Result<(), BusError> {
        if bounds.is_empty() {
            return Ok(());
        }
        let bounds = bounds.iter().map(|(name, n)| property(name, Value::U64(*n))).collect();
        // `true` means: until the machine restarts.
        let body = vec![Value::text(name), Value::Bool(true), Value::Array("(sv)".into(), bounds)];
        self.call("SetUnitProperties", body).await
    }

    /// Stops a slice if it exists.
    ///
    /// # Errors
    /// systemd could not stop it.
    pub async fn end(&self, name: &str) -> Result<(), BusError> {
        match self.call("StopUnit", vec![Value::text(name), Value::text("replace")]).await {
            Err(BusError::Refused { name, .. }) if name == NO_SUCH => Ok(()),
            other => other,
        }
    }

    /// Calls systemd. Opens a new connection if the previous one was closed, because the bus may have restarted.
    async fn call(&self, member: &str, body: Vec<Value>) -> Result<(), BusError> {
        let mut held = self.bus.lock().await;
        for is_last in [false, true] {
            let bus = match held.as_mut() {
                Some(bus) => bus,
                None => held.insert(Bus::connect(&self.socket).await?),
            };
            match bus.call(Message::call(SERVICE, OBJECT, MANAGER, member, body.clone())).await {
                Err(BusError::Connection(_)) if !is_last => *held = None,
                Err(e @ BusError::Refused { .. }) => return Err(e),
                Err(e) => {
                    *held = None;
                    return Err(e);
                }
                Ok(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

fn property(name: &str, value: Value) -> Value {
    Value::Struct(vec![Value::text(name), Value::Variant(Box::new(value))])
}
