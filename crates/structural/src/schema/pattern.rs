//! `pattern`: regular expressions as authors write them, in the syntax of RE2, matched by a crate whose syntax differs in
//! corners. Compiled ones are many times larger than their text, so that only those in use are kept.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};

use super::node::Name;

/// Compiled patterns that are kept for all schemas together.
const KEPT_MAX: usize = 256;
/// Bytes that one compiled pattern may have; a larger one counts as invalid.
const COMPILED_BYTES_MAX: usize = 4 << 20;
/// Bytes of working memory of a pattern while it matches. Beyond them it is matched more slowly, in still linear time.
const DFA_BYTES_MAX: usize = 256 << 10;
/// How often RE2 lets a part be repeated.
const REPEAT_MAX: u32 = 1000;

#[derive(Default)]
struct Kept {
    compiled: HashMap<Name, (Arc<Regex>, u64)>,
    uses: u64,
}

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

/// Whether a text has a match of the pattern.
///
/// # Errors
/// Why the pattern is none.
pub fn matches(pattern: &Name, text: &str) -> Result<bool, String> {
    Ok(compiled(pattern)?.is_match(text))
}

fn compiled(pattern: &Name) -> Result<Arc<Regex>, String> {
    // The table is whole after a panic: nothing is half done in it.
    let lock = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    {
        let mut kept = lock();
        kept.uses += 1;
        let now = kept.uses;
        if let Some((regex, used)) = kept.compiled.get_mut(pattern) {
            *used = now;
            return Ok(Arc::clone(regex));
        }
    }
    let regex = Arc::new(compile(pattern)?);
    let mut kept = lock();
    if kept.compiled.len() >= KEPT_MAX {
        // The older half goes at once, so that the search for what is old costs little per pattern.
        let mut ages: Vec<u64> = kept.compiled.values().map(|(_, used)| *used).collect();
        ages.sort_unstable();
        let middle = ages[ages.len() / 2];
        kept.compiled.retain(|_, (_, used)| *used > middle);
    }
    let now = kept.uses;
    kept.compiled.insert(pattern.clone(), (Arc::clone(&regex), now));
    Ok(regex)
}

/// Compiles a pattern.
///
/// # Errors
/// Why it is none.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    let translated = translate(pattern)?;
    RegexBuilder::new(&translated).size_limit(COMPILED_BYTES_MAX).dfa_size_limit(DFA_BYTES_MAX).build().map_err(|why| {
        match why {
            regex::Error::CompiledTooBig(_) => "expression too large".to_owned(),
            other => other.to_string().lines().last().unwrap_or_default().trim().to_owned(),
        }
    })
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// What stands before a character, as far as repetitions care.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Part,
    Repetition,
    LazyRepetition,
}

