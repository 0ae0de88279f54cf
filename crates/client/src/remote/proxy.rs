//! Proxies: the TCP connection to a server, made directly or through `proxy-url` of a kubeconfig or what `HTTPS_PROXY` and `NO_PROXY`
//! say (as Go's `net/http`: never for servers on this machine).
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::kubeconfig::Proxy;

/// The way in which a TCP connection is opened.
#[derive(Clone)]
pub(super) enum Way {
    Direct(HttpConnector),
    /// Through an HTTP proxy, by CONNECT.
    Tunnel(Tunnel<HttpConnector>),
    Socks(SocksV5<HttpConnector>),
}

/// A proxy that cannot be used, named by its field or variable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{of}: {fault}")]
pub(super) struct ProxyError {
    /// `proxy-url` or `HTTPS_PROXY`.
    of: &'static str,
    fault: ProxyFault,
}

/// The fault of a proxy's URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProxyFault {
    #[error("must be a URL, got {0:?}")]
    NoUrl(String),
    #[error("{scheme}://{host:?} has no valid host")]
    NoServer { scheme: String, host: String },
    /// Name and password do not fit into a header.
    #[error("failed to parse header value")]
    Credentials,
    #[error("https proxies are not supported; use http or socks5")]
    Https,
    #[error("unsupported scheme {0:?}, must be http or socks5")]
    Scheme(String),
}

impl Way {
    /// The way to the server at `base`.
    ///
    /// # Errors
    /// For a proxy that cannot be used, named by its field or variable.
    pub(super) fn to(base: &Uri, proxy: &Proxy, tcp: HttpConnector) -> Result<Self, ProxyError> {
        Self::by(base, proxy, tcp, |name| std::env::var(name).ok())
    }

    fn by(
        base: &Uri,
        proxy: &Proxy,
        tcp: HttpConnector,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ProxyError> {
        let named = |of| move |fault| ProxyError { of, fault };
        match proxy {
            Proxy::None => Ok(Self::Direct(tcp)),
            Proxy::Url(url) => Self::through(url, tcp).map_err(named("proxy-url")),
            Proxy::Environment => {
                let of = |upper: &str, lower: &str| {
                    [upper, lower].into_iter().filter_map(&variable).find(|value| !value.is_empty())
                };
                match of("HTTPS_PROXY", "https_proxy") {
                    Some(url) if !is_direct(base, &of("NO_PROXY", "no_proxy").unwrap_or_default()) => {
                        // Without a scheme it is of HTTP, as Go reads it.
                        let url = if url.contains("://") { url } else { format!("http://{url}") };
                        Self::through(&url, tcp).map_err(named("HTTPS_PROXY"))
                    }
                    _ => Ok(Self::Direct(tcp)),
                }
            }
        }
    }

    fn through(url: &str, tcp: HttpConnector) -> Result<Self, ProxyFault> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| ProxyFault::NoUrl(url.to_owned()))?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let to = |usual: u16| -> Result<Uri, ProxyFault> {
            let fault = || ProxyFault::NoServer { scheme: scheme.to_owned(), host: host.to_owned() };
            let to: Uri = format!("http://{host}").parse().map_err(|_| fault())?;
            let name = to.host().filter(|name| !name.is_empty()).ok_or_else(fault)?;
            let port = to.port_u16().unwrap_or(usual);
            format!("http://{name}:{port}").parse().map_err(|_| fault())
        };
        let user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (unescaped(name), unescaped(password))
        });
        match scheme {
            "http" => {
                let tunnel = Tunnel::new(to(80)?, tcp);
                let Some((name, password)) = user else { return Ok(Self::Tunnel(tunnel)) };
                let basic = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))));
                Ok(Self::Tunnel(tunnel.with_auth(basic.map_err(|_| ProxyFault::Credentials)?)))
            }
            "socks5" | "socks5h" => {
                let socks = SocksV5::new(to(1080)?, tcp);
                Ok(Self::Socks(match user {
                    Some((name, password)) => socks.with_auth(name, password),
                    None => socks,
                }))
            }
            "https" => Err(ProxyFault::Https),
            other => Err(ProxyFault::Scheme(other.to_owned())),
        }
    }

    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Direct(tcp) => tcp.poll_ready(cx).map_err(io::Error::other),
            Self::Tunnel(tunnel) => tunnel.poll_ready(cx).map_err(io::Error::other),
            Self::Socks(socks) => socks.poll_ready(cx).map_err(|e| io::Error::other(e.to_string())),
        }
    }

    pub(super) async fn connect(&mut self, to: Uri) -> io::Result<TcpStream> {
        let stream = match self {
            Self::Direct(tcp) => tcp.call(to).await.map_err(io::Error::other)?,
            Self::Tunnel(tunnel) => tunnel.call(to).await.map_err(|e| io::Error::other(format!("proxy: {e}")))?,
            Self::Socks(socks) => socks.call(to).await.map_err(|e| io::Error::other(format!("proxy: {e}")))?,
        };
        Ok(stream.into_inner())
    }
}

