//! Rewrites the host of requests on Unix sockets, where it has no meaning and need not be valid.
//!
//! etcd's own client sends the socket's path as HTTP/2's `:authority`, with its slashes percent-encoded. Such
//! characters are invalid in a host, so that the request would be rejected before it is read. Each value is therefore
//! overwritten with letters while it is received. A value keeps its encoded length, which is never more than what the
//! client's header table counts for it, so that later references to that table stay valid.
//!
//! On other sockets the host is kept, unless it begins with a scheme: clients of etcd 3.4 send the configured endpoint
//! (`http://127.0.0.1:2379`) in calls of Maintenance. Such a value is replaced by a local one of the same length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The bytes before the headers in a frame with the flag `PRIORITY`.
const PRIORITY_BYTES: usize = 5;
/// The index of `:authority` in the static header table.
const AUTHORITY_INDEX: u8 = 1;
/// The flag of a Huffman-coded string.
const HUFFMAN: u8 = 0x80;
/// Replaces each octet of a host.
const LETTER: u8 = b'e';
/// Replaces a host with a scheme: as much of this as fits, then digits of a port.
const THIS_MACHINE: &[u8] = b"localhost:";
const DIGIT: u8 = b'1';
const ZERO: u8 = b'0';

/// A connection whose requests get another host.
pub(super) struct Nameless<T> {
    io: T,
    heads: Heads,
}

impl<T> Nameless<T> {
    /// Rewrites every host.
    pub fn new(io: T) -> Self {
        Self { io, heads: Heads::of(Rewrites::All) }
    }