/// The pattern in the crate's syntax: classes of ASCII where RE2 means ASCII, and characters that RE2 takes literally.
fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars().peekable();
    let mut before = Before::Part;
    while let Some(c) = rest.next() {
        let repetition = match c {
            '*' | '+' => true,
            '?' => !out.ends_with('(') || out.ends_with("\\("),
            '{' => repeats(&rest)?,
            _ => false,
        };
        before = match (repetition, before, c) {
            (false, ..) => Before::Part,
            (true, Before::Part, _) => Before::Repetition,
            (true, Before::Repetition, '?') => Before::LazyRepetition,
            (true, ..) => return Err(format!("invalid nested repetition operator: `{c}`")),
        };
        match c {
            '\\' => match rest.next() {
                None => return Err("trailing backslash at end of expression".to_owned()),
                Some('Q') => quoted(&mut rest, &mut out),
                Some(escaped) => escape(escaped, false, &mut rest, &mut out),
            },
            '[' => class(&mut rest, &mut out)?,
            '{' if repetition => {
                out.push('{');
                copy_through(&mut rest, '}', &mut out);
            }
            '{' | '}' => {
                out.push('\\');
                out.push(c);
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

fn copy_through(rest: &mut Chars<'_>, end: char, out: &mut String) {
    for c in rest.by_ref() {
        out.push(c);
        if c == end {
            break;
        }
    }
}

/// A class of characters, after its bracket. RE2 has no operators between classes and no classes in classes but the named.
fn class(rest: &mut Chars<'_>, out: &mut String) -> Result<(), String> {
    out.push('[');
    if rest.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut first = true;
    while let Some(c) = rest.next() {
        match c {
            ']' if !first => {
                out.push(']');
                return Ok(());
            }
            '\\' => match rest.next() {
                None => break,
                Some(escaped) => escape(escaped, true, rest, out),
            },
            '[' if rest.peek() == Some(&':') => {
                out.push('[');
                copy_through(rest, ']', out);
            }
            '[' | ']' | '&' | '~' => {
                out.push('\\');
                out.push(c);
            }
            '-' if rest.peek() == Some(&'-') => out.push_str("\\-"),
            other => out.push(other),
        }
        first = false;
    }
    Err("missing closing ]".to_owned())
}

fn escape(escaped: char, class: bool, rest: &mut Chars<'_>, out: &mut String) {
    match (escaped, class) {
        ('d', _) => out.push_str(if class { "0-9" } else { "[0-9]" }),
        ('w', _) => out.push_str(if class { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
        ('s', _) => out.push_str(if class { "\\t\\n\\x0c\\r " } else { "[\\t\\n\\x0c\\r ]" }),
        ('D', _) => out.push_str("[^0-9]"),
        ('W', _) => out.push_str("[^0-9A-Za-z_]"),
        ('S', _) => out.push_str("[^\\t\\n\\x0c\\r ]"),
        ('b', false) => out.push_str("(?-u:\\b)"),
        ('B', false) => out.push_str("(?-u:\\B)"),
        ('C', false) => out.push_str("(?s:.)"),
        ('<' | '>', _) => out.push(escaped),
        ('p' | 'P' | 'x', _) if rest.peek() == Some(&'{') => {
            out.push('\\');
            out.push(escaped);
            copy_through(rest, '}', out);
        }
        _ => {
            out.push('\\');
            out.push(escaped);
        }
    }
}

/// The text between `\Q` and `\E`, as it is.
fn quoted(rest: &mut Chars<'_>, out: &mut String) {
    let mut text = String::new();
    for c in rest.by_ref() {
        text.push(c);
        if text.ends_with("\\E") {
            text.truncate(text.len() - 2);
            break;
        }
    }
    out.push_str(&regex::escape(&text));
}

/// Whether what follows an open brace makes it a repetition; RE2 takes any other brace as a character.
fn repeats(rest: &Chars<'_>) -> Result<bool, String> {
    let inside: String = rest.clone().take_while(|c| *c != '}').take(16).collect();
    let closed = rest.clone().nth(inside.chars().count()) == Some('}');
    let (min, max) = inside.split_once(',').unwrap_or((&inside, &inside));
    let number = |s: &str| !s.is_empty() && s.bytes().all(|c| c.is_ascii_digit());
    if !closed || !number(min) || !(max.is_empty() || number(max)) {
        return Ok(false);
    }
    let too_often = |s: &str| !s.is_empty() && s.parse::<u32>().map_or(true, |n| n > REPEAT_MAX);
    if too_often(min) || too_often(max) {
        return Err(format!("invalid repeat count: `{{{inside}}}`"));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_re2() {
        for (pattern, yes, no) in [
            (r"^\d+$", "42", "٤٢"),
            (r"^\w+$", "a_1", "é"),
            (r"^[\w.-]+$", "a.b-c", "a b"),
            (r"^[[:alpha:]]+$", "ab", "a1"),
            (r"^[a[]$", "[", "]"),
            (r"^[]a]$", "]", "["),
            (r"^[a&&b]$", "&", "c"),
            (r"^a{,2}$", "a{,2}", "aa"),
            (r"^\{x\}$", "{x}", "x"),
            (r"^{x}$", "{x}", "x"),
            (r"^(a|b){2,3}$", "aba", "a"),
            (r"^\p{Lu}\pL*$", "Éa", "éa"),
            (r"^\x{41}$", "A", "x"),
            (r"^\Qa.b\E$", "a.b", "axb"),
            (r"^a+?b*$", "aab", "b"),
            (r"^(?:a|b)??c$", "ac", "abc"),
            (r"^\/x\-y$", "/x-y", "x"),
            ("a", "xax", "b"),
        ] {
            let pattern: Name = pattern.into();
            assert_eq!(matches(&pattern, yes), Ok(true), "{pattern} {yes}");
            assert_eq!(matches(&pattern, no), Ok(false), "{pattern} {no}");
        }
    }

    #[test]
    fn bombs_are_no_patterns() {
        for bad in ["(", "[a", "a**", "a{1001}", "(((((a{100}){100}){100}){100}){100})", "\\", "(?=a)", r"(a)\1"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        for n in 0..KEPT_MAX * 2 {
            let pattern: Name = format!("^kept{n}$").into();
            assert_eq!(matches(&pattern, &format!("kept{n}")), Ok(true));
        }
        assert!(KEPT.lock().unwrap().compiled.len() <= KEPT_MAX);
    }
}
