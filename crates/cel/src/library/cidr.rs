//! The CIDR library: ranges of IP addresses.
use std::net::IpAddr;

use super::ip;
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};
use crate::value::opaque::Opaque;

const UNIT: Rule = Rule::Fixed(1);

pub(super) const ROWS: &[Row] = &[
    Row("string_to_cidr", "cidr(string) -> net.CIDR", cidr, Rule::Read(1.0)),
    Row("cidr_contains_ip_string", "<net.CIDR>.containsIP(string) -> bool", contains_ip, Rule::ContainsIp(true)),
    Row("cidr_contains_ip_ip", "<net.CIDR>.containsIP(net.IP) -> bool", contains_ip, Rule::ContainsIp(false)),
    Row(
        "cidr_contains_cidr_string",
        "<net.CIDR>.containsCIDR(string) -> bool",
        contains_cidr,
        Rule::ContainsCidr(true),
    ),
    Row("cidr_contains_cidr", "<net.CIDR>.containsCIDR(net.CIDR) -> bool", contains_cidr, Rule::ContainsCidr(false)),
    Row("cidr_ip", "<net.CIDR>.ip() -> net.IP", address, UNIT),
    Row("cidr_prefix_length", "<net.CIDR>.prefixLength() -> int", prefix_length, UNIT),
    Row("cidr_masked", "<net.CIDR>.masked() -> net.CIDR", masked, UNIT),
    Row("is_cidr", "isCIDR(string) -> bool", is_cidr, Rule::Read(1.0)),
    Row("cidr_to_string", "string(net.CIDR) -> string", to_string, Rule::One),
];

fn parse(s: &str) -> Result<(IpAddr, u8)> {
    let wrong = |why: &str| {
        EvalError::new(format!(
            "network address parse error during conversion from string: network address parse error during conversion \
             from string: netip.ParsePrefix({s:?}): {why}"
        ))
    };
    let (address, bits) = s.rsplit_once('/').ok_or_else(|| wrong("no '/'"))?;
    let ip: IpAddr = address.parse().map_err(|_| wrong(&format!("ParseAddr({address:?}): unable to parse IP")))?;
    let plain =
        !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && (bits.len() == 1 || !bits.starts_with('0'));
    let length: u8 = if plain { bits.parse().ok() } else { None }
        .ok_or_else(|| wrong(&format!("bad bits after slash: {bits:?}")))?;
    if length > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(wrong("prefix length out of range"));
    }
    if matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        let message = format!(
            "network address parse error during conversion from string: IPv4-mapped IPv6 address {s:?} is not allowed"
        );
        return Err(EvalError::new(message));
    }
    Ok((ip, length))
}

/// The bits of the network, as the upper bits of 128.
fn network(ip: IpAddr, length: u8) -> u128 {
    let bits = match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    if length == 0 { 0 } else { bits & (u128::MAX << (128 - u32::from(length))) }
}

fn own(function: &str, args: &[Value<'_>]) -> Result<(IpAddr, u8)> {
    match args {
        [Value::Opaque(Opaque::Cidr(ip, length)), ..] => Ok((*ip, *length)),
        _ => Err(not_for(function, args)),
    }
}

fn cidr<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => parse(s).map(|(ip, length)| Value::Opaque(Opaque::Cidr(ip, length))),
        _ => Err(not_for("cidr", args)),
    }
}
fn is_cidr<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::Bool(parse(s).is_ok())),
        _ => Err(not_for("isCIDR", args)),
    }
}

fn contains_ip<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (ip, length) = own("containsIP", args)?;
    let other = match args.get(1) {
        Some(Value::Text(s)) => ip::parse(s)?,
        Some(Value::Opaque(Opaque::Ip(ip))) => *ip,
        _ => return Err(not_for("containsIP", args)),
    };
    Ok(Value::Bool(ip.is_ipv4() == other.is_ipv4() && network(ip, length) == network(other, length)))
}

fn contains_cidr<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (ip, length) = own("containsCIDR", args)?;
    let (other, other_length) = match args.get(1) {
        Some(Value::Text(s)) => parse(s)?,
        Some(Value::Opaque(Opaque::Cidr(ip, length))) => (*ip, *length),
        _ => return Err(not_for("containsCIDR", args)),
    };
    let inside = length <= other_length && network(ip, length) == network(other, length);
    Ok(Value::Bool(ip.is_ipv4() == other.is_ipv4() && inside))
}

fn address<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("ip", args).map(|(ip, _)| Value::Opaque(Opaque::Ip(ip)))
}
fn prefix_length<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("prefixLength", args).map(|(_, length)| Value::Int(i64::from(length)))
}
fn to_string<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    own("string", args).map(|(ip, length)| Value::text(format!("{ip}/{length}")))
}
fn masked<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (ip, length) = own("masked", args)?;
    let bits = network(ip, length);
    let ip = match ip {
        IpAddr::V4(_) => IpAddr::V4(((bits >> 96) as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(bits.into()),
    };
    Ok(Value::Opaque(Opaque::Cidr(ip, length)))
}
