//! IP addresses and CIDRs in fields, and their accepted forms (apimachinery `util/validation/ip.go`, KEP-4858). Older
//! fields accept any unambiguous form; newer ones only the canonical form.
use std::net::{IpAddr, Ipv4Addr};

use crate::path::{Errors, Path};

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Validates an address in a field from before the strict rules. Values of the old object (`kept`) may stay.
pub fn ip(s: &str, kept: &[&str], p: &Path<'_>, e: &mut Errors) {
    if !kept.contains(&s)
        && let Err(why) = strict_ip(s)
    {
        e.invalid(p, s, why);
    }
}

/// Validates an address in a field that only accepts the canonical form.
pub fn canonical_ip(s: &str) -> Result<(), String> {
    let ip = strict_ip(s)?;
    if ip.to_string() == s { Ok(()) } else { Err(format!("must be in canonical form ({:?})", ip.to_string())) }
}

/// Validates a CIDR in a field from before the strict rules. Values of the old object (`kept`) may stay.
pub fn cidr(s: &str, kept: &[&str], p: &Path<'_>, e: &mut Errors) {
    if !kept.contains(&s)
        && let Err(why) = strict_cidr(s)
    {
        e.invalid(p, s, why);
    }
}

/// Validates a CIDR in a field that only accepts the canonical form.
pub fn canonical_cidr(s: &str, p: &Path<'_>, e: &mut Errors) {
    match strict_cidr(s) {
        Err(why) => e.invalid(p, s, why),
        Ok((ip, bits)) => {
            let canonical = format!("{ip}/{bits}");
            if canonical != s {
                e.invalid(p, s, format!("must be in canonical form ({canonical:?})"));
            }
        }
    }
}

/// Parses an address as Go's older parser does: octets may have leading zeros.
pub fn parse_ip(s: &str) -> Option<IpAddr> {
    if let Ok(ip) = s.parse() {
        return Some(ip);
    }
    let octet = |part: &str| {
        let plain = part.trim_start_matches('0');
        let digits = !part.is_empty() && plain.bytes().all(|c| c.is_ascii_digit());
        digits.then(|| if plain.is_empty() { Some(0) } else { plain.parse::<u8>().ok() }).flatten()
    };
    let octets: Option<Vec<u8>> = s.split('.').map(octet).collect();
    let octets: [u8; 4] = octets?.try_into().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(octets)))
}

/// Parses address and prefix length of a CIDR as Go's older parser does.
pub fn parse_cidr(s: &str) -> Option<(IpAddr, u8)> {
    let (ip, bits) = s.split_once('/')?;
    let ip = parse_ip(ip)?;
    if bits.is_empty() || !bits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let bits: u8 = bits.parse().ok()?;
    (bits <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, bits))
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn strict_ip(s: &str) -> Result<IpAddr, String> {
    let ip = parse_ip(s).ok_or(NO_IP)?;
    if s.parse::<IpAddr>().is_err() {
        return Err("must not have leading 0s".to_owned());
    }
    if is_mapped(ip) { Err("must not be an IPv4-mapped IPv6 address".to_owned()) } else { Ok(ip) }
}

fn strict_cidr(s: &str) -> Result<(IpAddr, u8), String> {
    let (ip, bits) = parse_cidr(s).ok_or(NO_CIDR)?;
    let (address, prefix) = s.split_once('/').ok_or(NO_CIDR)?;
    if address.parse::<IpAddr>().is_err() || (prefix.len() > 1 && prefix.starts_with('0')) {
        return Err("must not have leading 0s in IP or prefix length".to_owned());
    }
    if is_mapped(ip) {
        return Err("must not have an IPv4-mapped IPv6 address".to_owned());
    }
    let beyond = match ip {
        IpAddr::V4(v4) => u32::from(v4).checked_shl(u32::from(bits)).unwrap_or(0) != 0,
        IpAddr::V6(v6) => u128::from(v6).checked_shl(u32::from(bits)).unwrap_or(0) != 0,
    };
    if beyond { Err("must not have bits set beyond the prefix length".to_owned()) } else { Ok((ip, bits)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        for (s, legacy, canonical) in [
            ("10.0.0.1", true, true),
            ("fd00::1", true, true),
            ("FD00:0::1", true, false),
            ("010.0.0.1", false, false),
            ("::ffff:10.0.0.1", false, false),
            ("a", false, false),
            ("", false, false),
        ] {
            let mut e = Errors::new();
            ip(s, &[], &Path::new("ip"), &mut e);
            assert_eq!((e.is_empty(), canonical_ip(s).is_ok()), (legacy, canonical), "{s}");
            let mut e = Errors::new();
            ip(s, &[s], &Path::new("ip"), &mut e);
            assert!(e.is_empty(), "{s} was there before");
        }
        for (s, legacy, canonical) in [
            ("10.0.0.0/8", true, true),
            ("0.0.0.0/0", true, true),
            ("fd00::/8", true, true),
            ("FD00::/8", true, false),
            ("10.0.0.1/8", false, false),
            ("fd00::1/8", false, false),
            ("10.0.0.0/08", false, false),
            ("10.0.0.0/+8", false, false),
            ("10.0.0.0/33", false, false),
            ("::ffff:10.0.0.0/104", false, false),
            ("10.0.0.1/32", true, true),
        ] {
            let faults = |check: &dyn Fn(&mut Errors)| {
                let mut e = Errors::new();
                check(&mut e);
                e.len()
            };
            let p = Path::new("cidr");
            assert_eq!(faults(&|e| cidr(s, &[], &p, e)) == 0, legacy, "{s}");
            assert_eq!(faults(&|e| canonical_cidr(s, &p, e)) == 0, canonical, "{s}");
        }
    }
}
