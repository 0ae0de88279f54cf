//! Empty flags, and the names of the node's commands.
use std::ffi::OsString;
use std::net::IpAddr;

use clap::{Args, Subcommand};

/// The flags of a server's node: none.
#[derive(Args, Debug, Clone)]
pub struct NodeArgs {}

/// The flags of addresses that servers share: none.
#[derive(Args, Debug, Clone)]
pub struct VipArgs {}

impl VipArgs {
    /// Returns no address.
    pub fn addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }
}

/// The arguments of a command that is not available, including `--help`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Unread {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Commands that only report that they are not available.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    #[command(hide = true)]
    Agent(Unread),
    #[command(hide = true)]
    Check(Unread),
    #[command(hide = true)]
    Status(Unread),
    #[command(hide = true)]
    Upgrade(Unread),
    #[command(hide = true)]
    SupportBundle(Unread),
    #[command(hide = true)]
    CredentialProvider(Unread),
    #[command(hide = true)]
    Image(Unread),
    #[command(hide = true)]
    Network(Unread),
    #[command(hide = true)]
    Cni(Unread),
}

impl NodeCommand {
    /// Returns the name on a command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Agent(_) => "agent",
            Self::Check(_) => "check",
            Self::Status(_) => "status",
            Self::Upgrade(_) => "upgrade",
            Self::SupportBundle(_) => "support-bundle",
            Self::CredentialProvider(_) => "credential-provider",
            Self::Image(_) => "image",
            Self::Network(_) => "network",
            Self::Cni(_) => "cni",
        }
    }
}