    /// Rewrites hosts with a scheme.
    pub fn of_schemes(io: T) -> Self {
        Self { io, heads: Heads::of(Rewrites::WithScheme) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Nameless<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        if let Some(fresh) = buf.filled_mut().get_mut(before..) {
            self.heads.pass(fresh);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Nameless<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Parses the frames of a connection to find their headers.
struct Heads {
    at: At,
    block: Block,
    rewrites: Rewrites,
}

/// The hosts that are rewritten.
#[derive(Clone, Copy, PartialEq)]
enum Rewrites {
    All,
    WithScheme,
}

enum At {
    /// The number of octets of HTTP/2's preface received.
    Preface(usize),
    /// The connection does not use HTTP/2.
    Elsewhere,
    /// The octets of a frame's head received.
    Head([u8; FRAME_HEAD_BYTES], usize),
    Payload(Payload),
}

/// The part of a frame that has not been received.
struct Payload {
    left: usize,
    /// Whether the next octet is the length of the padding.
    padded: bool,
    /// The number of octets before the headers.
    before: usize,
    padding: usize,
    headers: bool,
    ends_headers: bool,
}

impl Heads {
    fn of(rewrites: Rewrites) -> Self {
        Self { at: At::Preface(0), block: Block::Field, rewrites }
    }

    fn pass(&mut self, mut bytes: &mut [u8]) {
        loop {
            // Other frames are skipped as a whole.
            let step = match &self.at {
                At::Elsewhere => return,
                At::Payload(payload) if !payload.headers => payload.left.min(bytes.len()),
                _ => 0,
            };
            let rest = std::mem::take(&mut bytes).split_at_mut(step).1;
            if let At::Payload(payload) = &mut self.at {
                payload.left -= step;
            }
            self.end_of_frame();
            let Some((octet, rest)) = rest.split_first_mut() else { return };
            self.octet(octet, rest);
            self.end_of_frame();
            bytes = rest;
        }
    }

    /// Parses an octet. `ahead` has the octets received after it.
    fn octet(&mut self, octet: &mut u8, ahead: &[u8]) {
        match &mut self.at {
            At::Elsewhere => {}
            At::Preface(seen) if PREFACE.get(*seen) != Some(octet) => self.at = At::Elsewhere,
            At::Preface(seen) => {
                *seen += 1;
                if *seen == PREFACE.len() {
                    self.at = At::Head([0; FRAME_HEAD_BYTES], 0);
                }
            }
            At::Head(head, seen) => {
                head[*seen] = *octet;
                *seen += 1;
                if *seen == FRAME_HEAD_BYTES {
                    self.at = At::Payload(Payload::of(*head));
                }
            }
            At::Payload(payload) if payload.left > 0 => payload.octet(octet, ahead, (&mut self.block, self.rewrites)),
            At::Payload(_) => {}
        }
    }

    fn end_of_frame(&mut self) {
        if let At::Payload(payload) = &self.at
            && payload.left == 0
        {
            if payload.ends_headers {
                self.block = Block::Field;
            }
            self.at = At::Head([0; FRAME_HEAD_BYTES], 0);
        }
    }
}

impl Payload {
    fn of(head: [u8; FRAME_HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, ..] = head;
        let first = kind == HEADERS;
        let headers = first || kind == CONTINUATION;
        Self {
            left: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            padded: first && flags & PADDED != 0,
            before: if first && flags & PRIORITY != 0 { PRIORITY_BYTES } else { 0 },
            padding: 0,
            headers,
            ends_headers: headers && flags & END_HEADERS != 0,
        }
    }

    fn octet(&mut self, octet: &mut u8, ahead: &[u8], (block, rewrites): (&mut Block, Rewrites)) {
        self.left -= 1;
        if self.padded {
            self.padded = false;
            self.padding = usize::from(*octet);
        } else if self.before > 0 {
            self.before -= 1;
        } else if self.headers && self.left >= self.padding {
            *block = block.after(octet, ahead, rewrites);
        }
    }
}

/// The parser's position in a header block (RFC 7541), which may continue in the next frame.
#[derive(Clone, Copy)]
enum Block {
    /// The next octet is the first one of a header.
    Field,
    /// Within an integer that is ignored; a string follows, or the next header.
    Number(Option<Text>),
    /// The next octet is the first one of a string's length.
    Length(Text),
    /// The next octet continues the length.
    LongLength(Text, usize, u32),
    /// Within a string, with the remaining and the total number of octets.
    Octets(Text, usize, usize),
}

/// The kind of a string.
#[derive(Clone, Copy, PartialEq)]
enum Text {
    Name,
    Value,
    Authority,
    /// A host that is replaced by a local one.
    Schemed,
}

impl Block {
    fn after(self, octet: &mut u8, ahead: &[u8], rewrites: Rewrites) -> Self {
        match self {
            Self::Field => Self::field(*octet),
            Self::Number(then) if *octet & 0x80 == 0 => then.map_or(Self::Field, Self::Length),
            Self::Number(_) => self,
            Self::Length(text) => {
                let text = match (text, rewrites) {
                    (Text::Authority, Rewrites::WithScheme) if begins_with_scheme(*octet & HUFFMAN != 0, ahead) => {
                        Text::Schemed
                    }
                    (Text::Authority, Rewrites::WithScheme) => Text::Value,
                    (text, _) => text,
                };
                if matches!(text, Text::Authority | Text::Schemed) {
                    *octet &= !HUFFMAN;
                }
                match *octet & 0x7f {
                    0x7f => Self::LongLength(text, 0x7f, 0),
                    length => Self::octets(text, usize::from(length)),
                }
            }
            Self::LongLength(text, length, shift) => {
                let more = usize::from(*octet & 0x7f).checked_shl(shift).unwrap_or(usize::MAX);
                let length = length.saturating_add(more);
                if *octet & 0x80 == 0 { Self::octets(text, length) } else { Self::LongLength(text, length, shift + 7) }
            }
            Self::Octets(text, left, length) => {
                match text {
                    Text::Authority => *octet = LETTER,
                    Text::Schemed => *octet = of_this_machine(length - left, length),
                    Text::Name | Text::Value => {}
                }
                Self::octets_left(text, left - 1, length)
            }
        }
    }

    fn field(octet: u8) -> Self {
        // An index, a new entry, a table size update, or a header that is not indexed.
        let (mask, is_text) = match octet {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        match (octet & mask, is_text) {
            (index, _) if index == mask => Self::Number(is_text.then_some(Text::Value)),
            (_, false) => Self::Field,
            (0, true) => Self::Length(Text::Name),
            (AUTHORITY_INDEX, true) => Self::Length(Text::Authority),
            (_, true) => Self::Length(Text::Value),
        }
    }

    fn octets(text: Text, length: usize) -> Self {
        Self::octets_left(text, length, length)
    }

    fn octets_left(text: Text, left: usize, length: usize) -> Self {
        match (left, text) {
            (0, Text::Name) => Self::Length(Text::Value),
            (0, _) => Self::Field,
            _ => Self::Octets(text, left, length),
        }
    }
}

/// Returns the octet at an index of a local host of this length.
fn of_this_machine(at: usize, length: usize) -> u8 {
    let digit = if at + 1 == length { DIGIT } else { ZERO };
    THIS_MACHINE.get(at).copied().unwrap_or(digit)
}

/// Reports whether a string begins with the scheme of a URL. A string of which too little was received is kept.
fn begins_with_scheme(huffman: bool, text: &[u8]) -> bool {
    [b"http://".as_slice(), b"https://"].iter().any(|scheme| match huffman {
        false => text.starts_with(scheme),
        true => begins_with_code(text, scheme),
    })
}

/// Reports whether a Huffman-coded string (RFC 7541, appendix B) begins with the scheme.
fn begins_with_code(text: &[u8], scheme: &[u8]) -> bool {
    let (mut code, mut bits) = (0_u64, 0_u32);
    for letter in scheme {
        let (of_letter, length) = match letter {
            b'h' => (0x27, 6),
            b't' => (0x9, 5),
            b'p' => (0x2b, 6),
            b's' => (0x8, 5),
            b':' => (0x5c, 7),
            b'/' => (0x18, 6),
            _ => return false,
        };
        code = code << length | of_letter;
        bits += length;
    }
    let Some(first) = text.first_chunk::<6>() else { return false };
    let first = first.iter().fold(0_u64, |all, octet| all << 8 | u64::from(*octet));
    bits <= 48 && first >> (48 - bits) == code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Returns the output, parsed as a whole and octet by octet.
    fn passed(bytes: &[u8]) -> Vec<u8> {
        let bytes = [PREFACE, bytes].concat();
        let (mut whole, mut single) = (bytes.clone(), bytes);
        Heads::of(Rewrites::All).pass(&mut whole);
        let mut heads = Heads::of(Rewrites::All);
        for octet in single.chunks_mut(1) {
            heads.pass(octet);
        }
        assert_eq!(whole, single);
        whole.split_off(PREFACE.len())
    }

    #[test]
    fn authorities_are_written_over_wherever_they_stand() {
        let plain = b"\x82\x86\x84\x41\x08%2Fa.sck\x40\x01a\x01b\x87";
        let plain_out = b"\x82\x86\x84\x41\x08eeeeeeee\x40\x01a\x01b\x87";
        // "www.example.com", Huffman-coded, as in the RFC's appendix C.4.1.
        let huffman = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let huffman_out = b"\x82\x86\x84\x41\x0ceeeeeeeeeeee";
        let uncounted =
            [b"\x3f\xe1\x1f\x01\xff\x01".as_slice(), &[0x55; 128], b"\x11\x01/\x5f\x01\x01/\xff\x00"].concat();
        let uncounted_out =
            [b"\x3f\xe1\x1f\x01\x7f\x01".as_slice(), &[LETTER; 128], b"\x11\x01e\x5f\x01\x01/\xff\x00"].concat();
        let all = [(&plain[..], &plain_out[..]), (huffman, huffman_out), (&uncounted, &uncounted_out)];
        for (given, wanted) in all {
            let data = frame(0, 0, b"\x41\x01/");
            let given = [frame(HEADERS, END_HEADERS, given), data.clone()].concat().repeat(2);
            let wanted = [frame(HEADERS, END_HEADERS, wanted), data].concat().repeat(2);
            assert_eq!(passed(&given), wanted);
        }
    }

    #[test]
    fn header_lists_continue_over_frames_with_priority_and_padding() {
        let given = [
            frame(HEADERS, PADDED | PRIORITY, b"\x02\x41\x01/\x41\x01\x41\x03%2\x41\x01"),
            frame(CONTINUATION, 0, b""),
            frame(CONTINUATION, END_HEADERS, b"F\x41\x01/"),
        ];
        let wanted = [
            frame(HEADERS, PADDED | PRIORITY, b"\x02\x41\x01/\x41\x01\x41\x03ee\x41\x01"),
            frame(CONTINUATION, 0, b""),
            frame(CONTINUATION, END_HEADERS, b"e\x41\x01e"),
        ];
        assert_eq!(passed(&given.concat()), wanted.concat());
    }

    #[test]
    fn what_is_not_of_the_second_version_stays() {
        let given = [b"GET / HTTP/1.1\r\n".to_vec(), frame(HEADERS, END_HEADERS, b"\x41\x01/")].concat();
        let mut bytes = given.clone();
        Heads::of(Rewrites::All).pass(&mut bytes);
        assert_eq!(bytes, given);
    }

    #[test]
    fn authorities_with_a_scheme_become_ones_of_this_machine() {
        let schemed = |bytes: &[u8]| {
            let mut bytes = [PREFACE, bytes].concat();
            Heads::of(Rewrites::WithScheme).pass(&mut bytes);
            bytes.split_off(PREFACE.len())
        };
        // "http://a" and "https://a" (a is 00011), Huffman-coded, padded with ones.
        let coded = |bits: &str| {
            let bits: String = bits.chars().filter(|bit| *bit != ' ').collect();
            let octets = bits.as_bytes().chunks(8);
            let octet = |bits: &[u8]| (0..8).fold(0, |all, at| all << 1 | u8::from(bits.get(at) != Some(&b'0')));
            octets.map(octet).collect::<Vec<u8>>()
        };
        let http = coded("100111 01001 01001 101011 1011100 011000 011000 00011");
        let https = coded("100111 01001 01001 101011 01000 1011100 011000 011000 00011");
        let length = |text: &[u8], flag: u8| flag | u8::try_from(text.len()).unwrap();
        for (text, flag) in [(&http[..], HUFFMAN), (&https, HUFFMAN), (b"http://127.0.0.1:2379", 0), (b"https://a", 0)]
        {
            let given = frame(HEADERS, END_HEADERS, &[&[0x82, 0x41, length(text, flag)], text, b"\x87"].concat());
            let machine: Vec<u8> = (0..text.len()).map(|at| of_this_machine(at, text.len())).collect();
            let want = frame(HEADERS, END_HEADERS, &[&[0x82, 0x41, length(text, 0)], &machine[..], b"\x87"].concat());
            assert_eq!(schemed(&given), want, "{text:?}");
        }
        assert_eq!((0..21).map(|at| of_this_machine(at, 21)).collect::<Vec<u8>>(), b"localhost:00000000001");
        let huffman = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        for given in [&b"\x41\x0e127.0.0.1:2379"[..], b"\x41\x08http:443", b"\x41\x05/a.so", huffman] {
            let given = frame(HEADERS, END_HEADERS, given);
            assert_eq!(schemed(&given), given, "others stay");
        }
    }

    #[test]
    fn nonsense_is_followed_without_a_fault() {
        let seven = [0x01, 0xff].into_iter().chain(std::iter::repeat_n(0xff, 20)).collect::<Vec<u8>>();
        passed(&frame(HEADERS, END_HEADERS, &seven));
        passed(&frame(HEADERS, PADDED | END_HEADERS, b"\xff\x41\x01/"));
        passed(&frame(HEADERS, PADDED, b""));
    }
}
