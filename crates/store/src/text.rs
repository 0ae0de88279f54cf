//! The bytes of a record as they lie in memory: plain while the record is new, then as what differs from its sample's. A
//! reader sees no difference.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::delta::{self, Anchors, SAMPLE_BYTES_MAX, Syntax};

/// A record's JSON by which others of its kind are told, and the protobuf of one of them.
pub(crate) struct Sample {
    json: Indexed,
    protobuf: OnceLock<Indexed>,
}

/// A text with what finding runs in it takes.
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
    /// Of a record's JSON.
    pub fn new(json: Bytes) -> Arc<Self> {
        Arc::new(Self { json: Indexed::new(json, Syntax::Json), protobuf: OnceLock::new() })
    }

    fn told(&self, syntax: Syntax) -> Option<&Indexed> {
        match syntax {
            Syntax::Json => Some(&self.json),
            Syntax::Protobuf => self.protobuf.get(),
        }
    }
}

/// One text of a record.
pub(crate) enum Text {
    /// As it is.
    Plain(Bytes),
    /// By its sample, in the same form.
    Delta(Box<[u8]>),
}

/// The texts of a record.
pub(crate) struct Texts {
    sample: Option<Arc<Sample>>,
    json: Text,
    json_len: u32,
    protobuf: Option<(Text, u32)>,
}

impl Texts {
    pub fn new(json: Bytes) -> Self {
        Self { sample: None, json_len: json.len() as u32, json: Text::Plain(json), protobuf: None }
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
            // There is nothing after it that could be broken off.
            Text::Plain(bytes) => drop(take(bytes)),
            Text::Delta(delta) => {
                if let Some(told) = self.sample.as_ref().and_then(|sample| sample.told(syntax)) {
                    delta::decode(&told.text, delta, take);
                }
            }
        }
    }

    /// The JSON: shared while it is plain, put together anew afterwards.
    pub fn json(&self) -> Bytes {
        self.read(&self.json, self.json_len, Syntax::Json)
    }

    /// The JSON piece by piece, until `take` has enough.
    pub fn json_pieces(&self, take: impl FnMut(&[u8]) -> ControlFlow<()>) {
        self.pieces(&self.json, Syntax::Json, take);
    }

    pub fn json_len(&self) -> usize {
        self.json_len as usize
    }

    /// The JSON while it is plain and may be told by another's.
    pub fn plain(&self) -> Option<&Bytes> {
        match &self.json {
            Text::Plain(json) if json.len() <= SAMPLE_BYTES_MAX => Some(json),
            _ => None,
        }
    }

    pub fn protobuf(&self) -> Option<Bytes> {
        self.protobuf.as_ref().map(|(text, len)| self.read(text, *len, Syntax::Protobuf))
    }

    pub fn protobuf_len(&self) -> Option<usize> {
        self.protobuf.as_ref().map(|(_, len)| *len as usize)
    }

    /// Keeps the protobuf form, unless there is one; in a record whose JSON is told, it is told as well.
    pub fn set_protobuf(&mut self, bytes: &Bytes) {
        if self.protobuf.is_none() {
            self.protobuf = Some((Text::Plain(bytes.clone()), bytes.len() as u32));
            self.tell_protobuf();
        }
    }

    /// Tells the texts by a sample from now on; gives whether the JSON is like it.
    pub fn tell_by(&mut self, sample: &Arc<Sample>) -> bool {
        let Some(json) = self.plain() else { return false };
        let Some(delta) = delta::encode(&sample.json.text, &sample.json.anchors, json) else { return false };
        self.json = Text::Delta(delta);
        self.sample = Some(Arc::clone(sample));
        self.tell_protobuf();
        true
    }

    /// The protobuf form of a record is told by that of whichever record of its sample was the first to have one.
    fn tell_protobuf(&mut self) {
        let (Some(sample), Some((text, _))) = (&self.sample, &mut self.protobuf) else { return };
        let Text::Plain(bytes) = text else { return };
        if bytes.len() > SAMPLE_BYTES_MAX {
            return;
        }
        let told = sample.protobuf.get_or_init(|| Indexed::new(bytes.clone(), Syntax::Protobuf));
        if let Some(delta) = delta::encode(&told.text, &told.anchors, bytes) {
            *text = Text::Delta(delta);
        }
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
    fn both_forms_read_as_they_were_before() {
        let sample = Sample::new(json(1));
        let message =
            |n: u32| Bytes::from(format!("\x0a\x05thing\x12\x20 a text that is the same for all \x1a\x02{n}"));
        // The protobuf form comes before, or after the text is told.
        for early in [true, false] {
            let mut texts = Texts::new(json(2));
            if early {
                texts.set_protobuf(&message(2));
            }
            assert!(texts.tell_by(&sample));
            texts.set_protobuf(&message(2));
            assert!(texts.plain().is_none());
            assert_eq!((texts.json(), texts.json_len()), (json(2), json(2).len()));
            assert_eq!(texts.protobuf(), Some(message(2)));
            texts.set_protobuf(&message(3));
            assert_eq!(texts.protobuf(), Some(message(2)), "the first one stays");
            assert!(!texts.tell_by(&sample), "once is enough");
        }
    }

    #[test]
    fn what_is_unlike_its_sample_stays_plain() {
        let mut texts = Texts::new(Bytes::from_static(br#"{"other":"thing that shares nothing"}"#));
        assert!(!texts.tell_by(&Sample::new(json(1))));
        assert!(texts.plain().is_some() && texts.protobuf().is_none());
        let large = Bytes::from(vec![b'"'; SAMPLE_BYTES_MAX + 1]);
        assert!(Texts::new(large).plain().is_none(), "too large to be a sample");
    }
}
