//! Small transactions of nftables in the kernel's own form (`linux/netfilter/nf_tables.h`), sent without `nft`. Before `nft` changes
//! anything it reads every chain of the table, which costs more than the change itself where a table has ten thousand of them.
//!
//! Only what the tables of this program change all the time is known here: elements of plain sets and verdict maps, and chains of
//! rules that send a connection on. Everything else is left to `nft`, which understands the same text.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::family::Family;
use crate::nf_tables as wire;
use crate::nft;
use crate::set_type::{Data, SetType, octets, protocol};

/// Changes in one batch; more of them are faster through `nft` than worth a message each.
const CHANGES_MAX: usize = 256;
/// Bytes of one batch, so that it fits into the socket's buffer.
const BYTES_MAX: usize = 64 << 10;
/// Elements in one message, whose attributes have lengths of 16 bits.
const ELEMENTS_PER_MESSAGE: usize = 128;
/// The kernel answers before the sending returns; this is against waiting for an answer that was lost.
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
const BUFFER_BYTES: usize = 16 << 10;

/// Something in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject<'a> {
    /// An element of a set or map, by the container's name and the key. The value is a map's data, empty in a set.
    Element(&'a str, &'a str),
    /// A chain, by its name. The value is its rules, one a line.
    Chain(&'a str),
    /// A change that only `nft` can make.
    Other,
}

/// A subject with its value in the kernel and the one that it gets; `None` where it is absent.
pub(crate) struct SubjectChange<'a> {
    pub subject: Subject<'a>,
    pub before: Option<&'a str>,
    pub after: Option<&'a str>,
}

/// A transaction in the kernel's form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    messages: u32,
    /// The offset of the last message.
    last: usize,
}

/// The batch of these changes of a table (`ip NAME`); `None` where `nft` is needed. `specification` gives that of a set or map, such as
/// `type ipv4_addr . inet_proto . inet_service : verdict`.
pub(crate) fn encode<'a>(
    table: &str,
    specification: impl Fn(&str) -> Option<&'a str>,
    changes: &[SubjectChange<'_>],
) -> Option<Batch> {
    if changes.len() > CHANGES_MAX {
        return None;
    }
    let (family, table) = match table.split_once(' ')? {
        ("ip", table) => (Family::V4, table),
        ("ip6", table) => (Family::V6, table),
        _ => return None,
    };
    let mut batch = Batch::default();
    let mut writer = Writer { family, table, batch: &mut batch };
    writer.begin();
    let (mut elements, mut chains) = (Vec::new(), Vec::new());
    for change in changes {
        match change.subject {
            Subject::Element(set, key) => elements.push(((set, key), change)),
            Subject::Chain(name) => chains.push((name, change)),
            Subject::Other => return None,
        }
    }
    // The order of the script for nft: nothing is named before it exists, or deleted while it is named.
    for some in by_set(&elements, |change| change.before) {
        writer.elements(wire::DEL_ELEMENTS, &some, &specification)?;
    }
    for (name, _) in chains.iter().filter(|(_, change)| change.before.is_some()) {
        writer.message(wire::DEL_RULE, 0, |m| m.text(wire::RULE_CHAIN, name));
    }
    for (name, _) in chains.iter().filter(|(_, change)| change.before.is_none()) {
        writer.message(wire::NEW_CHAIN, wire::CREATE, |m| m.text(wire::CHAIN_NAME, name));
    }
    for (name, change) in &chains {
        for rule in change.after.unwrap_or_default().lines() {
            writer.rule(name, rule)?;
        }
    }
    for some in by_set(&elements, |change| change.after) {
        writer.elements(wire::NEW_ELEMENTS, &some, &specification)?;
    }
    for (name, _) in chains.iter().filter(|(_, change)| change.after.is_none()) {
        writer.message(wire::DEL_CHAIN, 0, |m| m.text(wire::CHAIN_NAME, name));
    }
    if writer.batch.messages == 1 {
        return None;
    }
    writer.end();
    (batch.bytes.len() <= BYTES_MAX).then_some(batch)
}

/// Elements of one set, in the pieces of a message each: the set, and keys with data.
type Elements<'a> = (&'a str, Vec<(&'a str, &'a str)>);

fn by_set<'a>(
    elements: &[((&'a str, &'a str), &'a SubjectChange<'_>)],
    value: impl Fn(&'a SubjectChange<'_>) -> Option<&'a str>,
) -> Vec<Elements<'a>> {
    let mut all: Vec<Elements<'a>> = Vec::new();
    for ((set, key), change) in elements {
        let Some(value) = value(change) else { continue };
        match all.last_mut() {
            Some((last, list)) if last == set && list.len() < ELEMENTS_PER_MESSAGE => list.push((key, value)),
            _ => all.push((set, vec![(key, value)])),
        }
    }
    all
}

