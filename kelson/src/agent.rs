//! The node: container runtime, pod network, kubelet and service proxy, joined to an API server as any node is.
use std::path::Path;

use crate::cli::{AgentArgs, NodeArgs};
use crate::token::Token;

/// What a node needs to join.
#[derive(Clone)]
pub struct Join {
    /// `https://HOST:PORT` of the API server.
    pub server: String,
    /// CA that its certificate leads to.
    pub ca_pem: String,
    /// Bootstrap token.
    pub token: Token,
}

impl Join {
    /// From the command line.
    pub async fn from_token(args: &AgentArgs) -> anyhow::Result<Self> {
        let token = Token::parse(&args.token)?;
        let Some(file) = &args.server_ca else { anyhow::bail!("--server-ca is required") };
        Ok(Self { server: args.server.clone(), ca_pem: std::fs::read_to_string(file)?, token })
    }
}

/// A running node.
pub struct Node {}

impl Node {
    /// Starts everything.
    pub async fn start(_dir: &Path, _args: &NodeArgs, _join: Join) -> anyhow::Result<Self> {
        anyhow::bail!("this build has no node agent: use --disable-agent")
    }
    /// Ends it; containers stay.
    pub async fn shutdown(self) {}
}
