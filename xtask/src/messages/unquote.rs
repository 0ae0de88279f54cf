//! The value of a string literal in the source.

/// Returns the value of `"…"` or `r#"…"#`; `None` for other literals.
pub fn unquote(source: &str) -> Option<String> {
    if let Some(raw) = source.strip_prefix('r') {
        let raw = raw.trim_matches('#');
        return raw.strip_prefix('"')?.strip_suffix('"').map(str::to_owned);
    }
    let inner = source.strip_prefix('"')?.strip_suffix('"')?;
    let (mut out, mut rest) = (String::with_capacity(inner.len()), inner.chars());
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match rest.next()? {
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            '0' => out.push('\0'),
            // The line break and the indentation of the next line are not part of the value.
            '\n' => rest = rest.as_str().trim_start().chars(),
            'x' => {
                let digits: String = rest.by_ref().take(2).collect();
                out.push(char::from(u8::from_str_radix(&digits, 16).ok()?));
            }
            'u' => {
                let digits: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                out.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
            }
            other => out.push(other),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_raw_strings() {
        for (source, value) in [
            (r#""a""#, Some("a")),
            (r#""a\n\t\"b\"\\""#, Some("a\n\t\"b\"\\")),
            ("\"a \\\n      b\"", Some("a b")),
            (r#""\u{e9}\x41""#, Some("éA")),
            (r###"r#"a "b" \n"#"###, Some(r#"a "b" \n"#)),
            (r#"b"a""#, None),
            ("'a'", None),
            ("12", None),
        ] {
            assert_eq!(unquote(source).as_deref(), value, "{source}");
        }
    }
}