/// Writes messages of one table.
struct Writer<'a> {
    family: Family,
    table: &'a str,
    batch: &'a mut Batch,
}

impl Writer<'_> {
    /// A message of nfnetlink: header, the family and what follows.
    fn raw(&mut self, kind: u16, flags: u16, family: u8, resource: u16, write: impl FnOnce(&mut Attributes<'_>)) {
        let bytes = &mut self.batch.bytes;
        let start = bytes.len();
        self.batch.last = start;
        bytes.extend([0; 4]);
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((wire::REQUEST | flags).to_ne_bytes());
        bytes.extend(self.batch.messages.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend([family, 0]);
        bytes.extend(resource.to_be_bytes());
        write(&mut Attributes(bytes));
        let length = u32::try_from(bytes.len() - start).unwrap_or(u32::MAX);
        bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.batch.messages += 1;
    }

    fn begin(&mut self) {
        self.raw(wire::BATCH_BEGIN, 0, 0, wire::SUBSYSTEM, |_| {});
    }

    /// Ends the batch. The kernel answers to what it rejects, and to the last change.
    fn end(&mut self) {
        let at = self.batch.last + wire::FLAGS_AT;
        if let Some(flags) = self.batch.bytes.get_mut(at..at + 2) {
            let asked = u16::from_ne_bytes([flags[0], flags[1]]) | wire::ACK;
            flags.copy_from_slice(&asked.to_ne_bytes());
        }
        self.raw(wire::BATCH_END, 0, 0, wire::SUBSYSTEM, |_| {});
    }

    fn message(&mut self, kind: u16, flags: u16, write: impl FnOnce(&mut Attributes<'_>)) {
        let family = match self.family {
            Family::V4 => 2,
            Family::V6 => 10,
        };
        let table = self.table;
        self.raw(wire::SUBSYSTEM << 8 | kind, flags, family, 0, |m| {
            m.text(wire::TABLE, table);
            write(m);
        });
    }

    fn elements<'a, 'b>(
        &mut self,
        kind: u16,
        (set, list): &Elements<'b>,
        specification: &impl Fn(&str) -> Option<&'a str>,
    ) -> Option<()> {
        let set_type = SetType::parse(specification(set)?)?;
        let encode = |(key, data): &(&str, &'b str)| Some((set_type.key(key)?, set_type.data(data)?));
        let encoded: Vec<(Vec<u8>, Data<'b>)> = list.iter().map(encode).collect::<Option<_>>()?;
        let flags = if kind == wire::NEW_ELEMENTS { wire::CREATE } else { 0 };
        self.message(kind, flags, |m| {
            m.text(wire::ELEMENTS_SET, set);
            m.nest(wire::ELEMENTS_LIST, |list| {
                for (key, data) in &encoded {
                    list.nest(wire::LIST_ENTRY, |entry| {
                        entry.nest(wire::ELEMENT_KEY, |attributes| attributes.bytes(wire::DATA_VALUE, key));
                        match data {
                            Data::None => {}
                            Data::Verdict(of) => entry.nest(wire::ELEMENT_DATA, |attributes| attributes.verdict(*of)),
                            Data::Value(value) => {
                                entry.nest(wire::ELEMENT_DATA, |attributes| attributes.bytes(wire::DATA_VALUE, value));
                            }
                        }
                    });
                }
            });
        });
        Some(())
    }

    fn rule(&mut self, chain: &str, text: &str) -> Option<()> {
        let expressions = expressions(self.family, text)?;
        self.message(wire::NEW_RULE, wire::CREATE | wire::APPEND, |m| {
            m.text(wire::RULE_CHAIN, chain);
            m.nest(wire::RULE_EXPRESSIONS, |list| {
                expressions.iter().for_each(|e| list.nest(wire::LIST_ENTRY, |entry| e.write(entry)));
            });
        });
        Some(())
    }
}

/// Attributes at the end of a message.
struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    fn nest(&mut self, kind: u16, write: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | wire::NESTED).to_ne_bytes());
        write(&mut Attributes(self.0));
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn verdict(&mut self, (code, chain): (i32, Option<&str>)) {
        self.nest(wire::DATA_VERDICT, |verdict| {
            verdict.bytes(wire::VERDICT_CODE, &code.to_be_bytes());
            if let Some(chain) = chain {
                verdict.text(wire::VERDICT_CHAIN, chain);
            }
        });
    }
}

/// One expression of a rule.
#[derive(Debug, PartialEq, Eq)]
enum Expression<'a> {
    /// Loads the transport protocol.
    LoadProtocol,
    /// Loads a random number below this.
    LoadRandom(u32),
    /// Ends the rule where what was loaded is something else.
    CompareEqual(Vec<u8>),
    Load(u32, Vec<u8>),
    Verdict(i32, Option<&'a str>),
    /// Translates the destination to the address and the port that were loaded.
    Translate(Family),
}

/// The expressions of a rule; `None` for one that has others.
fn expressions(family: Family, text: &str) -> Option<Vec<Expression<'_>>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (mut rest, mut all) = (words.as_slice(), Vec::new());
    loop {
        rest = match rest {
            ["meta", "l4proto", name, rest @ ..] => {
                all.extend([Expression::LoadProtocol, Expression::CompareEqual(vec![protocol(name)?])]);
                rest
            }
            ["numgen", "random", "mod", modulus, "0", rest @ ..] => {
                all.extend([Expression::LoadRandom(modulus.parse().ok()?), Expression::CompareEqual(vec![0; 4])]);
                rest
            }
            ["dnat", ip, "to", to] if *ip == family.as_str() => {
                let to: SocketAddr = to.parse().ok()?;
                if Family::of(&to.ip()) != family {
                    return None;
                }
                all.push(Expression::Load(wire::REGISTER_1, octets(to.ip())));
                all.push(Expression::Load(wire::REGISTER_2, to.port().to_be_bytes().to_vec()));
                all.push(Expression::Translate(family));
                return Some(all);
            }
            ["jump", chain] => {
                all.push(Expression::Verdict(wire::JUMP, Some(chain)));
                return Some(all);
            }
            ["goto", chain] => {
                all.push(Expression::Verdict(wire::GOTO, Some(chain)));
                return Some(all);
            }
            ["drop"] => {
                all.push(Expression::Verdict(wire::DROP, None));
                return Some(all);
            }
            _ => return None,
        };
    }
}

impl Expression<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::LoadProtocol => "meta",
            Self::LoadRandom(_) => "numgen",
            Self::CompareEqual(_) => "cmp",
            Self::Load(..) | Self::Verdict(..) => "immediate",
            Self::Translate(_) => "nat",
        }
    }

    fn write(&self, to: &mut Attributes<'_>) {
        to.text(wire::EXPRESSION_NAME, self.name());
        to.nest(wire::EXPRESSION_DATA, |data| match self {
            Self::LoadProtocol => {
                data.number(1, wire::REGISTER_1);
                data.number(2, wire::META_L4PROTO);
            }
            Self::LoadRandom(modulus) => {
                data.number(1, wire::REGISTER_1);
                data.number(2, *modulus);
                data.number(3, wire::RANDOM);
                data.number(4, 0);
            }
            Self::CompareEqual(value) => {
                data.number(1, wire::REGISTER_1);
                data.number(2, wire::CMP_EQUAL);
                data.nest(3, |data| data.bytes(wire::DATA_VALUE, value));
            }
            Self::Load(register, value) => {
                data.number(1, *register);
                data.nest(2, |data| data.bytes(wire::DATA_VALUE, value));
            }
            Self::Verdict(code, chain) => {
                data.number(1, wire::VERDICT_REGISTER);
                data.nest(2, |data| data.verdict((*code, *chain)));
            }
            Self::Translate(family) => {
                data.number(1, wire::DNAT);
                data.number(2, if *family == Family::V4 { 2 } else { 10 });
                data.number(3, wire::REGISTER_1);
                data.number(5, wire::REGISTER_2);
            }
        });
    }
}

