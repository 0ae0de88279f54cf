//! Where the writes of a mirror go.

use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use crate::error::StoreError;
use crate::write::{Committed, Write};

/// What a call of [`Remote`] comes to.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Where the truth is.
pub trait Remote: Send + Sync {
    /// Performs a write there, and answers when the mirror shows it.
    fn commit(&self, write: Write) -> Answer<'_, Committed>;
    /// Resolves when the mirror shows everything that was written there before the call.
    fn catch_up(&self) -> Answer<'_, ()>;
    /// Tells all who ask there that the server at this address lives; without being told again it counts as dead after that time.
    fn announce(&self, server: IpAddr, life: Duration) -> Answer<'_, ()>;
    /// Tells them that it lives no more. Answers whether they had been told that it does.
    fn withdraw(&self, server: IpAddr) -> Answer<'_, bool>;
    /// The servers that live, in no particular order.
    fn living(&self) -> Answer<'_, Vec<IpAddr>>;
    /// The node ports that are noted there as in use, ascending.
    fn ports_in_use(&self) -> Answer<'_, Vec<u16>>;
    /// Changes what is noted of them, wholly or not at all. Answers the first port that was to be free and is not.
    fn change_ports(&self, change: PortChange) -> Answer<'_, Option<u16>>;
}

/// A change of the node ports that are in use, made by one of the servers that share a storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortChange {
    /// The first and the last port that may be handed out (`--service-node-port-range`).
    pub range: (u16, u16),
    /// Those that are in use from now on.
    pub take: Vec<u16>,
    /// Whether these must have been free.
    pub only_free: bool,
    /// Those that are not in use any more.
    pub give_back: Vec<u16>,
}
