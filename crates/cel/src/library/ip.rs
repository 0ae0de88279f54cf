//! The IP library: addresses without zones and without IPv4-mapped IPv6.
use std::net::{IpAddr, Ipv6Addr};

use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};
use crate::value::opaque::Opaque;

const UNIT: Rule = Rule::Fixed(1);

pub(super) const ROWS: &[Row] = &[
    Row("string_to_ip", "ip(string) -> net.IP", ip, Rule::Read(1.0)),
    Row("ip_family", "<net.IP>.family() -> int", family, UNIT),
    Row("ip_is_canonical", "ip.isCanonical(string) -> bool", is_canonical, Rule::Read(2.0)),
    Row("ip_is_unspecified", "<net.IP>.isUnspecified() -> bool", is_unspecified, UNIT),
    Row("ip_is_loopback", "<net.IP>.isLoopback() -> bool", is_loopback, UNIT),
    Row("ip_is_link_local_multicast", "<net.IP>.isLinkLocalMulticast() -> bool", is_link_local_multicast, UNIT),
    Row("ip_is_link_local_unicast", "<net.IP>.isLinkLocalUnicast() -> bool", is_link_local_unicast, UNIT),
    Row("ip_is_global_unicast", "<net.IP>.isGlobalUnicast() -> bool", is_global_unicast, UNIT),
    Row("is_ip", "isIP(string) -> bool", is_ip, Rule::Read(1.0)),
    Row("ip_to_string", "string(net.IP) -> string", to_string, Rule::One),
];

/// Parses an address.
pub(super) fn parse(s: &str) -> Result<IpAddr> {
    if let Some((address, zone)) = s.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
        && !zone.is_empty()
    {
        return Err(EvalError::new(format!("IP address {s:?} with zone value is not allowed")));
    }
    let address: IpAddr = s.parse().map_err(|_| {
        let why = if s.contains([':', '.']) { "unexpected character" } else { "unable to parse IP" };
        EvalError::new(format!("IP Address {s:?} parse error during conversion from string: ParseAddr({s:?}): {why}"))
    })?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(EvalError::new(format!("IPv4-mapped IPv6 address {s:?} is not allowed")))
        }
        address => Ok(address),
    }
}

fn text<'v>(function: &str, args: &'v [Value<'_>]) -> Result<&'v str> {
    match args {
        [Value::Text(s)] => Ok(s),
        _ => Err(not_for(function, args)),
    }
}

fn ip<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    parse(text("ip", args)?).map(|ip| Value::Opaque(Opaque::Ip(ip)))
}
fn is_ip<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(parse(text("isIP", args)?).is_ok()))
}
fn is_canonical<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let s = text("ip.isCanonical", args)?;
    Ok(Value::Bool(parse(s)?.to_string() == s))
}

fn address(function: &str, args: &[Value<'_>]) -> Result<IpAddr> {
    match args {
        [Value::Opaque(Opaque::Ip(ip))] => Ok(*ip),
        _ => Err(not_for(function, args)),
    }
}

fn family<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Int(if address("family", args)?.is_ipv4() { 4 } else { 6 }))
}
fn to_string<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::text(address("string", args)?.to_string()))
}
fn is_unspecified<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(address("isUnspecified", args)?.is_unspecified()))
}
fn is_loopback<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(address("isLoopback", args)?.is_loopback()))
}

fn link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_multicast<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(match address("isLinkLocalMulticast", args)? {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }))
}
fn is_link_local_unicast<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    address("isLinkLocalUnicast", args).map(|ip| Value::Bool(link_local_unicast(ip)))
}
fn is_global_unicast<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let ip = address("isGlobalUnicast", args)?;
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    let other = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local_unicast(ip);
    Ok(Value::Bool(!broadcast && !other))
}
