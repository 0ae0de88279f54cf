//! Reads the API version and kind of a document before the rest.
use std::borrow::Cow;

use super::super::lexer::Lexer;
use super::names::token_name;
use crate::{DecodeError, TypeMeta};

/// Reads `apiVersion` and `kind` and skips everything else.
pub fn peek(data: &[u8]) -> Result<TypeMeta, DecodeError> {
    let wrap = |e: DecodeError| DecodeError::Json(format!("couldn't get version/kind; json parse error: {e}"));
    let text = text(data);
    peek_text(&text).map_err(wrap)
}

pub(super) fn peek_text(text: &str) -> Result<TypeMeta, DecodeError> {
    let mut lexer = Lexer::new(text, 0);
    let mut found = TypeMeta::default();
    match lexer.peek() {
        Some(b'{') => {}
        Some(b'n') => {
            lexer.word("null")?;
            lexer.end()?;
            return Ok(found);
        }
        other => {
            lexer.skip()?;
            let message = format!(
                "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                token_name(other)
            );
            return Err(DecodeError::Json(message));
        }
    }
    lexer.enter()?;
    let mut first = true;
    while let Some(key) = lexer.next_key(&mut first)? {
        let target = match key.as_ref() {
            "apiVersion" => &mut found.api_version,
            "kind" => &mut found.kind,
            _ => {
                lexer.skip()?;
                continue;
            }
        };
        match lexer.peek() {
            Some(b'"') => *target = lexer.string()?.into_owned(),
            Some(b'n') => lexer.skip()?,
            other => {
                lexer.skip()?;
                let message =
                    format!("json: cannot unmarshal {} into Go struct field .{key} of type string", token_name(other));
                return Err(DecodeError::Json(message));
            }
        }
    }
    lexer.end()?;
    Ok(found)
}

/// Decodes bytes as UTF-8. Invalid bytes are replaced, as in Go.
pub(super) fn text(data: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(data)
}
