//! Unquotes string and bytes literals.

const PLAIN: &str = "unable to unescape string";
const OCTAL: &str = "unable to unescape octal sequence in string";
const POINT: &str = "invalid unicode code point";

/// The bytes of a literal (without its `b`), after removing quotes and escapes. Escapes are code points in a string and bytes in a
/// bytes literal.
pub(crate) fn unquote(literal: &str, bytes: bool) -> Result<Vec<u8>, &'static str> {
    let normalized = literal.replace("\r\n", "\n").replace('\r', "\n");
    let (raw, quoted) = match normalized.strip_prefix(['r', 'R']) {
        Some(rest) => (true, rest),
        None => (false, normalized.as_str()),
    };
    let closing = if quoted.len() >= 6 && (quoted.starts_with("'''") || quoted.starts_with("\"\"\"")) { 3 } else { 1 };
    let inner = quoted.get(closing..quoted.len().saturating_sub(closing)).ok_or(PLAIN)?;
    if raw || !inner.contains('\\') {
        return Ok(inner.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c == '\\' {
            escape(&mut chars, bytes, &mut out)?;
        } else {
            push(&mut out, c);
        }
    }
    Ok(out)
}

fn push(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn escape(chars: &mut std::str::Chars<'_>, bytes: bool, out: &mut Vec<u8>) -> Result<(), &'static str> {
    let c = chars.next().ok_or("unable to unescape string, found '\\' as last character")?;
    let simple = match c {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => 10,
        'r' => 13,
        't' => 9,
        'v' => 11,
        '\\' | '\'' | '"' | '`' | '?' => c as u8,
        _ => 0,
    };
    if simple != 0 {
        out.push(simple);
        return Ok(());
    }
    let value = match c {
        'x' | 'X' => number(chars, 2, 16).ok_or(PLAIN)?,
        'u' if !bytes => number(chars, 4, 16).ok_or(PLAIN)?,
        'U' if !bytes => number(chars, 8, 16).ok_or(PLAIN)?,
        '0'..='3' => number(chars, 2, 8).ok_or(OCTAL)? + (c as u32 - '0' as u32) * 64,
        _ => return Err(PLAIN),
    };
    if bytes {
        out.push(value as u8);
    } else {
        push(out, char::from_u32(value).ok_or(POINT)?);
    }
    Ok(())
}

fn number(chars: &mut std::str::Chars<'_>, digits: usize, radix: u32) -> Option<u32> {
    (0..digits).try_fold(0u32, |n, _| Some(n.checked_mul(radix)? + chars.next()?.to_digit(radix)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        for (literal, bytes, expected) in [
            (r#""a\n\t\"\x41\u00e9\U0001F600\101""#, false, Ok("a\n\t\"Aé😀A".as_bytes())),
            (r"r'a\n'", false, Ok(br"a\n".as_slice())),
            ("'''a'b'''", false, Ok(b"a'b".as_slice())),
            (r"'\xff\377'", true, Ok(&[0xff, 0xff])),
            (r"'\xff'", false, Ok("ÿ".as_bytes())),
            (r"'\u0041'", true, Err(PLAIN)),
            (r"'\q'", false, Err(PLAIN)),
            (r"'\18'", false, Err(OCTAL)),
            (r"'\ud800'", false, Err(POINT)),
        ] {
            assert_eq!(unquote(literal, bytes).as_deref(), expected.as_ref().map(|b| *b), "{literal}");
        }
    }
}
