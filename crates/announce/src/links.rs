//! Interfaces and addresses of this machine through rtnetlink, and the interface on whose network an address is.
use std::net::IpAddr;
use std::time::Duration;

use futures::TryStreamExt as _;
use ipnet::IpNet;
use kelson_tasks::{Scoped, scoped};
use rtnetlink::Handle;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use crate::error::AnnounceError;
use crate::ethernet::Mac;

/// An interface with Ethernet addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The number of the interface.
    pub index: u32,
    /// The name of the interface, such as `eth0`.
    pub name: String,
    /// Its hardware address.
    pub mac: Mac,
    /// Whether it is up.
    pub is_up: bool,
    /// Its addresses with their networks.
    pub addresses: Vec<IpNet>,
}

/// Returns the interface on whose network `ip` is: that with the longest prefix that contains it, else that with the
/// address `fallback`, to which a router may send it. An address that the interface has itself does not count.
pub fn link_for(links: &[Link], ip: IpAddr, fallback: Option<IpAddr>) -> Option<&Link> {
    let longest = |link: &Link| {
        let of_ip = link.addresses.iter().filter(|net| net.contains(&ip) && net.prefix_len() < net.max_prefix_len());
        of_ip.filter(|net| net.prefix_len() > 0).map(IpNet::prefix_len).max()
    };
    let up = || links.iter().filter(|link| link.is_up);
    // Of two interfaces in one network, the first has its route.
    let on_link = up().filter_map(|link| Some((longest(link)?, link))).rev().max_by_key(|(length, _)| *length);
    let with_fallback = || up().find(|link| link.addresses.iter().any(|net| Some(net.addr()) == fallback));
    on_link.map(|(_, link)| link).or_else(with_fallback)
}

/// A connection to the kernel's interfaces and addresses.
pub struct Links {
    handle: Handle,
    /// The task that transfers messages; it ends with the connection.
    _connection: Scoped<()>,
}

impl Links {
    /// Opens a connection to the network namespace of this thread.
    ///
    /// # Errors
    /// The system has no free socket.
    pub fn open() -> Result<Self, AnnounceError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(AnnounceError::io("open a netlink socket"))?;
        Ok(Self { handle, _connection: scoped("netlink", connection) })
    }

    /// Returns all interfaces with an Ethernet address.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub async fn all(&self) -> Result<Vec<Link>, AnnounceError> {
        let links: Vec<LinkMessage> =
            self.handle.link().get().execute().try_collect().await.map_err(|e| failed("list interfaces", e))?;
        let addresses = self.addresses().await?;
        Ok(links.into_iter().filter_map(|message| link_of(message, &addresses)).collect())
    }

    /// Returns every address of the machine with its interface's number, loopback included.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub async fn addresses(&self) -> Result<Vec<(u32, IpNet)>, AnnounceError> {
        let all = self.messages().await?;
        Ok(all.iter().filter_map(|m| Some((m.header.index, address_of(m)?))).collect())
    }

    async fn messages(&self) -> Result<Vec<AddressMessage>, AnnounceError> {
        self.handle.address().get().execute().try_collect().await.map_err(|e| failed("list addresses", e))
    }

    /// Puts an address on an interface, or extends its time there: after `valid` the kernel itself removes it, also when
    /// this process is paused or was killed.
    ///
    /// # Errors
    /// The kernel rejects it, as when the interface is gone.
    pub async fn hold(&self, index: u32, net: IpNet, valid: Duration) -> Result<(), AnnounceError> {
        let mut request = self.handle.address().add(index, net.addr(), net.prefix_len()).replace();
        // Whether another machine has it was asked before. An IPv6 address that is not preferred is not the source of
        // connections that this machine opens.
        let mut times = CacheInfo::default();
        times.ifa_valid = u32::try_from(valid.as_secs()).unwrap_or(u32::MAX).max(1);
        times.ifa_preferred = if net.addr().is_ipv6() { 0 } else { times.ifa_valid };
        let flags = AddressFlags::Nodad;
        request.message_mut().attributes.extend([AddressAttribute::CacheInfo(times), AddressAttribute::Flags(flags)]);
        request.execute().await.map_err(|e| failed(format!("add address {net}"), e))
    }

    /// Removes an address from the interface `index`. Returns whether it was there.
    ///
    /// # Errors
    /// The kernel cannot be queried, or rejects it.
    pub async fn remove(&self, index: u32, net: IpNet) -> Result<bool, AnnounceError> {
        let mut has_removed = false;
        for message in self.messages().await? {
            if message.header.index == index && address_of(&message) == Some(net) {
                let done = self.handle.address().del(message).execute().await;
                done.map_err(|e| failed(format!("remove address {net}"), e))?;
                has_removed = true;
            }
        }
        Ok(has_removed)
    }
}

fn link_of(message: LinkMessage, addresses: &[(u32, IpNet)]) -> Option<Link> {
    let (index, is_up) = (message.header.index, message.header.flags.contains(LinkFlags::Up));
    let (mut name, mut mac) = (None, None);
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(of_link) => name = Some(of_link),
            LinkAttribute::Address(bytes) => mac = Mac::of(&bytes),
            _ => {}
        }
    }
    let addresses = addresses.iter().filter(|(of, _)| *of == index).map(|(_, net)| *net).collect();
    Some(Link { index, name: name?, mac: mac?, is_up, addresses })
}

fn address_of(message: &AddressMessage) -> Option<IpNet> {
    let of = |local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(ip) if local => Some(*ip),
            AddressAttribute::Address(ip) if !local => Some(*ip),
            _ => None,
        })
    };
    // On a point-to-point interface the other attribute is the address of the other end.
    IpNet::new(of(true).or_else(|| of(false))?, message.header.prefix_len).ok()
}

fn failed(what: impl Into<String>, error: rtnetlink::Error) -> AnnounceError {
    let message = match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io().to_string(),
        other => other.to_string(),
    };
    AnnounceError::Netlink { what: what.into(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, addresses: &[&str]) -> Link {
        let addresses = addresses.iter().map(|net| net.parse().unwrap()).collect();
        Link { index: 1, name: name.into(), mac: Mac([2, 0, 0, 0, 0, 1]), is_up: true, addresses }
    }

    #[test]
    fn an_address_belongs_to_the_interface_of_its_network() {
        let mut links = [
            link("wide", &["10.0.0.1/8", "fe80::1/64"]),
            link("narrow", &["10.1.0.1/16"]),
            link("alone", &["10.1.2.3/32", "2001:db8::1/64"]),
            link("second", &["10.1.0.2/16"]),
        ];
        let fallback = "10.0.0.1".parse().ok();
        let mut rows =
            vec![("10.1.2.3", "narrow"), ("10.2.0.1", "wide"), ("2001:db8::9", "alone"), ("192.0.2.1", "wide")];
        let check = |links: &[Link], rows: &[(&str, &str)]| {
            for (ip, name) in rows {
                let link = link_for(links, ip.parse().unwrap(), fallback);
                assert_eq!(link.map(|link| link.name.as_str()), Some(*name), "{ip}");
            }
        };
        check(&links, &rows);
        links[1].is_up = false;
        rows[0].1 = "second";
        check(&links, &rows);
        assert_eq!(link_for(&links, "192.0.2.1".parse().unwrap(), None), None);
    }
}
