//! Typed decoding to the canonical form. Unknown and duplicate fields are noted with their paths, and a value of a wrong
//! type is reported with Go's message. Names are case-sensitive, as in `sigs.k8s.io/json`.
mod names;
mod numbers;
mod peek;

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_schema::{FieldType, Kind, TypeId};
use serde_json::{Map, Number, Value};

use super::lexer::Lexer;
use crate::budget::tree_bytes;
use crate::{Budget, DecodeError, Decoded, Limits, STRICT_ERRORS_MAX, StrictErrors, scalar, zero};

use names::{NOTED_BYTES_MAX, go_type, push_name, struct_name, token_name};
pub(crate) use numbers::canonical_float;
use numbers::{float, spelled_number, untyped_number};
pub use peek::peek;
use peek::text;

/// Decodes a document whose size its reader has bounded. For bodies of requests see [`crate::decode`].
pub fn decode(ty: Option<TypeId>, data: &[u8], strict: bool) -> Result<Decoded, DecodeError> {
    decode_within(ty, data, strict, &mut Budget::new(Limits::TRUSTED))
}

/// Decodes a document, or a document embedded in another at the budget's current depth, and charges the budget for it.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_within(
    ty: Option<TypeId>,
    data: &[u8],
    strict: bool,
    budget: &mut Budget,
) -> Result<Decoded, DecodeError> {
    document(ty, data, (strict, false), budget)
}

/// Decodes a document. With `as_spelled`, floats of unknown type stay floats even if they are whole.
pub(crate) fn document(
    ty: Option<TypeId>,
    data: &[u8],
    (strict, as_spelled): (bool, bool),
    budget: &mut Budget,
) -> Result<Decoded, DecodeError> {
    let text = text(data);
    let lexer = Lexer::new(&text, budget.spent().depth);
    let (path, found, type_error) = (Vec::new(), Vec::new(), None);
    let mut d = Decoder { lexer, budget, path, strict, as_spelled, found, noted_bytes: 0, type_error };
    let value = match ty {
        Some(ty) => d.root(ty)?,
        None => d.any(true)?,
    };
    d.lexer.end()?;
    match d.type_error {
        Some(message) => Err(DecodeError::Json(message)),
        None => Ok(Decoded { value, strict: StrictErrors(d.found) }),
    }
}

enum Step<'a> {
    /// A field of a struct: the struct's type and the index of the field in it.
    Field(TypeId, usize),
    Key(Cow<'a, str>),
    Index(usize),
}

struct Decoder<'a, 'b> {
    lexer: Lexer<'a>,
    budget: &'b mut Budget,
    path: Vec<Step<'a>>,
    strict: bool,
    /// Whether whole floats of unknown type stay floats.
    as_spelled: bool,
    found: Vec<String>,
    /// The bytes of the paths of all findings so far, including repeated findings.
    noted_bytes: usize,
    /// The first type error. Decoding continues, because a syntax error takes precedence.
    type_error: Option<String>,
}

