//! Messages of D-Bus, version 1, as bytes: as much of the format as calls to systemd and logind need, both ways. Pure.
//! Format: the D-Bus specification, "Message Protocol".

/// Longest message that is read. The specification allows more; answers of systemd are some hundred bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a message before its header fields.
pub const FIXED_BYTES: usize = 16;
/// Values may lie in each other this deep.
const DEPTH_MAX: usize = 16;
const VERSION: u8 = 1;

/// A value with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `b`: true or false.
    Bool(bool),
    /// `i`: a number that may be negative.
    I32(i32),
    /// `u`: a small number that is never negative.
    U32(u32),
    /// `t`: a large number that is never negative.
    U64(u64),
    /// `s`: a text in UTF-8.
    Text(String),
    /// `o`: the path of an object.
    Path(String),
    /// `g`: types of values.
    Signature(String),
    /// `h`: which of the descriptors that come with the message.
    Descriptor(u32),
    /// `v`: one value that says its own type.
    Variant(Box<Value>),
    /// `a`: the type of each, and all of them.
    Array(String, Vec<Value>),
    /// `(…)`: values of different types, in order.
    Struct(Vec<Value>),
    /// Of a type that nobody here reads.
    Other,
}

impl Value {
    /// A text of the type `s`.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    fn signature(&self) -> String {
        match self {
            Self::Bool(_) => "b".into(),
            Self::I32(_) => "i".into(),
            Self::U32(_) => "u".into(),
            Self::U64(_) => "t".into(),
            Self::Text(_) => "s".into(),
            Self::Path(_) => "o".into(),
            Self::Signature(_) => "g".into(),
            Self::Descriptor(_) => "h".into(),
            Self::Variant(_) => "v".into(),
            Self::Array(of, _) => format!("a{of}"),
            Self::Struct(all) => format!("({})", all.iter().map(Self::signature).collect::<String>()),
            Self::Other => String::new(),
        }
    }
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Asks for something.
    Call = 1,
    /// What was asked for.
    Return = 2,
    /// Why it could not be had.
    Error = 3,
    /// Says that something happened.
    Signal = 4,
}

/// A message of either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is for.
    pub kind: MessageKind,
    /// Its number among its sender's messages.
    pub serial: u32,
    /// The number of the call that it answers.
    pub answers: Option<u32>,
    /// The object that it is to or from.
    pub path: String,
    /// The interface that the member is of.
    pub interface: String,
    /// The method or the signal.
    pub member: String,
    /// Name of the error.
    pub error: String,
    /// The name on the bus that it goes to.
    pub destination: String,
    /// From whom, as the bus says.
    pub sender: String,
    /// How many descriptors come with it.
    pub descriptors: u32,
    /// What is said or asked, value by value.
    pub body: Vec<Value>,
}

impl Message {
    /// A call; its number is the connection's to give.
    pub fn call(destination: &str, path: &str, interface: &str, member: &str, body: Vec<Value>) -> Self {
        Self {
            kind: MessageKind::Call,
            serial: 0,
            answers: None,
            path: path.to_owned(),
            interface: interface.to_owned(),
            member: member.to_owned(),
            error: String::new(),
            destination: destination.to_owned(),
            sender: String::new(),
            descriptors: 0,
            body,
        }
    }