/// Whether no proxy leads to this server: it is on this machine, or `NO_PROXY` names it (`golang.org/x/net/http/httpproxy`): `*`, an
/// address, a network, a domain with all below it, or after a dot those below it alone; each perhaps with a port.
fn is_direct(base: &Uri, no_proxy: &str) -> bool {
    let host = base.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let (address, port) = (host.parse::<IpAddr>().ok(), base.port_u16().unwrap_or(443));
    if host == "localhost" || address.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Some((network, length)), Some(ip)) = (entry.split_once('/'), address) {
            let parsed = network.parse::<IpAddr>().ok().zip(length.parse::<u32>().ok());
            return parsed.is_some_and(|(network, length)| is_within(ip, network, length));
        }
        let plain = entry.trim_start_matches('[').trim_end_matches(']');
        if let Ok(named) = plain.parse::<IpAddr>() {
            return address == Some(named);
        }
        let (name, of_port) = match entry.rsplit_once(':') {
            Some((name, of_port)) => (name.trim_start_matches('[').trim_end_matches(']'), of_port.parse().ok()),
            None => (entry.as_str(), Some(port)),
        };
        if of_port != Some(port) {
            return false;
        }
        if let Ok(named) = name.parse::<IpAddr>() {
            return address == Some(named);
        }
        let name = name.strip_prefix('*').unwrap_or(name);
        match name.strip_prefix('.') {
            Some(_) => host.ends_with(name),
            None => host == name || host.strip_suffix(name).is_some_and(|below| below.ends_with('.')),
        }
    })
}

fn is_within(ip: IpAddr, network: IpAddr, length: u32) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) if length <= 32 => {
            (ip.to_bits() ^ network.to_bits()).checked_shr(32 - length).unwrap_or(0) == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) if length <= 128 => {
            (ip.to_bits() ^ network.to_bits()).checked_shr(128 - length).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// Decodes percent-encoding such as `%40`.
fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match code.filter(|_| *first == b'%').and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_through_which_proxy() {
        let way = |server: &str, proxy: Proxy, variables: &'static [(&'static str, &'static str)]| {
            let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            let way = Way::by(&server.parse().unwrap(), &proxy, HttpConnector::new(), variable);
            way.map(|way| match way {
                Way::Direct(_) => "direct",
                Way::Tunnel(_) => "tunnel",
                Way::Socks(_) => "socks",
            })
        };
        let set: &[(&str, &str)] = &[
            ("HTTPS_PROXY", "http://p:3128"),
            ("NO_PROXY", "10.0.0.0/8, .svc,example.com,h.example.org:7443,fd00::/8,192.0.2.1"),
        ];
        let environment = |server| way(server, Proxy::Environment, set);
        for (server, wanted) in [
            ("https://api.example.org:6443", "tunnel"),
            ("https://api.example.com:6443", "direct"),
            ("https://example.com", "direct"),
            ("https://badexample.com", "tunnel"),
            ("https://h.example.org:7443", "direct"),
            ("https://h.example.org:7444", "tunnel"),
            ("https://svc", "tunnel"),
            ("https://10.1.2.3:6443", "direct"),
            ("https://11.1.2.3:6443", "tunnel"),
            ("https://192.0.2.1", "direct"),
            ("https://192.0.2.2", "tunnel"),
            ("https://[fd00::1]:6443", "direct"),
            ("https://[fe00::1]:6443", "tunnel"),
            ("https://a.b.svc", "direct"),
            ("https://127.0.0.1:6443", "direct"),
            ("https://[::1]:6443", "direct"),
            ("https://localhost:6443", "direct"),
        ] {
            assert_eq!(environment(server), Ok(wanted), "{server}");
        }
        let api = "https://api.example.org:6443";
        assert_eq!(way(api, Proxy::Environment, &[]), Ok("direct"));
        assert_eq!(way(api, Proxy::Environment, &[("https_proxy", "socks5://p")]), Ok("socks"));
        assert_eq!(way(api, Proxy::Environment, &[("HTTPS_PROXY", "p:3128")]), Ok("tunnel"));
        assert_eq!(way(api, Proxy::Environment, &[("HTTPS_PROXY", "p"), ("NO_PROXY", "*")]), Ok("direct"));
        assert_eq!(unescaped("a%40b%zz%"), "a@b%zz%");
        assert_eq!(way(api, Proxy::None, set), Ok("direct"));
        let url = |url: &str| way(api, Proxy::Url(url.into()), &[]);
        assert_eq!((url("http://u:p@p:1"), url("socks5://p:1080")), (Ok("tunnel"), Ok("socks")));
        let here = way("https://127.0.0.1:1", Proxy::Url("http://p:1".into()), &[]);
        assert_eq!(here, Ok("tunnel"), "what a file names counts for every server");
        for bad in ["https://p:1", "ftp://p:1", "http://[", ""] {
            assert!(url(bad).unwrap_err().to_string().starts_with("proxy-url: "), "{bad}");
        }
        let named = way(api, Proxy::Environment, &[("HTTPS_PROXY", "https://p:1")]).unwrap_err().to_string();
        assert!(named.starts_with("HTTPS_PROXY: "), "{named}");
    }
}