impl<'a> Decoder<'a, '_> {
    fn root(&mut self, ty: TypeId) -> Result<Value, DecodeError> {
        match self.lexer.peek() {
            Some(b'{') => Ok(Value::Object(self.object(ty)?)),
            Some(b'n') => {
                self.lexer.word("null")?;
                let value = Value::Object(zero::zero_struct(ty));
                self.budget.bytes(tree_bytes(&value))?;
                Ok(value)
            }
            other => {
                self.lexer.skip()?;
                self.type_error = Some(format!(
                    "json: cannot unmarshal {} into Go value of type {}",
                    token_name(other),
                    struct_name(ty)
                ));
                Ok(Value::Null)
            }
        }
    }

    fn object(&mut self, ty: TypeId) -> Result<Map<String, Value>, DecodeError> {
        self.lexer.enter()?;
        let mut map = Map::new();
        let (mut first, mut seen) = (true, 0u128);
        while let Some(key) = self.lexer.next_key(&mut first)? {
            let Some(position) = ty.position(&key) else {
                self.note("unknown field", &key);
                self.lexer.skip()?;
                continue;
            };
            if seen & (1 << position) != 0 {
                self.note("duplicate field", &key);
            }
            seen |= 1 << position;
            let field = ty.json_field(position);
            self.budget.member(map.len(), field.json())?;
            self.path.push(Step::Field(ty, position));
            if let Some(value) = self.value(field.ty())? {
                zero::store(&mut map, field, value);
            } else if field.is_pointer() || matches!(field.ty().kind(), Kind::List(_) | Kind::Map(_)) {
                // An explicit null removes an earlier value.
                map.remove(field.json());
            }
            self.path.pop();
        }
        self.budget.bytes(zero::finish(ty, &mut map))?;
        Ok(map)
    }

    /// Decodes a value of a type. Returns `None` for null and for a value of the wrong type, which is remembered as the type error.
    fn value(&mut self, ty: FieldType) -> Result<Option<Value>, DecodeError> {
        let next = self.lexer.peek();
        let kind = ty.kind();
        if next == Some(b'n') {
            self.lexer.word("null")?;
            return Ok(None);
        }
        Ok(match (kind, next) {
            (Kind::Struct(id), Some(b'{')) => Some(Value::Object(self.object(id)?)),
            (Kind::String, Some(b'"')) => Some(self.string()?),
            (Kind::Bool, Some(b't')) => {
                self.lexer.word("true")?;
                Some(Value::Bool(true))
            }
            (Kind::Bool, Some(b'f')) => {
                self.lexer.word("false")?;
                Some(Value::Bool(false))
            }
            (Kind::Int32 | Kind::Int64 | Kind::Double, Some(b'-' | b'0'..=b'9')) => self.number(ty)?,
            (Kind::Bytes, Some(b'"')) => self.bytes()?,
            (Kind::List(elem) | Kind::WrappedList(elem), Some(b'[')) => Some(Value::Array(self.list(elem)?)),
            (Kind::Map(value), Some(b'{')) => Some(Value::Object(self.map(value)?)),
            (Kind::Time | Kind::MicroTime, _) => Some(self.time(kind == Kind::MicroTime)?),
            (Kind::Duration, _) => {
                let text = self.plain_string()?;
                Some(Value::String(scalar::format_duration(scalar::parse_duration(&text)?)))
            }
            (Kind::Quantity, _) => Some(self.quantity()?),
            (Kind::IntOrString, _) => Some(self.int_or_string()?),
            (Kind::RawExtension | Kind::FieldsV1 | Kind::Json | Kind::Any, _) => Some(self.any(false)?),
            (Kind::SchemaOrBool(id) | Kind::SchemaOrArray(id) | Kind::SchemaOrStringArray(id), _) => {
                self.schema_union(kind, id)?
            }
            _ => {
                self.lexer.skip()?;
                self.mismatch(token_name(next), ty);
                None
            }
        })
    }

    fn list(&mut self, elem: FieldType) -> Result<Vec<Value>, DecodeError> {
        self.lexer.enter()?;
        let (mut out, mut first) = (Vec::new(), true);
        while self.lexer.next_element(&mut first)? {
            self.budget.element(out.len())?;
            self.path.push(Step::Index(out.len()));
            let value = match self.value(elem)? {
                Some(value) => value,
                None => self.zero(elem)?,
            };
            out.push(value);
            self.path.pop();
        }
        Ok(out)
    }

    fn map(&mut self, ty: FieldType) -> Result<Map<String, Value>, DecodeError> {
        self.lexer.enter()?;
        let (mut out, mut first) = (Map::new(), true);
        while let Some(key) = self.lexer.next_key(&mut first)? {
            if out.contains_key(key.as_ref()) {
                self.note("duplicate field", &key);
            }
            self.budget.member(out.len(), &key)?;
            self.path.push(Step::Key(key.clone()));
            let value = self.value(ty)?;
            self.path.pop();
            let value = match value {
                Some(value) => value,
                // Protobuf has no absent byte strings in a map.
                None if ty.kind() == Kind::Bytes => Value::String(String::new()),
                None => self.zero(ty)?,
            };
            out.insert(key.into_owned(), value);
        }
        Ok(out)
    }

    /// The value that replaces `null` in a list or map.
    fn zero(&mut self, ty: FieldType) -> Result<Value, DecodeError> {
        let value = zero::zero(ty);
        self.budget.bytes(tree_bytes(&value))?;
        Ok(value)
    }

    fn number(&mut self, ty: FieldType) -> Result<Option<Value>, DecodeError> {
        let text = self.lexer.number()?;
        let number = match ty.kind() {
            Kind::Int32 => text.parse::<i32>().ok().map(Number::from),
            Kind::Int64 => text.parse::<i64>().ok().map(Number::from),
            _ => float(text),
        };
        if number.is_none() {
            self.mismatch(&format!("number {text}"), ty);
        }
        Ok(number.map(Value::Number))
    }

    fn string(&mut self) -> Result<Value, DecodeError> {
        let text = self.lexer.string()?;
        self.budget.text(text.len())?;
        Ok(Value::String(text.into_owned()))
    }

    fn bytes(&mut self) -> Result<Option<Value>, DecodeError> {
        let text = self.lexer.string()?;
        self.budget.text(text.len())?;
        // Go's decoder skips line breaks.
        let text = if text.contains(['\n', '\r']) { Cow::Owned(text.replace(['\n', '\r'], "")) } else { text };
        match STANDARD.decode(text.as_bytes()) {
            Ok(_) => Ok(Some(Value::String(text.into_owned()))),
            Err(e) => {
                let at = match e {
                    base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                    _ => text.trim_end_matches('=').len() & !3,
                };
                self.type_error.get_or_insert(format!("illegal base64 data at input byte {at}"));
                Ok(None)
            }
        }
    }

    /// Decodes a string where Go decodes into a plain `string`.
    fn plain_string(&mut self) -> Result<Cow<'a, str>, DecodeError> {
        match self.lexer.peek() {
            Some(b'"') => self.lexer.string(),
            other => {
                self.lexer.skip()?;
                Err(DecodeError::Json(format!(
                    "json: cannot unmarshal {} into Go value of type string",
                    token_name(other)
                )))
            }
        }
    }

    fn time(&mut self, micro: bool) -> Result<Value, DecodeError> {
        let text = self.plain_string()?;
        self.budget.text(text.len())?;
        let moment = scalar::parse_time(&text, micro)?;
        Ok(if moment.is_zero() { Value::Null } else { Value::String(scalar::format_time(moment, micro)) })
    }

    fn quantity(&mut self) -> Result<Value, DecodeError> {
        self.budget.text(0)?;
        if self.lexer.peek() == Some(b'"') {
            let text = self.lexer.string()?;
            return Ok(Value::String(scalar::quantity(&text)?));
        }
        let start = self.lexer.position();
        self.lexer.skip()?;
        Ok(Value::String(scalar::quantity(self.lexer.since(start))?))
    }

    fn int_or_string(&mut self) -> Result<Value, DecodeError> {
        let next = self.lexer.peek();
        match next {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => {
                let text = self.lexer.number()?;
                text.parse::<i32>().map(Value::from).map_err(|_| {
                    DecodeError::Json(format!("json: cannot unmarshal number {text} into Go value of type int32"))
                })
            }
            _ => {
                self.lexer.skip()?;
                Err(DecodeError::Json(format!(
                    "json: cannot unmarshal {} into Go value of type int32",
                    token_name(next)
                )))
            }
        }
    }

    /// Decodes the unions of custom resource schemas. Upstream does not decode their content strictly.
    fn schema_union(&mut self, kind: Kind, id: TypeId) -> Result<Option<Value>, DecodeError> {
        let strict = std::mem::replace(&mut self.strict, false);
        let value = match (kind, self.lexer.peek()) {
            (_, Some(b'{')) => Some(Value::Object(self.object(id)?)),
            (Kind::SchemaOrBool(_), Some(b't')) => {
                self.lexer.word("true")?;
                Some(Value::Bool(true))
            }
            (Kind::SchemaOrBool(_), Some(b'f')) => {
                self.lexer.word("false")?;
                Some(Value::Bool(false))
            }
            (Kind::SchemaOrBool(_), _) => {
                self.lexer.skip()?;
                return Err(DecodeError::Json("boolean or JSON schema expected".into()));
            }
            (Kind::SchemaOrArray(_), Some(b'[')) => {
                self.lexer.enter()?;
                let (mut out, mut first) = (Vec::new(), true);
                while self.lexer.next_element(&mut first)? {
                    self.budget.element(out.len())?;
                    out.push(self.root(id)?);
                }
                Some(Value::Array(out)).filter(|v| v != &Value::Array(Vec::new()))
            }
            (Kind::SchemaOrStringArray(_), Some(b'[')) => {
                self.lexer.enter()?;
                let (mut out, mut first) = (Vec::new(), true);
                while self.lexer.next_element(&mut first)? {
                    self.budget.element(out.len())?;
                    let text = self.plain_string()?;
                    self.budget.text(text.len())?;
                    out.push(Value::String(text.into_owned()));
                }
                Some(Value::Array(out)).filter(|v| v != &Value::Array(Vec::new()))
            }
            _ => {
                self.lexer.skip()?;
                None
            }
        };
        self.strict = strict;
        Ok(value)
    }

    /// Decodes any JSON value. With `check`, duplicate keys are noted.
    fn any(&mut self, check: bool) -> Result<Value, DecodeError> {
        match self.lexer.peek() {
            Some(b'{') => {
                self.lexer.enter()?;
                let (mut out, mut first) = (Map::new(), true);
                while let Some(key) = self.lexer.next_key(&mut first)? {
                    if check && out.contains_key(key.as_ref()) {
                        self.note("duplicate field", &key);
                    }
                    self.budget.member(out.len(), &key)?;
                    if check {
                        self.path.push(Step::Key(key.clone()));
                    }
                    let value = self.any(check)?;
                    if check {
                        self.path.pop();
                    }
                    out.insert(key.into_owned(), value);
                }
                Ok(Value::Object(out))
            }
            Some(b'[') => {
                self.lexer.enter()?;
                let (mut out, mut first) = (Vec::new(), true);
                while self.lexer.next_element(&mut first)? {
                    self.budget.element(out.len())?;
                    self.path.push(Step::Index(out.len()));
                    out.push(self.any(check)?);
                    self.path.pop();
                }
                Ok(Value::Array(out))
            }
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => {
                let text = self.lexer.number()?;
                let number = if self.as_spelled { spelled_number(text) } else { untyped_number(text) };
                number.map(Value::Number).ok_or_else(|| {
                    DecodeError::Json(format!("json: cannot unmarshal number {text} into Go value of type float64"))
                })
            }
            Some(b't') => self.lexer.word("true").map(|()| Value::Bool(true)),
            Some(b'f') => self.lexer.word("false").map(|()| Value::Bool(false)),
            Some(b'n') => self.lexer.word("null").map(|()| Value::Null),
            _ => Err(self.lexer.invalid("looking for beginning of value")),
        }
    }

    fn note(&mut self, what: &str, key: &str) {
        if !self.strict || self.found.len() >= STRICT_ERRORS_MAX || self.noted_bytes > NOTED_BYTES_MAX {
            return;
        }
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Field(ty, position) => push_name(&mut path, ty.json_field(*position).json()),
                Step::Key(key) => push_name(&mut path, key),
                Step::Index(i) => path.push_str(&format!("[{i}]")),
            }
        }
        push_name(&mut path, key);
        self.noted_bytes += path.len();
        let message = format!("{what} {}", scalar::go_quote(&path));
        if !self.found.contains(&message) {
            self.found.push(message);
        }
    }

    /// Remembers the first type error, with the fields around it.
    fn mismatch(&mut self, found: &str, ty: FieldType) {
        if self.type_error.is_some() {
            return;
        }
        let mut names: Vec<&str> = Vec::new();
        let mut owner = "";
        for step in &self.path {
            let Step::Field(ty, position) = step else { continue };
            let declaring = ty.declaring_type(*position);
            if declaring != *ty {
                names.push(declaring.name());
            }
            names.push(ty.json_field(*position).json());
            owner = ty.name();
        }
        // In Go the field `uid` of an object has the type `types.UID`; that of a user is a plain string.
        let is_uid = names.last() == Some(&"uid") && !["UserInfo", "SubjectAccessReviewSpec"].contains(&owner);
        let ty = if is_uid { "types.UID".to_owned() } else { go_type(ty).to_string() };
        let names = names.join(".");
        self.type_error =
            Some(format!("json: cannot unmarshal {found} into Go struct field {owner}.{names} of type {ty}"));
    }
}
