//! The types of nftables sets and maps, as `nft` writes them, and the bytes of their keys and data.

use std::net::IpAddr;

use crate::family::Family;
use crate::nf_tables;
use crate::ports::Protocol;

/// One part of a set's key, or of a map's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Address(Family),
    Protocol,
    Port,
    /// A number of the kernel's, such as a random one.
    Number,
}

/// The type of a map's values.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DataType {
    None,
    Verdict,
    Fields(Vec<Field>),
}

/// The types of a set's keys and values.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SetType {
    key: Vec<Field>,
    data: DataType,
}

/// The data of an element in the kernel's form.
pub(crate) enum Data<'a> {
    None,
    Verdict((i32, Option<&'a str>)),
    Value(Vec<u8>),
}

impl SetType {
    /// `type FIELD . FIELD`, perhaps with `: verdict` or `: FIELD . FIELD`; `None` for sets with flags, time-outs and other types.
    pub fn parse(specification: &str) -> Option<Self> {
        let text = specification.trim().trim_end_matches(';');
        let text = text.strip_prefix("type ").or_else(|| text.strip_prefix("typeof "))?;
        let (key, data) = match text.split_once(" : ") {
            Some((key, "verdict")) => (key, DataType::Verdict),
            Some((key, data)) => (key, DataType::Fields(fields(data)?)),
            None => (text, DataType::None),
        };
        Some(Self { key: fields(key)?, data })
    }

    pub fn key(&self, text: &str) -> Option<Vec<u8>> {
        value(&self.key, text)
    }

    pub fn data<'a>(&self, text: &'a str) -> Option<Data<'a>> {
        match &self.data {
            DataType::None => text.is_empty().then_some(Data::None),
            DataType::Verdict => verdict(text).map(Data::Verdict),
            DataType::Fields(fields) => value(fields, text).map(Data::Value),
        }
    }
}

/// The parts of a concatenation of types or of expressions.
fn fields(text: &str) -> Option<Vec<Field>> {
    let field = |name: &str| match name {
        "ipv4_addr" | "ip daddr" => Some(Field::Address(Family::V4)),
        "ipv6_addr" | "ip6 daddr" => Some(Field::Address(Family::V6)),
        "inet_proto" | "meta l4proto" => Some(Field::Protocol),
        "inet_service" | "th dport" => Some(Field::Port),
        number if number.starts_with("numgen random mod ") => Some(Field::Number),
        _ => None,
    };
    text.split(" . ").map(field).collect()
}

/// The bytes of a key or of data. Each part of a concatenation fills registers of four bytes.
fn value(fields: &[Field], text: &str) -> Option<Vec<u8>> {
    let parts: Vec<&str> = text.split(" . ").collect();
    if parts.len() != fields.len() {
        return None;
    }
    let mut value = Vec::new();
    for (field, part) in fields.iter().zip(parts) {
        match field {
            Field::Address(family) => {
                let ip = part.parse::<IpAddr>().ok()?;
                if Family::of(&ip) != *family {
                    return None;
                }
                value.extend(octets(ip));
            }
            Field::Protocol => value.push(protocol(part)?),
            Field::Port => value.extend(part.parse::<u16>().ok()?.to_be_bytes()),
            // Numbers of the kernel's are in the machine's order of bytes.
            Field::Number => value.extend(part.parse::<u32>().ok()?.to_ne_bytes()),
        }
        if fields.len() > 1 {
            value.resize(value.len().next_multiple_of(4), 0);
        }
    }
    Some(value)
}

pub(crate) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

pub(crate) fn protocol(name: &str) -> Option<u8> {
    [(Protocol::Tcp, 6), (Protocol::Udp, 17), (Protocol::Sctp, 132)]
        .into_iter()
        .find_map(|(protocol, number)| (protocol.to_string() == name).then_some(number))
}

/// Code and chain of a verdict.
pub(crate) fn verdict(text: &str) -> Option<(i32, Option<&str>)> {
    match text.split(' ').collect::<Vec<_>>().as_slice() {
        ["drop"] => Some((nf_tables::DROP, None)),
        ["accept"] => Some((nf_tables::ACCEPT, None)),
        ["return"] => Some((nf_tables::RETURN, None)),
        ["jump", chain] => Some((nf_tables::JUMP, Some(chain))),
        ["goto", chain] => Some((nf_tables::GOTO, Some(chain))),
        _ => None,
    }
}
