//! RE2 patterns in Go's syntax, on an engine that also takes linear time. Patterns that the two read differently are rewritten: classes
//! such as `\d` mean ASCII in Go, and fewer characters are special within brackets.
mod budget;
mod kept;

use regex::{Regex, RegexBuilder};

pub use budget::PatternBudget;
use budget::TOO_LARGE;

/// The most bytes of one compiled pattern. A larger one counts as invalid.
const COMPILED_BYTES_MAX: usize = 4 << 20;
/// The working memory in bytes of a pattern while it matches. Beyond it, matching is slower but still linear.
const DFA_BYTES_MAX: usize = 256 << 10;
/// The most repetitions of a part, as in Go.
const REPEATED: u32 = 1000;
/// The nesting depth of groups.
const DEPTH: u32 = 250;

/// Compiles a pattern, or returns the error with Go's message. A recently compiled pattern is taken from the cache; any other is charged
/// to the current [`PatternBudget`] of this thread.
///
/// # Errors
/// Returns the first error in the pattern.
pub fn compile(pattern: &str) -> Result<Regex, &'static str> {
    if let Some(regex) = kept::find(pattern) {
        return Ok(regex);
    }
    let rewritten = rewrite(pattern)?;
    let states = budget::states(&rewritten, DEPTH)?;
    budget::charge(states)?;
    let mut builder = RegexBuilder::new(&rewritten);
    builder.size_limit(COMPILED_BYTES_MAX).dfa_size_limit(DFA_BYTES_MAX).nest_limit(DEPTH);
    let regex = builder.build().map_err(|e| match e {
        regex::Error::CompiledTooBig(_) => TOO_LARGE,
        _ => "invalid syntax",
    })?;
    kept::keep(pattern, &regex, states);
    Ok(regex)
}

/// Rewrites the pattern for this engine.
fn rewrite(pattern: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut open = 0u32;
    // The state of a repetition: none, repeated, or repeated and lazy.
    let mut repeated = 0;
    while let Some(c) = rest.chars().next() {
        let next = &rest[c.len_utf8()..];
        let counts = if c == '{' { count(next)? } else { None };
        repeated = match c {
            '*' | '+' => repeated + 2,
            '?' => repeated + if repeated == 2 { 1 } else { 2 },
            '{' if counts.is_some() => repeated + 2,
            _ => 0,
        };
        if repeated > 3 {
            return Err("invalid nested repetition operator");
        }
        rest = match c {
            '\\' => escape(next, false, &mut out)?,
            '[' => class(next, &mut out)?,
            '{' => match counts {
                Some(length) => {
                    out.push_str(&rest[..=length]);
                    &next[length..]
                }
                // A brace without a count is a literal character.
                None => {
                    out.push_str("\\{");
                    next
                }
            },
            '}' => {
                out.push_str("\\}");
                next
            }
            c => {
                open = match c {
                    '(' => open + 1,
                    ')' => open.checked_sub(1).ok_or("unexpected )")?,
                    _ => open,
                };
                out.push(c);
                next
            }
        };
    }
    if open > 0 { Err("missing closing )") } else { Ok(out) }
}

