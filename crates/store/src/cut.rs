//! Cuts an object's metadata from its bytes. The bytes come piece by piece, since those of a record may be a delta, and no more of them are
//! made than needed.

use std::ops::{ControlFlow, Range};

use bytes::BufMut;

use crate::walk::JsonWalk;

/// Cuts the member `metadata` from an object's compact JSON. The record knows where its revision is, which is inside that member, so
/// only the bytes before the member and those after the revision are looked at.
pub(crate) struct MetadataCutter {
    /// Bytes that were passed so far.
    at: usize,
    revision_at: usize,
    /// The offset of the end of the member, if it is known.
    end: Option<usize>,
    step: Step,
    walk: JsonWalk,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The current byte is before the member.
    Before,
    /// In the member, up to the revision.
    Copying,
    /// In the member, after the revision.
    Ending,
    Done,
}

impl MetadataCutter {
    /// Makes a cutter for a record with its revision at an offset. `end` is the result of an earlier
    /// [`MetadataCutter::end`], or 0.
    pub fn new(revision_at: u32, end: u32) -> Self {
        let walk = JsonWalk::from_start();
        Self {
            at: 0,
            revision_at: revision_at as usize,
            end: Some(end as usize).filter(|end| *end > 0),
            step: Step::Before,
            walk,
        }
    }

    /// Whether all of the member was cut.
    pub fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// The offset of the end of the member; 0 if it was not found.
    pub fn end(&self) -> u32 {
        if self.is_done() { self.at as u32 } else { 0 }
    }

    /// Takes the next piece, and appends what of it belongs to the member. Breaks after the end of the member.
    pub fn feed(&mut self, piece: &[u8], out: &mut impl BufMut) -> ControlFlow<()> {
        let mut rest = piece;
        while !rest.is_empty() {
            let taken = match self.step {
                Step::Before => match self.walk.enter(rest) {
                    Some(taken) => {
                        self.step = Step::Copying;
                        taken
                    }
                    None => rest.len(),
                },
                Step::Copying => {
                    let to = self.end.unwrap_or(self.revision_at);
                    let taken = rest.len().min(to.saturating_sub(self.at));
                    out.put_slice(&rest[..taken]);
                    if self.at + taken >= to {
                        // The revision is a string in the member, which is an object.
                        self.walk = JsonWalk::in_text_of_member();
                        self.step = if self.end.is_some() { Step::Done } else { Step::Ending };
                    }
                    taken
                }
                Step::Ending => {
                    let end = self.walk.leave(rest);
                    let taken = end.unwrap_or(rest.len());
                    out.put_slice(&rest[..taken]);
                    if end.is_some() {
                        self.step = Step::Done;
                    }
                    taken
                }
                Step::Done => return ControlFlow::Break(()),
            };
            self.at += taken;
            rest = &rest[taken..];
        }
        if self.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The range of the member `metadata` in an object's JSON, for a record as in [`MetadataCutter::new`].
pub(crate) fn metadata_range(json: &[u8], revision_at: u32, end: u32) -> Option<Range<usize>> {
    let mut walk = JsonWalk::from_start();
    let begin = walk.enter(json)?;
    if end > 0 {
        return Some(begin..end as usize);
    }
    let from = revision_at as usize;
    let mut walk = JsonWalk::in_text_of_member();
    let end = from + walk.leave(json.get(from..)?)?;
    (begin < end).then_some(begin..end)
}

/// The longest tag and length of a first field.
const HEAD_BYTES_MAX: usize = 11;

/// Reads the metadata from an object's protobuf message, which is field 1 of every kind that has one, and so the first.
pub(crate) struct FirstField {
    /// The first bytes of the message, until they contain the length.
    head: [u8; HEAD_BYTES_MAX],
    head_len: usize,
    /// Bytes of the field with its tag and length, once they are known.
    length: Option<usize>,
    taken: usize,
}

impl FirstField {
    pub fn new() -> Self {
        Self { head: [0; HEAD_BYTES_MAX], head_len: 0, length: None, taken: 0 }
    }

    /// The length of the field with its tag and length; `None` if the message does not begin with it.
    pub fn length(&self) -> Option<usize> {
        self.length
    }

    /// Whether the whole field was passed.
    pub fn is_done(&self) -> bool {
        self.length == Some(self.taken)
    }

    /// Takes the next piece, and appends what of it belongs to the field. Breaks after its end, or where it cannot be read.
    pub fn feed(&mut self, piece: &[u8], out: &mut impl BufMut) -> ControlFlow<()> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let before = self.head_len;
                let step = self.measure(piece);
                let Some(length) = self.length else { return step };
                // What of the head was in this piece follows with its rest.
                out.put_slice(&self.head[..before]);
                self.taken = before;
                length
            }
        };
        let taken = piece.len().min(length - self.taken);
        out.put_slice(&piece[..taken]);
        self.taken += taken;
        if self.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes the next piece only to find the length. Breaks when it is known, or where it cannot be read.
    pub fn measure(&mut self, piece: &[u8]) -> ControlFlow<()> {
        let taken = piece.len().min(HEAD_BYTES_MAX - self.head_len);
        self.head[self.head_len..self.head_len + taken].copy_from_slice(&piece[..taken]);
        self.head_len += taken;
        match first_field(&self.head[..self.head_len]) {
            FieldHead::Short => ControlFlow::Continue(()),
            FieldHead::Other => ControlFlow::Break(()),
            FieldHead::Length(length) => {
                self.length = Some(length);
                ControlFlow::Break(())
            }
        }
    }
}

