//! Where it is told who has an address: IPAddress objects (KEP-1880), each by its name the only one of its address in all the storage.
//! And which node ports are in use, where several servers share a storage.
use std::net::IpAddr;

use async_trait::async_trait;
use kelson_meta::Status;
use kelson_meta::tree::text;
use serde_json::Value;

/// The Service that an address is entered for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressOwner {
    /// The namespace that the Service is in.
    pub namespace: String,
    /// The name that it has there.
    pub name: String,
}

impl AddressOwner {
    /// Of a Service.
    pub fn of(service: &Value) -> Self {
        let metadata = &service["metadata"];
        Self { namespace: text(&metadata["namespace"]).to_owned(), name: text(&metadata["name"]).to_owned() }
    }
}

/// Enters addresses and node ports, and strikes them out.
#[async_trait]
pub trait AddressBook: Send + Sync {
    /// Enters an address. Answers whether it is the owner's now; if not, somebody else was before.
    ///
    /// # Errors
    /// What the storage or admission refuses.
    async fn enter(&self, ip: IpAddr, owner: &AddressOwner) -> Result<bool, Status>;
    /// Strikes out what is entered for this owner. What cannot be struck out now is found when the book is looked through.
    async fn strike(&self, ips: &[IpAddr], owner: &AddressOwner);
    /// The same by somebody who cannot wait, with node ports.
    fn strike_later(&self, ips: Vec<IpAddr>, ports: Vec<u16>, owner: AddressOwner);
    /// The node ports that are in use. Nothing where this server is alone.
    ///
    /// # Errors
    /// The storage cannot be asked.
    async fn ports(&self) -> Result<Vec<u16>, Status>;
    /// Notes node ports as in use. Answers one that is in use already: then none is noted.
    ///
    /// # Errors
    /// The storage cannot be asked.
    async fn take_ports(&self, ports: &[u16]) -> Result<Option<u16>, Status>;
    /// Notes that node ports are free. What cannot be noted now is found when all are looked through.
    async fn give_back_ports(&self, ports: &[u16]);
}
