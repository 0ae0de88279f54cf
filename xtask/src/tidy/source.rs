//! The part of Rust's grammar that the rules need: comments, strings and test modules.

/// Returns the text with comments and string contents blanked, with the same lines.
pub fn without_comments(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let end = match bytes[i] {
            b'/' if bytes.get(i + 1) == Some(&b'/') => until(bytes, i, b'\n'),
            b'/' if bytes.get(i + 1) == Some(&b'*') => block_comment(bytes, i),
            b'"' => string(bytes, i),
            b'r' | b'b' | b'c' if !out.last().is_some_and(|b| is_word(*b)) => raw_string(bytes, i),
            b'\'' => character(bytes, i),
            _ => i,
        };
        if end == i {
            out.push(bytes[i]);
            i += 1;
            continue;
        }
        out.extend(bytes[i..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
        i = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

fn until(bytes: &[u8], from: usize, stop: u8) -> usize {
    bytes[from..].iter().position(|b| *b == stop).map_or(bytes.len(), |n| from + n)
}

fn block_comment(bytes: &[u8], from: usize) -> usize {
    let (mut depth, mut i) = (0usize, from);
    while i < bytes.len() {
        match &bytes[i..(i + 2).min(bytes.len())] {
            b"/*" => (depth, i) = (depth + 1, i + 2),
            b"*/" if depth == 1 => return i + 2,
            b"*/" => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    bytes.len()
}

fn string(bytes: &[u8], from: usize) -> usize {
    let mut i = from + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    bytes.len()
}

/// Returns the end of `r"…"`, `r#"…"#`, `b"…"`, `br#"…"#`, `c"…"`; `from` when there is none.
fn raw_string(bytes: &[u8], from: usize) -> usize {
    let mut i = from;
    let mut raw = false;
    while i < bytes.len() && matches!(bytes[i], b'b' | b'c' | b'r') && i < from + 2 {
        raw |= bytes[i] == b'r';
        i += 1;
    }
    if !raw {
        return if bytes.get(i) == Some(&b'"') { string(bytes, i) } else { from };
    }
    let hashes = bytes[i..].iter().take_while(|b| **b == b'#').count();
    i += hashes;
    if bytes.get(i) != Some(&b'"') {
        return from;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &bytes[i + 1..];
    body.windows(close.len()).position(|w| w == close).map_or(bytes.len(), |n| i + 1 + n + close.len())
}

/// Returns the end of a character literal; `from` when the quote begins a lifetime.
fn character(bytes: &[u8], from: usize) -> usize {
    match bytes.get(from + 1) {
        Some(b'\\') => until(bytes, from + 3, b'\'') + 1,
        Some(_) => {
            // A character of one or several bytes, followed by its quote.
            let close = (from + 2..(from + 6).min(bytes.len())).find(|i| bytes[*i] == b'\'');
            match close {
                Some(i) if i == from + 2 || !bytes[from + 1].is_ascii() => i + 1,
                _ => from,
            }
        }
        None => from,
    }
}

/// Blanks modules and items under `#[cfg(test)]`. `code` has no comments.
pub fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    while let Some(at) = out.find("#[cfg(test)]") {
        let rest = &out[at..];
        let end = at + item_end(rest);
        let blank: String = out[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(at..end, &blank);
    }
    out
}

/// Returns the position after the item that follows the attribute at the start: a block, a statement, or a field up to its comma.
fn item_end(code: &str) -> usize {
    let mut depth = 0usize;
    for (i, b) in code.bytes().enumerate() {
        match b {
            b'(' | b'[' | b'<' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            // The arrow of a return type closes nothing.
            b'>' if i > 0 && code.as_bytes()[i - 1] != b'-' => depth = depth.saturating_sub(1),
            b'{' => return block_end(code, i),
            b';' | b',' if depth == 0 => return i + 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns the position after the block whose brace opens at `open`.
pub fn block_end(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (i, b) in code.bytes().enumerate().skip(open) {
        match b {
            b'{' => depth += 1,
            b'}' if depth == 1 => return i + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_tests_go() {
        for (text, want) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x // y", 'z', '"')"#, r"f(        ,    ,    )"),
            ("r#\"a \" b\"# c", "           c"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("b\"x\" br\"y\" for", "           for"),
            ("'\\n' '\\u{1F600}' 'é'", "                    "),
        ] {
            assert_eq!(without_comments(text).trim_end(), want.trim_end(), "{text}");
        }
        let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { if x {} }\n}\nfn c() {}\n";
        let own = without_tests(code);
        assert!(own.contains("fn a()") && own.contains("fn c()") && !own.contains("fn b()"));
        assert_eq!(own.lines().count(), code.lines().count());
        assert!(!without_tests("#[cfg(test)]\nmod testing;\nfn d() {}").contains("testing"));
        let field = "S {\n    a: 1,\n    #[cfg(test)]\n    count: 0,\n}\nfn e(x: u8, y: u8) -> u8 {}\n";
        assert!(!without_tests(field).contains("count") && without_tests(field).contains("fn e"));
        let signature = "#[cfg(test)]\nfn f(x: Map<u8, u8>, y: u8) -> Map<u8, u8> { g(1, 2) }\nfn h() {}";
        assert_eq!(without_tests(signature).trim(), "fn h() {}");
    }
}
