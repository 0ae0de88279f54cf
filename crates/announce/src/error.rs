//! Errors of announced addresses.
use std::net::IpAddr;

use crate::ethernet::Mac;

/// An error with an address or its interface.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// A socket failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation, with the interface.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The kernel rejected a request about interfaces or addresses.
    #[error("{what}: {message}")]
    Netlink {
        /// The operation, with the address.
        what: String,
        /// The kernel's error message.
        message: String,
    },
    /// The address cannot be announced.
    #[error("{ip}: {why}")]
    Invalid {
        /// The address as it was given.
        ip: IpAddr,
        /// What is expected, and what was found.
        why: String,
    },
    /// There is no such interface, or it is no Ethernet.
    #[error("{0}")]
    Interface(String),
    /// Another machine has the address.
    #[error("{ip} is in use by the machine with the hardware address {mac}")]
    Conflict {
        /// The address that is in use.
        ip: IpAddr,
        /// The other machine.
        mac: Mac,
    },
}

impl AnnounceError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
