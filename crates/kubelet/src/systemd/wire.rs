//! D-Bus messages, version 1: encoding and decoding of the types that calls to systemd and logind need. Pure. The format is that of the
//! D-Bus specification, "Message Protocol".

/// Maximum message size in bytes. The specification allows more; systemd's responses have some hundred bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Size of the fixed part of a message header in bytes.
pub const FIXED_BYTES: usize = 16;
/// Maximum nesting depth of values.
const DEPTH_MAX: usize = 16;
const VERSION: u8 = 1;

/// A value with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `b`: a boolean.
    Bool(bool),
    /// `i`: a signed 32-bit integer.
    I32(i32),
    /// `u`: an unsigned 32-bit integer.
    U32(u32),
    /// `t`: an unsigned 64-bit integer.
    U64(u64),
    /// `s`: a UTF-8 string.
    Text(String),
    /// `o`: an object path.
    Path(String),
    /// `g`: a type signature.
    Signature(String),
    /// `h`: index of a file descriptor of the message.
    Descriptor(u32),
    /// `v`: a value of any type.
    Variant(Box<Value>),
    /// `a`: signature of the elements, and the elements.
    Array(String, Vec<Value>),
    /// `(…)`: a struct of values.
    Struct(Vec<Value>),
    /// A value of a type that is not needed here.
    Other,
}

impl Value {
    /// Creates a string value.
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

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A method call.
    Call = 1,
    /// The response to a call.
    Return = 2,
    /// An error response to a call.
    Error = 3,
    /// A signal from a service.
    Signal = 4,
}

/// A message in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Type of the message.
    pub kind: MessageKind,
    /// Serial number, unique per sender.
    pub serial: u32,
    /// Serial number of the call that this message responds to.
    pub answers: Option<u32>,
    /// Path of the object.
    pub path: String,
    /// Interface of the method or signal.
    pub interface: String,
    /// Name of the method or signal.
    pub member: String,
    /// Name of the error.
    pub error: String,
    /// Bus name of the destination.
    pub destination: String,
    /// Bus name of the sender, set by the bus.
    pub sender: String,
    /// Number of file descriptors.
    pub descriptors: u32,
    /// Values of the body.
    pub body: Vec<Value>,
}

impl Message {
    /// Creates a call. The connection sets its serial number.
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

    /// Encodes the message.
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

    /// Returns the total length of the message that begins with these [`FIXED_BYTES`].
    ///
    /// # Errors
    /// The bytes are not the beginning of a message, or the message is too long.
    pub fn length(fixed: &[u8; FIXED_BYTES]) -> Result<usize, WireError> {
        let mut r = WireReader::new(fixed)?;
        r.at = 4;
        let (body, _serial, fields) = (r.u32()? as usize, r.u32()?, r.u32()? as usize);
        let length = FIXED_BYTES.checked_add(fields).map(|n| n.next_multiple_of(8)).and_then(|n| n.checked_add(body));
        length.filter(|n| *n <= MESSAGE_BYTES_MAX).ok_or(WireError("the message is too long"))
    }

    /// Decodes a message; `None` if its type is unknown, in which case it must be ignored.
    ///
    /// # Errors
    /// The bytes are not a valid message.
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

/// The bytes are not a valid D-Bus message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("D-Bus: {0}")]
pub struct WireError(&'static str);

const SHORT: WireError = WireError("the message is truncated");

/// Alignment of a type in bytes.
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
    /// Writes an array: its length, then the elements. The length excludes itself and the padding before the first element.
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
            [b'B', ..] => Err(WireError("the message is big-endian, which is not supported")),
            _ => Err(WireError("the first byte is not a byte order mark of D-Bus")),
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
        String::from_utf8(text.to_vec()).map_err(|_| WireError("a string is not valid UTF-8"))
    }

    /// Reads a value of the first type in `types`, and removes that type.
    fn value(&mut self, types: &mut &str, depth: usize) -> Result<Value, WireError> {
        if depth > DEPTH_MAX {
            return Err(WireError("values are nested too deeply"));
        }
        let kind = types.bytes().next().ok_or(WireError("the signature is too short"))?;
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
                        return Err(WireError("array elements have no size"));
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
                    _ => return Err(WireError("the signature has an unknown type")),
                };
                self.align(alignment(other))?;
                self.take(bytes)?;
                Value::Other
            }
        })
    }
}

/// Length in bytes of the first complete type in `types`.
fn complete(types: &str) -> Result<usize, WireError> {
    let (mut depth, bytes) = (0usize, types.as_bytes());
    for (n, kind) in bytes.iter().enumerate() {
        match kind {
            b'a' => continue,
            b'(' | b'{' => depth += 1,
            b')' | b'}' => depth = depth.checked_sub(1).ok_or(WireError("the signature has unbalanced parentheses"))?,
            _ => {}
        }
        if depth == 0 {
            return Ok(n + 1);
        }
    }
    Err(WireError("the signature has unbalanced parentheses"))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
