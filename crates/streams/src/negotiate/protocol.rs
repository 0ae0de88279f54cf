//! The results of a negotiation: the version of a remote command, its options, and the protocol that carries its
//! streams.
use kelson_meta::url::Query;

/// The versions of the remote command protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemoteCommandVersion {
    /// The first version, which has no number.
    V1,
    /// The end of each stream is signalled.
    V2,
    /// Adds a stream for the size of the terminal.
    V3,
    /// The error stream carries a `Status`.
    V4,
    /// A client can end stdin over WebSocket.
    V5,
}

impl RemoteCommandVersion {
    /// The versions that a SPDY server accepts.
    pub const SPDY_SERVER: [Self; 4] = [Self::V4, Self::V3, Self::V2, Self::V1];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "channel.k8s.io",
            Self::V2 => "v2.channel.k8s.io",
            Self::V3 => "v3.channel.k8s.io",
            Self::V4 => "v4.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }

    /// Returns the version with this name. An empty name means the first version, as in upstream.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::V1, Self::V2, Self::V3, Self::V4, Self::V5]
            .into_iter()
            .find(|version| version.name() == name || name.is_empty())
    }

    pub(crate) fn json_status(self) -> bool {
        self >= Self::V4
    }

    pub(crate) fn resizes(self) -> bool {
        self >= Self::V3
    }
}

/// The streams that an exec or attach request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// The client sends input.
    pub stdin: bool,
    /// The client receives output.
    pub stdout: bool,
    /// The client receives error output. Never together with `tty`.
    pub stderr: bool,
    /// Whether the command has a terminal, whose size may change.
    pub tty: bool,
}

impl ExecOptions {
    /// Parses the query of the kubelet's and the runtime's paths, `input=1&output=1&error=1&tty=1`, or of the API's,
    /// `stdin=true&stdout=true&stderr=true&tty=true`. Error output is dropped if there is a terminal.
    ///
    /// # Errors
    /// Fails if the query requests no stream, with upstream's message.
    pub fn from_query(query: Option<&str>) -> Result<Self, String> {
        let mut options = Self::default();
        for (name, value) in Query::parse(query).pairs() {
            let set = matches!(value, "1" | "true" | "True" | "TRUE" | "t" | "T");
            match name {
                "input" | "stdin" => options.stdin |= set,
                "output" | "stdout" => options.stdout |= set,
                "error" | "stderr" => options.stderr |= set,
                "tty" => options.tty |= set,
                _ => {}
            }
        }
        options.stderr &= !options.tty;
        if !options.stdin && !options.stdout && !options.stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr".into());
        }
        Ok(options)
    }

    /// Formats the query of the kubelet's and the runtime's paths.
    pub fn to_query(self) -> String {
        let named = [("input", self.stdin), ("output", self.stdout), ("error", self.stderr), ("tty", self.tty)];
        let set: Vec<_> = named.iter().filter(|(_, set)| *set).map(|(name, _)| format!("{name}=1")).collect();
        set.join("&")
    }
}

/// The protocols that carry the streams of an exec or attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecProtocol {
    /// Each stream is a SPDY stream on a connection that was upgraded to SPDY/3.1.
    Spdy(RemoteCommandVersion),
    /// The first byte of each WebSocket message names the stream.
    WebSocket {
        /// The version. V1 if the client named none.
        version: RemoteCommandVersion,
        /// Whether messages are base64 strings.
        base64: bool,
    },
}

/// The protocols that carry the streams of a port-forward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortForwardProtocol {
    /// A pair of SPDY streams for each connection.
    Spdy,
    /// SPDY in WebSocket messages.
    Tunnel,
    /// Two WebSocket channels for each port of the query.
    Channels {
        /// The ports, in the order of their channels.
        ports: Vec<u16>,
        /// Whether messages are base64 strings.
        base64: bool,
    },
}