/// The length of `3,5}` after a brace, if it is a valid count.
fn count(rest: &str) -> Result<Option<usize>, &'static str> {
    let Some(end) = rest.find('}') else { return Ok(None) };
    let (least, most) = rest[..end].split_once(',').unwrap_or((&rest[..end], ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if least.is_empty() || !digits(least) || !digits(most) {
        return Ok(None);
    }
    let within = |s: &str| s.is_empty() || s.parse::<u32>().is_ok_and(|n| n <= REPEATED);
    if !within(least) || !within(most) {
        return Err("invalid repeat count");
    }
    Ok(Some(end + 1))
}

fn escape<'p>(rest: &'p str, within: bool, out: &mut String) -> Result<&'p str, &'static str> {
    let c = rest.chars().next().ok_or("trailing backslash at end of expression")?;
    let after = &rest[c.len_utf8()..];
    let ascii = match c {
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => "\\t\\n\\x0c\\r ",
        _ => "",
    };
    let negated = match c {
        'D' => "[^0-9]",
        'W' => "[^0-9A-Za-z_]",
        'S' => "[^\\t\\n\\x0c\\r ]",
        _ => "",
    };
    match c {
        'd' | 'w' | 's' if within => out.push_str(ascii),
        'd' | 'w' | 's' => {
            out.push('[');
            out.push_str(ascii);
            out.push(']');
        }
        'D' | 'W' | 'S' => out.push_str(negated),
        'b' | 'B' if !within => {
            out.push_str("(?-u:\\");
            out.push(c);
            out.push(')');
        }
        'Q' if !within => {
            let (literal, after) = after.split_once("\\E").unwrap_or((after, ""));
            out.push_str(&regex::escape(literal));
            return Ok(after);
        }
        // These are word boundaries in this engine, and literal characters in Go.
        '<' | '>' => out.push(c),
        'C' | 'Z' => return Err("invalid escape sequence"),
        'p' | 'P' | 'x' if after.starts_with('{') => {
            let end = after.find('}').ok_or("invalid character class range")?;
            out.push('\\');
            out.push(c);
            out.push_str(&after[..=end]);
            return Ok(&after[end + 1..]);
        }
        '0'..='7' if c == '0' || after.starts_with(|n: char| ('0'..='7').contains(&n)) => {
            let digits = rest.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
            let point = u32::from_str_radix(&rest[..digits], 8).unwrap_or(0);
            out.push_str(&format!("\\x{{{point:x}}}"));
            return Ok(&rest[digits..]);
        }
        c => {
            out.push('\\');
            out.push(c);
        }
    }
    Ok(after)
}

/// Rewrites a bracket expression. In Go only `\`, `]`, `^`, `-` and named classes are special in it.
fn class<'p>(mut rest: &'p str, out: &mut String) -> Result<&'p str, &'static str> {
    out.push('[');
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut first = true;
    loop {
        let c = rest.chars().next().ok_or("missing closing ]")?;
        let after = &rest[c.len_utf8()..];
        match c {
            ']' if !first => {
                out.push(']');
                return Ok(after);
            }
            ']' => out.push_str("\\]"),
            '\\' => {
                rest = escape(after, true, out)?;
                first = false;
                continue;
            }
            '[' => {
                if let Some(end) = after.starts_with(':').then(|| after.find(":]")).flatten() {
                    out.push('[');
                    out.push_str(&after[..end + 2]);
                    rest = &after[end + 2..];
                    first = false;
                    continue;
                }
                out.push_str("\\[");
            }
            '&' | '~' => {
                out.push('\\');
                out.push(c);
            }
            // Two of them would be the difference of classes.
            '-' if first || after.starts_with([']', '-']) => out.push_str("\\-"),
            c => out.push(c),
        }
        first = false;
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_patterns_as_go_does() {
        for (pattern, text, found) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\d.-]+$", "1-2.3", true),
            (r"^[a-z&&b]+$", "a&b", true),
            (r"^[[]$", "[", true),
            (r"^[]a]$", "]", true),
            (r"a{2}b", "aab", true),
            (r"^{a}$", "{a}", true),
            (r"^a{2}?b*?$", "aab", true),
            (r"\Qa.b\E", "a.b", true),
            (r"\Qa.b\E", "axb", false),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"(?i)ABC", "abc", true),
            (r"^\w+\b", "a_1", true),
            (r"^a{3,}$", "aaaa", true),
            (r"\x41\101", "AA", true),
            (r"^\x{1F600}$", "😀", true),
            (r"^\p{Lu}\pL*$", "Éa", true),
            (r"^\p{Lu}\pL*$", "éa", false),
            (r"^[\p{Greek}]$", "α", true),
            (r"^\<a\>$", "<a>", true),
            (r"^a{,2}$", "a{,2}", true),
            (r"^(?:a|b)??c$", "ac", true),
        ] {
            assert_eq!(compile(pattern).map(|r| r.is_match(text)), Ok(found), "{pattern}");
        }
        for wrong in [
            "(",
            "[a",
            "a**",
            "x++",
            "a{2}{3}",
            "a+??",
            ")",
            r"a{1001}",
            r"\C",
            r"\p{L",
            r"(?=a)",
            r"\1",
            "((a{1000}){1000}){1000}",
        ] {
            assert!(compile(wrong).is_err(), "{wrong}");
        }
    }
}