/// Sends a batch, which is one transaction. Blocks.
///
/// # Errors
/// The kernel's, for the first message that it rejects; nothing was changed then.
pub(crate) fn send(batch: &Batch) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
    let own = netlink::SocketAddrNetlink::try_from(rustix::net::getsockname(&socket)?)?;
    // Before the kernel reports the changes: they are this program's own.
    nft::remember(Some(own.pid()));
    rustix::net::sendto(&socket, &batch.bytes, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    // Counted from zero, and the end of the batch is not answered.
    receive(&socket, batch.messages.saturating_sub(2))
}

/// Reads until the answer to the message with this number, or to one that was rejected.
fn receive(socket: &OwnedFd, last: u32) -> io::Result<()> {
    let mut buffer = vec![0u8; BUFFER_BYTES];
    loop {
        let (count, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..count];
        while let Some((kind, sequence, code, next)) = answer(rest) {
            match code {
                _ if kind != wire::TYPE_ERROR => {}
                0 if sequence == last => return Ok(()),
                0 => {}
                code => return Err(io::Error::from_raw_os_error(-code)),
            }
            rest = next;
        }
    }
}

/// Type, sequence number and error code of a message, and what follows it.
fn answer(bytes: &[u8]) -> Option<(u16, u32, i32, &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk::<4>()?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let sequence = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk::<4>()?);
    let body = bytes.get(wire::HEADER_BYTES..length)?;
    let code = body.first_chunk::<4>().map_or(0, |code| i32::from_ne_bytes(*code));
    Some((kind, sequence, code, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
