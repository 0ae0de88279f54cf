//! The interface through which a mirror writes to its shared storage.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use crate::error::StoreError;
use crate::write::{Committed, Write};

/// The future that a call of [`Remote`] returns.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The shared storage of several servers, as a mirror uses it.
pub trait Remote: Send + Sync {
    /// Performs a write in the storage, and returns when the mirror has it.
    fn commit(&self, write: Write) -> Answer<'_, Committed>;
    /// Waits until the mirror has everything that was written before the call.
    fn catch_up(&self) -> Answer<'_, ()>;
    /// Announces that the server at this address is alive. Unless it is announced again, it counts as dead after `life`.
    fn announce(&self, server: IpAddr, life: Duration) -> Answer<'_, ()>;
    /// Withdraws an announcement. Returns whether there was one.
    fn withdraw(&self, server: IpAddr) -> Answer<'_, bool>;
    /// The addresses of the live servers, in no particular order.
    fn living(&self) -> Answer<'_, Vec<IpAddr>>;
    /// Announces the address at which other API servers reach the one with this identity, for the duration `life` (KEP-4020).
    fn announce_peer<'a>(&'a self, id: &'a str, address: SocketAddr, life: Duration) -> Answer<'a, ()>;
    /// Withdraws what [`Remote::announce_peer`] announced. Returns whether there was an announcement.
    fn withdraw_peer<'a>(&'a self, id: &'a str) -> Answer<'a, bool>;
    /// The node ports that are recorded as in use, ascending.
    fn ports_in_use(&self) -> Answer<'_, Vec<u16>>;
    /// Changes the recorded ports atomically. Returns the first port that must be free and is in use, if there is one.
    fn change_ports(&self, change: PortChange) -> Answer<'_, Option<u16>>;
}

/// A change of the node ports in use, made by one of the servers on a shared storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortChange {
    /// The first and the last port of `--service-node-port-range`.
    pub range: (u16, u16),
    /// The ports that are in use from now on.
    pub take: Vec<u16>,
    /// Whether the ports in `take` must be free before.
    pub only_free: bool,
    /// The ports that are released.
    pub give_back: Vec<u16>,
}
