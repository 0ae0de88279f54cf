//! The bytes of a record in memory: plain while the record is new, and later a delta to a similar record's bytes, the sample. Readers
//! see no difference.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::delta::{self, Anchors, SAMPLE_BYTES_MAX, Syntax};

/// The bytes against which similar records are delta-encoded: the JSON of one record, and the protobuf form of the first record with
/// this sample that has one.
pub(crate) struct Sample {
    json: Indexed,
    protobuf: OnceLock<Indexed>,
}

/// Bytes of a sample with the index for finding runs in them.
struct Indexed {
    text: Bytes,
    anchors: Anchors,
}

impl Indexed {
    fn new(text: Bytes, syntax: Syntax) -> Self {
        let anchors = Anchors::of(&text, syntax);
        Self { text, anchors }
    }
}

impl Sample {
    /// Makes a sample from a record's JSON.
    pub fn new(json: Bytes) -> Arc<Self> {
        Arc::new(Self { json: Indexed::new(json, Syntax::Json), protobuf: OnceLock::new() })
    }

    fn indexed(&self, syntax: Syntax) -> Option<&Indexed> {
        match syntax {
            Syntax::Json => Some(&self.json),
            Syntax::Protobuf => self.protobuf.get(),
        }
    }
}

/// One encoding of a record.
pub(crate) enum Text {
    /// The bytes themselves.
    Plain(Bytes),
    /// The delta to the sample's bytes in the same encoding.
    Delta(Box<[u8]>),
}

/// Additional forms of a record, by number. Few records have any.
#[derive(Default)]
struct Forms(Vec<(u32, Bytes)>);

/// The encodings of a record.
pub(crate) struct Texts {
    sample: Option<Arc<Sample>>,
    json: Text,
    json_len: u32,
    /// The offset of the end of the member `metadata` in the JSON. 0 until it was looked for.
    pub metadata_end: u32,
    protobuf: Option<Text>,
    /// The length of the protobuf form; 0 until it was made.
    protobuf_len: u32,
    /// The length of the metadata's message, low byte first; 0 until it was noted. It takes no more memory than there is beside
    /// `compared`.
    metadata_message_len: [u8; 3],
    /// Whether the record was compared with the samples, so that plain bytes stay plain.
    compared: bool,
    forms: Option<Box<Forms>>,
}

impl Texts {
    pub fn new(json: Bytes) -> Self {
        Self {
            sample: None,
            json_len: json.len() as u32,
            metadata_end: 0,
            json: Text::Plain(json),
            protobuf: None,
            protobuf_len: 0,
            metadata_message_len: [0; 3],
            compared: false,
            forms: None,
        }
    }

    fn read(&self, text: &Text, len: u32, syntax: Syntax) -> Bytes {
        if let Text::Plain(bytes) = text {
            return bytes.clone();
        }
        let mut out = Vec::with_capacity(len as usize);
        self.pieces(text, syntax, |piece| {
            out.extend_from_slice(piece);
            ControlFlow::Continue(())
        });
        debug_assert_eq!(out.len(), len as usize, "a text belongs to its sample");
        Bytes::from(out)
    }

    fn pieces(&self, text: &Text, syntax: Syntax, mut take: impl FnMut(&[u8]) -> ControlFlow<()>) {
        match text {
            // There is no further piece, so the result does not matter.
            Text::Plain(bytes) => drop(take(bytes)),
            Text::Delta(delta) => {
                if let Some(indexed) = self.sample.as_ref().and_then(|sample| sample.indexed(syntax)) {
                    delta::decode(&indexed.text, delta, take);
                }
            }
        }
    }

    /// The JSON: shared bytes while it is plain, and decoded bytes afterwards.
    pub fn json(&self) -> Bytes {
        self.read(&self.json, self.json_len, Syntax::Json)
    }

    /// Passes the JSON to `take` piece by piece, until `take` breaks.
    pub fn json_pieces(&self, take: impl FnMut(&[u8]) -> ControlFlow<()>) {
        self.pieces(&self.json, Syntax::Json, take);
    }

