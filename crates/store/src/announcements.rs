//! What API servers on a shared storage announce to each other: that they are alive, and where they are reached. An announcement ends
//! unless it is made again. A store that mirrors nothing has no other servers, so nothing is announced.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Announces to the other servers on the shared storage that the server at this address is alive, for the duration `life`.
    ///
    /// # Errors
    /// See [`Store::catch_up`].
    pub async fn announce(&self, server: IpAddr, life: Duration) -> Result<(), StoreError> {
        match self.remote() {
            Some(remote) => remote.announce(server, life).await,
            None => Ok(()),
        }
    }

    /// Withdraws what [`Store::announce`] announced. Returns whether there was an announcement.
    ///
    /// # Errors
    /// See [`Store::catch_up`].
    pub async fn withdraw(&self, server: IpAddr) -> Result<bool, StoreError> {
        match self.remote() {
            Some(remote) => remote.withdraw(server).await,
            None => Ok(false),
        }
    }

    /// The addresses of the live servers, from their announcements, or `None` if the storage is not shared.
    ///
    /// # Errors
    /// See [`Store::catch_up`].
    pub async fn living(&self) -> Result<Option<Vec<IpAddr>>, StoreError> {
        match self.remote() {
            Some(remote) => remote.living().await.map(Some),
            None => Ok(None),
        }
    }

    /// Announces to other API servers on the shared storage the address at which they reach the server with this identity, for the
    /// duration `life` (KEP-4020).
    ///
    /// # Errors
    /// See [`Store::catch_up`].
    pub async fn announce_peer(&self, id: &str, address: SocketAddr, life: Duration) -> Result<(), StoreError> {
        match self.remote() {
            Some(remote) => remote.announce_peer(id, address, life).await,
            None => Ok(()),
        }
    }

    /// Withdraws what [`Store::announce_peer`] announced. Returns whether there was an announcement.
    ///
    /// # Errors
    /// See [`Store::catch_up`].
    pub async fn withdraw_peer(&self, id: &str) -> Result<bool, StoreError> {
        match self.remote() {
            Some(remote) => remote.withdraw_peer(id).await,
            None => Ok(false),
        }
    }
}
