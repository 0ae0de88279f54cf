//! Addresses and system errors in the form of upstream's messages.

/// Formats `host:port`, with brackets around an IPv6 address.
pub fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Formats a system error like Go.
pub fn os_text(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::ConnectionReset => "connection reset by peer".into(),
        std::io::ErrorKind::HostUnreachable => "no route to host".into(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        _ => e.to_string(),
    }
}
