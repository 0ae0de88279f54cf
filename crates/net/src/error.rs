//! Errors of the pod network, with their CNI codes.

use std::net::IpAddr;

use kelson_ranges::RangesError;

/// An error of the pod network.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// An error with a file, socket or process of the host.
    #[error("{what}: {source}")]
    Io {
        /// The operation, with the path.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The kernel rejected a change of links, addresses or routes.
    #[error("{what}: {message}")]
    Netlink {
        /// The operation that failed.
        what: String,
        /// The kernel's error message.
        message: String,
        /// The error number, positive; 0 when there is none.
        errno: i32,
    },
    /// The rules could not be applied.
    #[error(transparent)]
    Nft(#[from] crate::nft::NftError),
    /// A program failed; its output is kept.
    #[error("{program} failed: {message}")]
    Program {
        /// The program that was run, such as `iptables`.
        program: &'static str,
        /// The end of its standard error.
        message: String,
    },
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// No free address is left.
    #[error("no IP addresses available in range set: {subnet} ({used} in use)")]
    Exhausted {
        /// The node's pod CIDR.
        subnet: ipnet::IpNet,
        /// The number of addresses in use.
        used: usize,
    },
    /// Another pod uses this host port.
    #[error("host port {port}/{protocol} on {host_ip} is in use by container {container}")]
    PortInUse {
        /// The port of the host.
        port: u16,
        /// The protocol: tcp, udp or sctp.
        protocol: crate::ports::Protocol,
        /// The address of the host; unspecified means all.
        host_ip: IpAddr,
        /// The container that uses it.
        container: String,
    },
    /// The state that CHECK expects does not exist.
    #[error("{0}")]
    Check(String),
}

impl From<RangesError> for NetError {
    fn from(error: RangesError) -> Self {
        match error {
            RangesError::Io { what, source } => Self::Io { what, source },
            RangesError::Refused(why) => Self::Config(why),
        }
    }
}

impl NetError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> NetError {
        let what = what.into();
        move |source| NetError::Io { what, source }
    }

    /// Returns the CNI error code: below 100 those of the specification, from 100 on this plugin's.
    pub fn cni_code(&self) -> u32 {
        match self {
            NetError::Io { .. } => 5,
            NetError::Config(_) => 7,
            // "Try again later": an address may become free.
            NetError::Exhausted { .. } => 11,
            NetError::Netlink { .. } => 100,
            NetError::Program { .. } | NetError::Nft(_) => 101,
            NetError::PortInUse { .. } => 102,
            NetError::Check(_) => 103,
        }
    }
}