    /// The bytes that go over the connection.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.body.iter().for_each(|v| body.value(v));
        let signature: String = self.body.iter().map(Value::signature).collect();
        let text = |s: &String| (!s.is_empty()).then(|| Value::Text(s.clone()));
        let fields = [
            (1, (!self.path.is_empty()).then(|| Value::Path(self.path.clone()))),
            (2, text(&self.interface)),
            (3, text(&self.member)),
            (4, text(&self.error)),
            (5, self.answers.map(Value::U32)),
            (6, text(&self.destination)),
            (7, text(&self.sender)),
            (8, (!signature.is_empty()).then_some(Value::Signature(signature))),
            (9, (self.descriptors > 0).then_some(Value::U32(self.descriptors))),
        ];
        let mut out = Writer::default();
        out.0.extend([b'l', self.kind as u8, 0, VERSION]);
        out.u32(u32::try_from(body.0.len()).unwrap_or(u32::MAX));
        out.u32(self.serial);
        out.array(8, |out| {
            for (code, value) in fields.into_iter().filter_map(|(c, v)| Some((c, v?))) {
                out.align(8);
                out.0.push(code);
                out.value(&Value::Variant(Box::new(value)));
            }
        });
        out.align(8);
        out.0.extend(body.0);
        out.0
    }

    /// The length of the message that begins with these [`FIXED_BYTES`].
    ///
    /// # Errors
    /// When no message begins so.
    pub fn length(fixed: &[u8; FIXED_BYTES]) -> Result<usize, WireError> {
        let mut r = WireReader::new(fixed)?;
        r.at = 4;
        let (body, _serial, fields) = (r.u32()? as usize, r.u32()?, r.u32()? as usize);
        let length = FIXED_BYTES.checked_add(fields).map(|n| n.next_multiple_of(8)).and_then(|n| n.checked_add(body));
        length.filter(|n| *n <= MESSAGE_BYTES_MAX).ok_or(WireError("a message is too long"))
    }

    /// Reads a whole message; `None` for one of a kind that nobody knows, which is to be passed over.
    ///
    /// # Errors
    /// When the bytes are no message.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let mut r = WireReader::new(bytes)?;
        let kind = match bytes.get(1) {
            Some(1) => MessageKind::Call,
            Some(2) => MessageKind::Return,
            Some(3) => MessageKind::Error,
            Some(4) => MessageKind::Signal,
            _ => return Ok(None),
        };
        let mut m = Self { kind, ..Self::call("", "", "", "", Vec::new()) };
        r.at = 8;
        m.serial = r.u32()?;
        let mut signature = String::new();
        let end = r.u32()? as usize + r.at;
        while r.at < end {
            r.align(8)?;
            let code = r.byte()?;
            let mut types = "v";
            let Value::Variant(value) = r.value(&mut types, 0)? else { continue };
            match (code, *value) {
                (1, Value::Path(p)) => m.path = p,
                (2, Value::Text(t)) => m.interface = t,
                (3, Value::Text(t)) => m.member = t,
                (4, Value::Text(t)) => m.error = t,
                (5, Value::U32(n)) => m.answers = Some(n),
                (6, Value::Text(t)) => m.destination = t,
                (7, Value::Text(t)) => m.sender = t,
                (8, Value::Signature(s)) => signature = s,
                (9, Value::U32(n)) => m.descriptors = n,
                _ => {}
            }
        }
        r.align(8)?;
        let mut types = signature.as_str();
        while !types.is_empty() {
            m.body.push(r.value(&mut types, 0)?);
        }
        Ok(Some(m))
    }
}

