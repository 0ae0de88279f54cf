//! The registry of addresses: IPAddress objects (KEP-1880), whose name is the address, so that each exists once in the storage. And of
//! node ports, if several servers share the storage.
use std::net::IpAddr;

use async_trait::async_trait;
use kelson_meta::Status;
use kelson_meta::tree::text;
use serde_json::Value;

/// The Service that an address is registered for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressOwner {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
}

impl AddressOwner {
    /// The metadata of a Service.
    pub fn of(service: &Value) -> Self {
        let metadata = &service["metadata"];
        Self { namespace: text(&metadata["namespace"]).to_owned(), name: text(&metadata["name"]).to_owned() }
    }
}

/// Registers addresses and node ports, and releases them.
#[async_trait]
pub trait AddressRegistry: Send + Sync {
    /// Registers an address. `false` if it belongs to another owner.
    ///
    /// # Errors
    /// The storage or admission rejects the object.
    async fn register(&self, ip: IpAddr, owner: &AddressOwner) -> Result<bool, Status>;
    /// Releases addresses of this owner. What cannot be released now is released by the periodic repair.
    async fn release(&self, ips: &[IpAddr], owner: &AddressOwner);
    /// Releases addresses and node ports in the background.
    fn release_later(&self, ips: Vec<IpAddr>, ports: Vec<u16>, owner: AddressOwner);
    /// The node ports in use; empty if this server does not share its storage.
    ///
    /// # Errors
    /// The storage cannot be read.
    async fn ports(&self) -> Result<Vec<u16>, Status>;
    /// Registers node ports. Returns one that is in use already; then none is registered.
    ///
    /// # Errors
    /// The storage cannot be read or written.
    async fn take_ports(&self, ports: &[u16]) -> Result<Option<u16>, Status>;
    /// Releases node ports. What cannot be released now is released by the periodic repair.
    async fn give_back_ports(&self, ports: &[u16]);
}
