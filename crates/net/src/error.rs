//! What can go wrong in the pod network, and the CNI code of each.

use std::net::IpAddr;

use kelson_ranges::RangesError;

/// A failure of the pod network.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A file, socket or process of the host.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The kernel refused a change of links, addresses or routes.
    #[error("{what}: {message}")]
    Netlink {
        /// What was being done.
        what: String,
        /// The kernel's answer in words.
        message: String,
        /// The error number, positive; 0 when there is none.
        errno: i32,
    },
    /// The rules could not be given to the kernel.
    #[error(transparent)]
    Nft(#[from] crate::nft::NftError),
    /// A helper program failed; its words are kept.
    #[error("{program} failed: {message}")]
    Program {
        /// The program that was run, such as `iptables`.
        program: &'static str,
        /// The last of its standard error.
        message: String,
    },
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// No free address is left.
    #[error("no IP addresses available in range set: {subnet} ({used} in use)")]
    Exhausted {
        /// The node's pod CIDR.
        subnet: ipnet::IpNet,
        /// How many are taken.
        used: usize,
    },
    /// Another pod has this host port.
    #[error("host port {port}/{protocol} on {host_ip} is in use by container {container}")]
    PortInUse {
        /// The port of the host.
        port: u16,
        /// tcp, udp or sctp.
        protocol: crate::ports::Protocol,
        /// The address of the host; unspecified means all.
        host_ip: IpAddr,
        /// Who has it.
        container: String,
    },
    /// The state that CHECK expected is not there.
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

    /// The CNI error code: below 100 the specification's own, from 100 on this plugin's.
    pub fn cni_code(&self) -> u32 {
        match self {
            NetError::Io { .. } => 5,
            NetError::Config(_) => 7,
            // "Try again later": an address may come free.
            NetError::Exhausted { .. } => 11,
            NetError::Netlink { .. } => 100,
            NetError::Program { .. } | NetError::Nft(_) => 101,
            NetError::PortInUse { .. } => 102,
            NetError::Check(_) => 103,
        }
    }
}