/// Bytes that are no message of D-Bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("D-Bus: {0}")]
pub struct WireError(&'static str);

const SHORT: WireError = WireError("a message ends early");

/// The bytes to which a value of this type is aligned.
fn alignment(kind: u8) -> usize {
    match kind {
        b'y' | b'g' | b'v' => 1,
        b'n' | b'q' => 2,
        b'x' | b't' | b'd' | b'(' | b'{' => 8,
        _ => 4,
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }
    fn u32(&mut self, n: u32) {
        self.align(4);
        self.0.extend(n.to_le_bytes());
    }
    fn text(&mut self, text: &str) {
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }
    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }
    /// Writes the elements behind their length, which counts neither itself nor what aligns the first of them.
    fn array(&mut self, to: usize, write: impl FnOnce(&mut Self)) {
        self.u32(0);
        let at = self.0.len() - 4;
        self.align(to);
        let begin = self.0.len();
        write(self);
        let length = u32::try_from(self.0.len() - begin).unwrap_or(u32::MAX);
        self.0[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
    fn value(&mut self, value: &Value) {
        match value {
            Value::Bool(b) => self.u32(u32::from(*b)),
            Value::I32(n) => self.u32(n.cast_unsigned()),
            Value::U32(n) | Value::Descriptor(n) => self.u32(*n),
            Value::U64(n) => {
                self.align(8);
                self.0.extend(n.to_le_bytes());
            }
            Value::Text(t) | Value::Path(t) => self.text(t),
            Value::Signature(s) => self.signature(s),
            Value::Variant(v) => {
                self.signature(&v.signature());
                self.value(v);
            }
            Value::Array(of, all) => {
                let to = alignment(of.bytes().next().unwrap_or(b'y'));
                self.array(to, |w| all.iter().for_each(|v| w.value(v)));
            }
            Value::Struct(all) => {
                self.align(8);
                all.iter().for_each(|v| self.value(v));
            }
            Value::Other => {}
        }
    }
}

struct WireReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> WireReader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        match bytes {
            [b'l', _, _, VERSION, ..] => Ok(Self { bytes, at: 0 }),
            [b'B', ..] => Err(WireError("a message has the other order of bytes")),
            _ => Err(WireError("this is no message")),
        }
    }
    fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(n).ok_or(SHORT)?;
        let taken = self.bytes.get(self.at..end).ok_or(SHORT)?;
        self.at = end;
        Ok(taken)
    }
    fn align(&mut self, to: usize) -> Result<(), WireError> {
        self.take(self.at.next_multiple_of(to) - self.at).map(drop)
    }
    fn byte(&mut self) -> Result<u8, WireError> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32, WireError> {
        self.align(4)?;
        let mut n = [0; 4];
        n.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(n))
    }
    fn u64(&mut self) -> Result<u64, WireError> {
        self.align(8)?;
        let mut n = [0; 8];
        n.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(n))
    }
    fn string(&mut self, length: usize) -> Result<String, WireError> {
        let text = self.take(length)?;
        self.take(1)?;
        String::from_utf8(text.to_vec()).map_err(|_| WireError("a text is not UTF-8"))
    }

    /// Reads the value of the first of `types`, and takes that type from them.
    fn value(&mut self, types: &mut &str, depth: usize) -> Result<Value, WireError> {
        if depth > DEPTH_MAX {
            return Err(WireError("values lie in each other too deep"));
        }
        let kind = types.bytes().next().ok_or(WireError("a type is missing"))?;
        let whole = *types;
        *types = &types[complete(types)?..];
        Ok(match kind {
            b'b' => Value::Bool(self.u32()? != 0),
            b'i' => Value::I32(self.u32()?.cast_signed()),
            b'u' => Value::U32(self.u32()?),
            b'h' => Value::Descriptor(self.u32()?),
            b't' => Value::U64(self.u64()?),
            b's' | b'o' => {
                let length = self.u32()? as usize;
                let text = self.string(length)?;
                if kind == b's' { Value::Text(text) } else { Value::Path(text) }
            }
            b'g' => {
                let length = usize::from(self.byte()?);
                Value::Signature(self.string(length)?)
            }
            b'v' => {
                let length = usize::from(self.byte()?);
                let of = self.string(length)?;
                Value::Variant(Box::new(self.value(&mut of.as_str(), depth + 1)?))
            }
            b'a' => {
                let of = &whole[1..complete(whole)?];
                let length = self.u32()? as usize;
                self.align(alignment(of.bytes().next().unwrap_or(b'y')))?;
                let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(SHORT)?;
                let mut all = Vec::new();
                while self.at < end {
                    let before = self.at;
                    all.push(self.value(&mut &*of, depth + 1)?);
                    if self.at == before {
                        return Err(WireError("values without bytes do not end"));
                    }
                }
                Value::Array(of.to_owned(), all)
            }
            b'(' | b'{' => {
                self.align(8)?;
                let inner = &whole[1..complete(whole)? - 1];
                let (mut inner, mut all) = (inner, Vec::new());
                while !inner.is_empty() {
                    all.push(self.value(&mut inner, depth + 1)?);
                }
                Value::Struct(all)
            }
            other => {
                let bytes = match other {
                    b'y' => 1,
                    b'n' | b'q' => 2,
                    b'x' | b'd' => 8,
                    _ => return Err(WireError("a type is not known")),
                };
                self.align(alignment(other))?;
                self.take(bytes)?;
                Value::Other
            }
        })
    }
}

/// Bytes that the first type of `types` takes of it.
fn complete(types: &str) -> Result<usize, WireError> {
    let (mut depth, bytes) = (0usize, types.as_bytes());
    for (n, kind) in bytes.iter().enumerate() {
        match kind {
            b'a' => continue,
            b'(' | b'{' => depth += 1,
            b')' | b'}' => depth = depth.checked_sub(1).ok_or(WireError("types do not close"))?,
            _ => {}
        }
        if depth == 0 {
            return Ok(n + 1);
        }
    }
    Err(WireError("types do not close"))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