enum FieldHead {
    /// More bytes are needed.
    Short,
    /// The message begins with another field.
    Other,
    /// Bytes of the field.
    Length(usize),
}

fn first_field(head: &[u8]) -> FieldHead {
    /// Field 1 with bytes.
    const TAG: u8 = 0x0a;
    match head.first() {
        None => return FieldHead::Short,
        Some(&TAG) => {}
        Some(_) => return FieldHead::Other,
    }
    let mut rest = &head[1..];
    match crate::meta::take_number(&mut rest).map(usize::try_from) {
        Some(Ok(length)) => FieldHead::Length(head.len() - rest.len() + length),
        None if head.len() <= 10 => FieldHead::Short,
        _ => FieldHead::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::LOOKED_AT;

    /// Cuts the metadata of an object in pieces of `size` bytes. Returns it with the number of pieces that were looked at and of bytes
    /// that were looked at one by one.
    fn cut(json: &str, size: usize) -> (Option<String>, usize, usize) {
        let at = json.find(r#""resourceVersion":"7""#).unwrap() + r#""resourceVersion":""#.len();
        let mut cutter = MetadataCutter::new(at as u32, 0);
        let (mut out, mut pieces) = (Vec::new(), 0);
        LOOKED_AT.set(0);
        for piece in json.as_bytes().chunks(size) {
            pieces += 1;
            if cutter.feed(piece, &mut out).is_break() {
                break;
            }
        }
        let looked_at = LOOKED_AT.replace(0);
        // The next time, the end is known.
        let (mut again, mut copied) = (MetadataCutter::new(at as u32, cutter.end()), Vec::new());
        for piece in json.as_bytes().chunks(size).take(pieces) {
            let _ended = again.feed(piece, &mut copied);
        }
        assert_eq!((again.is_done(), again.end(), &copied), (cutter.is_done(), cutter.end(), &out));
        assert!(LOOKED_AT.get() <= looked_at);
        for end in [0, cutter.end()] {
            let range = metadata_range(json.as_bytes(), at as u32, end);
            assert_eq!(range.map(|range| &json.as_bytes()[range]), cutter.is_done().then_some(&out[..]));
        }
        (cutter.is_done().then(|| String::from_utf8(out).unwrap()), pieces, looked_at)
    }

    #[test]
    fn metadata_is_cut_from_pieces_of_any_size() {
        let metadata = r#"{"annotations":{"a":"}\"{[","metadata":"x","b\\":"\\"},"labels":{},"managedFields":[{"fieldsV1":{"f:metadata":{}}}],"name":"metadata","resourceVersion":"7","uid":"u\"}"}"#;
        let forms = [
            format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},"spec":{{"metadata":{{"name":"x"}}}}}}"#),
            format!(r#"{{"metadata":{metadata}}}"#),
            format!(r#"{{"spec":[{{"metadata":{{"x":1,"managedFields":[]}}}}],"metadata":{metadata}}}"#),
            format!(
                r#"{{"data":"metadata","x\"metadata":{{}},"meta\u0064ata":1,"n":[{{"metadata":1}},2],"metadat":{{}},"metadataa":{{}},"metadata":{metadata},"z":[]}}"#
            ),
        ];
        for json in &forms {
            for size in 1..json.len() + 1 {
                assert_eq!(cut(json, size).0.as_deref(), Some(metadata), "{json} by {size}");
            }
        }
    }

    #[test]
    fn managed_fields_at_the_end_of_metadata_are_not_looked_at() {
        let head = r#""labels":{"a":"b"}"#;
        for (last, jumps) in [
            (r#","managedFields":[{"fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}}]"#, true),
            (r#","managedFields":[{"manager":"a\"}\\"}]"#, true),
            (r#","managedFields":[]"#, true),
            // The bracket may be in a text, belong to another array, or be followed by other members.
            (r#","managedFields":[{"manager":"a]},"}]"#, false),
            (r#","managedFields":[{"manager":"\\\"]},"}]"#, false),
            (r#","managedFields":[{"fieldsV1":{"k:{\"x\":[1]}":{}}}]"#, false),
            (r#","managedFields":[{"a":[1]},{"b":{}}]"#, false),
            (r#","managedFields":[{}],"uid":"u""#, false),
            (r#","owner":{"managedFields":[]},"uid":"u""#, false),
            (r#","owner":{"a":1,"managedFields":[]},"uid":"u""#, false),
            ("", false),
        ] {
            let metadata = format!(r#"{{"resourceVersion":"7",{head}{last}}}"#);
            // The metadata of what is in the object has managed fields as well.
            let rest = r#""spec":{"template":{"metadata":{"name":"x","managedFields":[{}]}}}"#;
            let json = format!(r#"{{"kind":"Pod","metadata":{metadata},{rest}}}"#);
            for size in [json.len(), 1, 7, 40, 100] {
                let (found, _, looked_at) = cut(&json, size);
                assert_eq!(found.as_deref(), Some(&*metadata), "{json} by {size}");
                let before = r#"{"kind":"Pod","metadata":7","#.len() + head.len();
                if size == json.len() {
                    assert_eq!(looked_at == before, jumps && !last.is_empty(), "{looked_at} of {json}");
                }
            }
        }
    }

    #[test]
    fn the_rest_of_an_object_is_not_looked_at() {
        let fields = "x".repeat(2000);
        let head = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"managedFields":[{{"f":"{fields}"}}],"name":"a","resourceVersion":"7","uid":"u"}},"spec":"#
        );
        // What follows is no JSON, and there is much of it.
        let json = format!("{head}{}", "]".repeat(100_000));
        let (metadata, pieces, looked_at) = cut(&json, 64);
        assert!(metadata.unwrap().ends_with(r#""resourceVersion":"7","uid":"u"}"#));
        assert_eq!(pieces, head.len().div_ceil(64), "only the pieces up to the end of the metadata are made");
        assert!(looked_at < 200, "what is before the revision is copied and not looked at: {looked_at}");
    }

    #[test]
    fn the_first_field_is_cut_from_pieces_of_any_size() {
        for length in [0usize, 1, 127, 128, 300, 70_000] {
            let mut message = vec![0x0a];
            crate::meta::pack_number(&mut message, length as u64);
            message.extend(std::iter::repeat_n(7, length));
            let field = message.clone();
            message.extend([0x12, 1, 2]);
            for size in [1, 2, 3, 50, 100_000] {
                let (mut cutter, mut out) = (FirstField::new(), Vec::new());
                for piece in message.chunks(size) {
                    if cutter.feed(piece, &mut out).is_break() {
                        break;
                    }
                }
                assert!(cutter.is_done());
                let mut measured = FirstField::new();
                let pieces = message.chunks(size).take_while(|piece| measured.measure(piece).is_continue()).count();
                assert!((pieces + 1) * size < size + 11, "no more pieces than the tag and the length are in");
                assert_eq!(measured.length(), cutter.length());
                assert_eq!((cutter.length(), out), (Some(field.len()), field.clone()), "{length} by {size}");
            }
        }
        let mut other = FirstField::new();
        assert!(other.feed(&[0x12, 0], &mut Vec::new()).is_break() && !other.is_done());
    }
}