    /// Passes the protobuf form, if there is one, to `take` piece by piece, until `take` breaks.
    pub fn protobuf_pieces(&self, take: impl FnMut(&[u8]) -> ControlFlow<()>) {
        if let Some(text) = &self.protobuf {
            self.pieces(text, Syntax::Protobuf, take);
        }
    }

    pub fn json_len(&self) -> usize {
        self.json_len as usize
    }

    /// The JSON, if it is plain and can be delta-encoded.
    pub fn plain(&self) -> Option<&Bytes> {
        match &self.json {
            Text::Plain(json) if json.len() <= SAMPLE_BYTES_MAX => Some(json),
            _ => None,
        }
    }

    pub fn protobuf(&self) -> Option<Bytes> {
        self.protobuf.as_ref().map(|text| self.read(text, self.protobuf_len, Syntax::Protobuf))
    }

    pub fn has_protobuf(&self) -> bool {
        self.protobuf.is_some()
    }

    /// The length of the protobuf form, if it was made before. The form itself may have been dropped.
    pub fn protobuf_len(&self) -> Option<usize> {
        Some(self.protobuf_len as usize).filter(|len| *len > 0)
    }

    /// The length of the message of the metadata alone, if it was noted.
    pub fn metadata_message_len(&self) -> Option<usize> {
        let [low, middle, high] = self.metadata_message_len;
        Some(u32::from_le_bytes([low, middle, high, 0]) as usize).filter(|length| *length > 0)
    }

    /// Notes the length of the message of the metadata alone. A length of more than 16 MiB is not kept.
    pub fn set_metadata_message_len(&mut self, length: usize) {
        if let Some([low, middle, high, 0]) = u32::try_from(length).ok().map(u32::to_le_bytes) {
            self.metadata_message_len = [low, middle, high];
        }
    }

    /// Sets the protobuf form unless there is one. It is delta-encoded if the JSON is. Of a record that is similar to no other only the
    /// length is kept, so that one list in protobuf does not double the memory of such records.
    pub fn set_protobuf(&mut self, bytes: &Bytes) {
        if self.protobuf.is_none() {
            self.protobuf_len = bytes.len() as u32;
            self.protobuf = Some(Text::Plain(bytes.clone()));
            self.encode_protobuf();
        }
    }

    /// Notes that the record was compared with the samples, and drops the protobuf form if it is plain.
    pub fn set_compared(&mut self) {
        self.compared = true;
        self.drop_plain_protobuf();
    }

    fn drop_plain_protobuf(&mut self) {
        if self.compared && matches!(&self.protobuf, Some(Text::Plain(_))) {
            self.protobuf = None;
        }
    }

    /// The bytes of the protobuf form in memory.
    #[cfg(test)]
    pub fn protobuf_bytes_held(&self) -> usize {
        match &self.protobuf {
            Some(Text::Plain(bytes)) => bytes.len(),
            Some(Text::Delta(delta)) => delta.len(),
            None => 0,
        }
    }

    /// The form with this number.
    pub fn form(&self, id: u32) -> Option<Bytes> {
        let Forms(forms) = self.forms.as_deref()?;
        forms.iter().find(|(kept, _)| *kept == id).map(|(_, form)| form.clone())
    }

    /// Sets a form, and drops forms with numbers below `oldest`.
    pub fn set_form(&mut self, id: u32, oldest: u32, form: &Bytes) {
        let Forms(forms) = &mut **self.forms.get_or_insert_default();
        forms.retain(|(kept, _)| *kept >= oldest && *kept != id);
        forms.push((id, form.clone()));
        forms.shrink_to_fit();
    }

