//! Delta encoding: a byte string as runs copied from a similar one, its sample, and the literal bytes between the runs. Objects made
//! from one template differ in a few names, times and addresses, so most of each is copied. These functions are pure.

use std::ops::ControlFlow;

use crate::meta::{pack_number, take_bytes, take_number};

/// The shortest run that is copied. A shorter run costs about as much as its literal bytes.
const RUN_MIN: usize = 8;
/// The number of leading bytes of a run that are hashed to find it.
const HASHED: usize = 8;
/// After this many bytes, encoding stops if less than half of them was copied: the two are not alike.
const TRIED_MIN: usize = 768;

/// The longest sample in bytes: offsets in it are kept as 16 bits.
pub(crate) const SAMPLE_BYTES_MAX: usize = u16::MAX as usize;

/// The bytes at which runs may begin: frequent bytes that precede repeated content.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Syntax {
    /// Runs begin at quotes.
    Json,
    /// Runs begin at the tags of length-delimited fields (wire type 2).
    Protobuf,
}

impl Syntax {
    fn begins(self, byte: u8) -> bool {
        match self {
            Self::Json => byte == b'"',
            Self::Protobuf => byte & 7 == 2,
        }
    }
}

/// The offsets in a sample at which runs may begin, indexed by a hash of the bytes there.
#[derive(Debug)]
pub(crate) struct Anchors {
    syntax: Syntax,
    /// Pairs of hash and offset, sorted.
    at: Box<[(u32, u16)]>,
}

