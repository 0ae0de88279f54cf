//! Encodes the parts of X.509 certificates and PKCS#10 requests in DER (RFC 5280, RFC 2986). `x509-parser` decodes
//! them.
use jiff::Timestamp;

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const BOOLEAN: u8 = 0x01;

/// Content octets of the object identifiers used.
pub(crate) mod oid {
    pub const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    pub const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    pub const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
    pub const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
    pub const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    pub const ECDSA_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];
    pub const RSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    pub const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
    pub const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
    pub const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
    pub const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    pub const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
    pub const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
    pub const EXT_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
    pub const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
}

/// One element: tag, length, content.
pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 6);
    out.push(tag);
    let n = content.len();
    if n < 0x80 {
        out.push(n as u8);
    } else {
        let bytes = n.to_be_bytes();
        let skip = bytes.iter().take_while(|b| **b == 0).count();
        out.push(0x80 | (bytes.len() - skip) as u8);
        out.extend_from_slice(&bytes[skip..]);
    }
    out.extend_from_slice(content);
    out
}

/// A sequence of encoded elements.
pub(crate) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

/// Context-specific, constructed `[n]`.
pub(crate) fn explicit(n: u8, content: &[u8]) -> Vec<u8> {
    tlv(0xa0 | n, content)
}

/// Context-specific, primitive `[n]`.
pub(crate) fn implicit(n: u8, content: &[u8]) -> Vec<u8> {
    tlv(0x80 | n, content)
}

/// A non-negative integer from big-endian bytes.
pub(crate) fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let skip = bytes.iter().take_while(|b| **b == 0).count();
    let bytes = &bytes[skip..];
    match bytes.first() {
        None => tlv(INTEGER, &[0]),
        Some(b) if b & 0x80 != 0 => tlv(INTEGER, &[&[0], bytes].concat()),
        Some(_) => tlv(INTEGER, bytes),
    }
}

pub(crate) fn object_id(content: &[u8]) -> Vec<u8> {
    tlv(OID, content)
}

pub(crate) fn octets(content: &[u8]) -> Vec<u8> {
    tlv(OCTET_STRING, content)
}

/// A bit string without unused bits.
pub(crate) fn bits(content: &[u8]) -> Vec<u8> {
    tlv(BIT_STRING, &[&[0], content].concat())
}

/// A named-bit list: bit 0 is the most significant of the first octet; trailing zero bits are cut, as DER wants.
pub(crate) fn named_bits(set: u16) -> Vec<u8> {
    let bytes = set.reverse_bits().to_be_bytes();
    let used = if bytes[1] != 0 { 2 } else { usize::from(bytes[0] != 0) };
    let unused = if used == 0 { 0 } else { bytes[used - 1].trailing_zeros() as u8 };
    tlv(BIT_STRING, &[&[unused], &bytes[..used]].concat())
}

/// `Time` of RFC 5280: UTCTime to 2049, GeneralizedTime from 2050.
pub(crate) fn time(t: Timestamp) -> Vec<u8> {
    let year = t.to_zoned(jiff::tz::TimeZone::UTC).year();
    if (1950..2050).contains(&year) {
        tlv(UTC_TIME, t.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        tlv(GENERALIZED_TIME, t.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

fn attribute(oid: &[u8], text: &str) -> Vec<u8> {
    let printable = text.bytes().all(|b| b.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&b));
    let value = tlv(if printable { PRINTABLE_STRING } else { UTF8_STRING }, text.as_bytes());
    sequence(&[&object_id(oid), &value])
}

/// A distinguished name: organizations (one multi-valued RDN, as Go writes them), then the common name.
pub(crate) fn name(common_name: &str, organizations: &[String]) -> Vec<u8> {
    let mut rdns = Vec::new();
    if !organizations.is_empty() {
        let mut set: Vec<Vec<u8>> = organizations.iter().map(|o| attribute(oid::ORGANIZATION, o)).collect();
        // DER orders the elements of a SET OF.
        set.sort();
        rdns.extend(tlv(SET, &set.concat()));
    }
    if !common_name.is_empty() {
        rdns.extend(tlv(SET, &attribute(oid::COMMON_NAME, common_name)));
    }
    tlv(SEQUENCE, &rdns)
}

pub(crate) fn extension(oid: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let flag = if critical { tlv(BOOLEAN, &[0xff]) } else { Vec::new() };
    sequence(&[&object_id(oid), &flag, &octets(value)])
}

pub(crate) fn basic_constraints(ca: bool) -> Vec<u8> {
    if ca { sequence(&[&tlv(BOOLEAN, &[0xff])]) } else { sequence(&[]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        assert_eq!(unsigned(&[0, 0]), [2, 1, 0]);
        assert_eq!(unsigned(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0, 0x7f]), [2, 1, 0x7f]);
        // digitalSignature (bit 0) and keyEncipherment (bit 2).
        assert_eq!(named_bits(0b101), [3, 2, 5, 0xa0]);
        // decipherOnly is bit 8, in the second octet.
        assert_eq!(named_bits(1 << 8), [3, 3, 7, 0, 0x80]);
        assert_eq!(named_bits(0), [3, 1, 0]);
        assert_eq!(tlv(4, &[0; 200])[..3], [4, 0x81, 200]);
        assert_eq!(tlv(4, &[0; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(&time("2049-12-31T23:59:59Z".parse().unwrap())[2..], b"491231235959Z");
        assert_eq!(&time("2050-01-01T00:00:00Z".parse().unwrap())[2..], b"20500101000000Z");
    }
}