    /// Delta-encodes the record with a sample. Returns whether the JSON is similar to the sample.
    pub fn encode_with(&mut self, sample: &Arc<Sample>) -> bool {
        let Some(json) = self.plain() else { return false };
        let Some(delta) = delta::encode(&sample.json.text, &sample.json.anchors, json) else { return false };
        self.json = Text::Delta(delta);
        self.sample = Some(Arc::clone(sample));
        self.encode_protobuf();
        true
    }

    /// Delta-encodes the protobuf form. The first record of the sample that has one provides the sample's protobuf form.
    fn encode_protobuf(&mut self) {
        if let (Some(sample), Some(text)) = (&self.sample, &mut self.protobuf)
            && let Text::Plain(bytes) = text
            && bytes.len() <= SAMPLE_BYTES_MAX
        {
            let indexed = sample.protobuf.get_or_init(|| Indexed::new(bytes.clone(), Syntax::Protobuf));
            if let Some(delta) = delta::encode(&indexed.text, &indexed.anchors, bytes) {
                *text = Text::Delta(delta);
            }
        }
        self.drop_plain_protobuf();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(n: u32) -> Bytes {
        format!(r#"{{"kind":"Thing","metadata":{{"name":"thing-{n}","namespace":"default","labels":{{"app":"a"}}}}}}"#)
            .into()
    }

    #[test]
    fn both_encodings_read_the_same_after_packing() {
        let sample = Sample::new(json(1));
        let message =
            |n: u32| Bytes::from(format!("\x0a\x05thing\x12\x20 a text that is the same for all \x1a\x02{n}"));
        // The protobuf form is set before or after the JSON is delta-encoded.
        for early in [true, false] {
            let mut texts = Texts::new(json(2));
            if early {
                texts.set_protobuf(&message(2));
            }
            assert!(texts.encode_with(&sample));
            texts.set_protobuf(&message(2));
            assert!(texts.plain().is_none());
            assert_eq!((texts.json(), texts.json_len()), (json(2), json(2).len()));
            assert_eq!(texts.protobuf(), Some(message(2)));
            texts.set_protobuf(&message(3));
            assert_eq!(texts.protobuf(), Some(message(2)), "the first one stays");
            assert!(!texts.encode_with(&sample), "once is enough");
        }
    }

    #[test]
    fn the_length_of_metadata_takes_no_memory() {
        let mut texts = Texts::new(json(1));
        assert_eq!(texts.metadata_message_len(), None);
        for length in [1, 255, 256, 70_000, 0xff_ffff] {
            texts.set_metadata_message_len(length);
            assert_eq!(texts.metadata_message_len(), Some(length));
        }
        texts.set_metadata_message_len(0x100_0000);
        assert_eq!(texts.metadata_message_len(), Some(0xff_ffff), "it is not kept");
        let numbers = size_of::<[u32; 4]>();
        let others = size_of::<(Option<Arc<Sample>>, Text, Option<Text>, Option<Box<Forms>>)>();
        assert_eq!(size_of::<Texts>(), others + numbers);
    }

    #[test]
    fn forms_are_found_by_number() {
        let mut texts = Texts::new(json(1));
        assert_eq!(texts.form(3), None);
        for (id, oldest) in [(3, 3), (4, 3), (3, 3)] {
            texts.set_form(id, oldest, &json(id));
        }
        assert_eq!((texts.form(3), texts.form(4)), (Some(json(3)), Some(json(4))));
        texts.set_form(7, 6, &json(7));
        assert_eq!((texts.form(3), texts.form(4), texts.form(7)), (None, None, Some(json(7))));
    }

    #[test]
    fn a_record_unlike_the_sample_stays_plain() {
        let mut texts = Texts::new(Bytes::from_static(br#"{"other":"thing that shares nothing"}"#));
        assert!(!texts.encode_with(&Sample::new(json(1))));
        assert!(texts.plain().is_some() && texts.protobuf().is_none());
        let large = Bytes::from(vec![b'"'; SAMPLE_BYTES_MAX + 1]);
        assert!(Texts::new(large).plain().is_none(), "too large to be a sample");
    }
}