fn hash(text: &[u8]) -> Option<u32> {
    let word = u64::from_le_bytes(*text.first_chunk::<HASHED>()?);
    // A multiplication spreads all bits into the upper ones (Knuth's multiplicative hashing).
    Some((word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
}

impl Anchors {
    /// Indexes a sample. Offsets from [`SAMPLE_BYTES_MAX`] on are left out.
    pub fn of(sample: &[u8], syntax: Syntax) -> Self {
        let places = sample.iter().enumerate().take(SAMPLE_BYTES_MAX).filter(|(_, byte)| syntax.begins(**byte));
        let mut at: Vec<(u32, u16)> =
            places.filter_map(|(i, _)| Some((hash(&sample[i..])?, u16::try_from(i).ok()?))).collect();
        at.sort_unstable();
        Self { syntax, at: at.into() }
    }

    /// Finds the longest run at the start of `text` that occurs in the sample. It tries offsets after `after` first, since similar objects
    /// have their parts in the same order. Returns the offset in the sample and the length.
    fn run(&self, sample: &[u8], text: &[u8], after: usize) -> Option<(usize, usize)> {
        let wanted = hash(text)?;
        let after = u16::try_from(after).unwrap_or(u16::MAX);
        let next = self.at.partition_point(|(hash, place)| (*hash, *place) < (wanted, after));
        let first = self.at[..next].partition_point(|(hash, _)| *hash < wanted);
        let place = |i: usize| self.at.get(i).filter(|(hash, _)| *hash == wanted).map(|(_, at)| usize::from(*at));
        let run = |at: usize| (at, common(&sample[at..], text));
        let ahead = place(next).map(run);
        let behind = if first == next { None } else { place(first).map(run) };
        let best = ahead.into_iter().chain(behind).reduce(|a, b| if b.1 > a.1 { b } else { a });
        best.filter(|(_, len)| *len >= RUN_MIN)
    }
}

/// The length of the common prefix of two byte strings.
fn common(a: &[u8], b: &[u8]) -> usize {
    let mut len = 0;
    let (mut words_a, mut words_b) = (a.chunks_exact(8), b.chunks_exact(8));
    while let (Some(x), Some(y)) = (words_a.next(), words_b.next()) {
        if x != y {
            break;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(x, y)| x == y).count()
}

/// The length of the common suffix of two byte strings.
fn common_end(a: &[u8], b: &[u8]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count()
}

/// Encodes `text` as a delta to `sample`. Returns `None` if less than half of it occurs in the sample.
pub(crate) fn encode(sample: &[u8], anchors: &Anchors, text: &[u8]) -> Option<Box<[u8]>> {
    let mut out = Vec::with_capacity(text.len() / 8);
    // The offset up to which the JSON is encoded, the end of the last run in the sample, and the number of literal bytes.
    let (mut encoded, mut end, mut own) = (0, 0, 0);
    let mut i = 0;
    while i < text.len() {
        if !anchors.syntax.begins(text[i]) {
            i += 1;
            continue;
        }
        let Some((from, len)) = anchors.run(sample, &text[i..], end) else {
            i += 1;
            if i > TRIED_MIN && (own + i - encoded) * 2 > i {
                return None;
            }
            continue;
        };
        let back = common_end(&sample[..from], &text[encoded..i]);
        let between = &text[encoded..i - back];
        own += between.len();
        pack_number(&mut out, between.len() as u64);
        out.extend_from_slice(between);
        pack_number(&mut out, (len + back) as u64);
        pack_number(&mut out, zigzag((from - back) as i64 - end as i64));
        i += len;
        (encoded, end) = (i, from + len);
    }
    let rest = &text[encoded..];
    own += rest.len();
    pack_number(&mut out, rest.len() as u64);
    out.extend_from_slice(rest);
    (own * 2 <= text.len()).then(|| out.into())
}

/// Decodes a delta and passes the JSON to `take` piece by piece, until `take` breaks.
pub(crate) fn decode(sample: &[u8], mut delta: &[u8], mut take: impl FnMut(&[u8]) -> ControlFlow<()>) {
    let mut end = 0i64;
    let from = &mut delta;
    while let Some(own) = take_bytes(from) {
        if take(own).is_break() {
            return;
        }
        let (Some(run), Some(step)) = (take_number(from), take_number(from)) else { return };
        let begin = end + unzigzag(step);
        end = begin + run as i64;
        if take(sample.get(begin as usize..end as usize).unwrap_or_default()).is_break() {
            return;
        }
    }
}

fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    fn round_trip(sample: &[u8], text: &[u8], syntax: Syntax) -> Option<usize> {
        let anchors = Anchors::of(sample, syntax);
        let delta = encode(sample, &anchors, text)?;
        let mut back = Vec::new();
        decode(sample, &delta, |piece| {
            back.extend_from_slice(piece);
            ControlFlow::Continue(())
        });
        assert_eq!(back, text);
        Some(delta.len())
    }

    fn pod(n: u32, label: &str) -> String {
        let fields = r#""f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:image":{},"f:name":{}}}}"#;
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"creationTimestamp":"2026-01-01T00:{:02}:00Z","labels":{{"app":"{label}"}},"managedFields":[{{"apiVersion":"v1","fieldsV1":{{{fields}}},"time":"2026-01-01T00:{:02}:00Z"}}],"name":"web-{n}","uid":"{:032x}"}},"spec":{{"containers":[{{"image":"registry.example.com/web:1","name":"app"}}],"nodeName":"node-{}"}},"status":{{"phase":"Running","podIP":"10.42.{}.{}"}}}}"#,
            n % 60,
            n % 60,
            u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            n % 7,
            n / 256 % 256,
            n % 256
        )
    }

    #[test]
    fn similar_objects_take_few_bytes() {
        let sample = pod(1, "web");
        for n in [2, 59, 60, 257, 100_000] {
            let text = pod(n, "web");
            let len = round_trip(sample.as_bytes(), text.as_bytes(), Syntax::Json).expect("alike");
            assert!(len * 4 < text.len(), "{len} of {}", text.len());
        }
        assert_eq!(round_trip(sample.as_bytes(), sample.as_bytes(), Syntax::Json), Some(5), "itself: one run");
    }

    #[test]
    fn dissimilar_texts_are_not_encoded() {
        let sample = pod(1, "web");
        let mut rng = StdRng::seed_from_u64(1);
        let noise: Vec<u8> = (0..2000).map(|_| rng.random()).collect();
        for text in [&noise[..], b"\"", &[b'"'; 900]] {
            assert_eq!(round_trip(sample.as_bytes(), text, Syntax::Json), None);
        }
        assert_eq!(round_trip(b"", b"", Syntax::Json), Some(1));
    }

    #[test]
    fn any_mixture_round_trips() {
        let mut rng = StdRng::seed_from_u64(2);
        let mut encoded = 0;
        for turn in 0..3000 {
            let syntax = if turn % 2 == 0 { Syntax::Json } else { Syntax::Protobuf };
            let words: Vec<Vec<u8>> = (0..8)
                .map(|_| (0..rng.random_range(1..40)).map(|_| b"\"ab:\x0a\x12"[rng.random_range(0..6)]).collect())
                .collect();
            let mut text =
                |n: usize| -> Vec<u8> { (0..n).flat_map(|_| words[rng.random_range(0..8)].clone()).collect() };
            let (sample, text) = (text(20), text(20));
            encoded += usize::from(round_trip(&sample, &text, syntax).is_some());
        }
        assert!(encoded > 500, "{encoded}");
    }

    #[test]
    fn samples_of_any_length_are_accepted() {
        let long = pod(1, "web").repeat(200);
        assert!(long.len() > SAMPLE_BYTES_MAX);
        assert!(round_trip(long.as_bytes(), long.as_bytes(), Syntax::Json).is_some());
    }
}
