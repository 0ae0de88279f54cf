//! Removes credentials from a plugin's stderr before it is shown: the secrets whose values are known, and whatever
//! looks like one. In doubt text is removed.

/// The replacement of removed parts.
const REDACTED: &str = "[redacted]";
/// Shortest known secret that is looked for; shorter ones would take out ordinary words.
const KNOWN_BYTES_MIN: usize = 4;
/// Shortest run of letters and digits that looks like a key.
const KEY_BYTES_MIN: usize = 20;
/// Parts of the names of secrets.
const NAMES: [&str; 13] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "accesskey",
    "access_key",
    "accountkey",
    "private",
];
/// Whole names, after a separator at most, that a secret follows; contained in other words they are harmless.
const WHOLE_NAMES: [&str; 2] = ["auth", "authorization"];
/// Names that a secret follows without any sign.
const BARE_NAMES: [&str; 6] = ["password", "passwd", "passphrase", "pwd", "secret", "token"];

/// `text` as one line of at most `bytes_max` bytes of its end, free of credentials.
pub fn scrub(text: &str, known: &[&str], bytes_max: usize) -> String {
    let mut text = text.to_owned();
    let mut known: Vec<&str> = known.iter().copied().filter(|k| k.len() >= KNOWN_BYTES_MIN).collect();
    known.sort_by_key(|k| std::cmp::Reverse(k.len()));
    for k in known {
        text = text.replace(k, REDACTED);
    }
    let mut out = Vec::new();
    let mut follows: Option<Follows> = None;
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()) {
        match follows.take() {
            Some(Follows::Quoted(quote)) => {
                if !word.contains(quote) {
                    follows = Some(Follows::Quoted(quote));
                }
                continue;
            }
            Some(Follows::Word) if matches!(word, "=" | ":" | "=>" | "is") => {
                out.push(word.to_owned());
                follows = Some(Follows::Word);
                continue;
            }
            Some(Follows::Word) if word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic") => {
                follows = Some(Follows::Word);
                continue;
            }
            Some(Follows::Word) => {
                out.push(REDACTED.to_owned());
                follows = unclosed(word);
                continue;
            }
            None => {}
        }
        let (shown, next) = one(word);
        out.push(shown);
        follows = next;
    }
    tail(&out.join(" "), bytes_max).to_owned()
}

/// The kind of the next word.
enum Follows {
    /// A secret of one word.
    Word,
    /// The rest of a secret, until this quote.
    Quoted(char),
}

/// A quote that `word` opens and does not close.
fn unclosed(word: &str) -> Option<Follows> {
    let quote = word.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'))?;
    (!word[1..].contains(quote)).then_some(Follows::Quoted(quote))
}

/// The word as it may be shown, and what follows it.
fn one(word: &str) -> (String, Option<Follows>) {
    let lower = word.to_ascii_lowercase();
    if matches!(lower.trim_matches(|c: char| !c.is_alphanumeric()), "bearer" | "basic") {
        return (word.to_owned(), Some(Follows::Word));
    }
    let is_path = lower.starts_with(['/', '.']) && !lower.contains('=');
    if !is_path && names_secret(&lower) {
        let after = first_name_end(&lower);
        if let Some(sign) = word.get(after..).and_then(|rest| rest.find([':', '='])).map(|i| after + i) {
            let value = word[sign + 1..].trim_start_matches(['=', '>']);
            let shown = word[..=sign].to_owned();
            if value.trim_matches(['"', '\'', '`']).is_empty() {
                return (shown, if value.is_empty() { Some(Follows::Word) } else { unclosed(value) });
            }
            return (format!("{shown}{REDACTED}"), unclosed(value));
        }
        // A flag (`--password x`) or a bare name (`password x`).
        let bare = lower.trim_matches(|c: char| !c.is_alphanumeric());
        if lower.starts_with('-') || BARE_NAMES.contains(&bare) {
            return (word.to_owned(), Some(Follows::Word));
        }
    }
    if let Some((scheme, rest)) = word.split_once("://")
        && let Some((_, host)) = rest.split_once('@')
    {
        return (format!("{scheme}://{REDACTED}@{host}"), None);
    }
    (if looks_secret(word) { REDACTED.to_owned() } else { word.to_owned() }, None)
}

/// The part of a word before its first sign, as a key.
fn names_secret(lower: &str) -> bool {
    let key = lower.split([':', '=']).map(|k| k.trim_matches(|c: char| !c.is_alphanumeric()));
    key.into_iter().any(|k| {
        let last = k.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        NAMES.iter().any(|n| k.contains(n)) || WHOLE_NAMES.contains(&last)
    })
}

/// Returns where the first name of a secret ends.
fn first_name_end(lower: &str) -> usize {
    NAMES.iter().chain(&WHOLE_NAMES).filter_map(|n| lower.find(n).map(|at| at + n.len())).min().unwrap_or(0)
}

/// A JWT, or a long run of mixed characters as keys are.
fn looks_secret(word: &str) -> bool {
    let piece_secret = |p: &str| {
        let has = |f: fn(&u8) -> bool| p.as_bytes().iter().any(f);
        let mixed = has(u8::is_ascii_digit) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
        let hex = p.len() >= 32 && p.bytes().all(|b| b.is_ascii_hexdigit());
        p.len() >= KEY_BYTES_MIN && (mixed || hex)
    };
    let jwt = word.contains("eyJ") && word.matches('.').count() >= 2;
    let key_char = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
    let is_path = word.trim_start_matches(['"', '\'', '(']).starts_with(['/', '.']);
    jwt || (!is_path && word.split(|c| !key_char(c)).any(piece_secret))
}

/// The last `bytes_max` bytes, at a character's border.
fn tail(text: &str, bytes_max: usize) -> &str {
    let mut from = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        for (text, want) in [
            ("cannot reach\nregistry.example.com:443", "cannot reach registry.example.com:443"),
            ("login with hunter2 failed", "login with [redacted] failed"),
            ("password=swordfish x", "password=[redacted] x"),
            ("{\"password\":\"swordfish\"}", "{\"password\":[redacted]"),
            ("\"password\": \"sword fish\" end", "\"password\": [redacted] end"),
            ("PASSWORD: 'sword fish deep' end", "PASSWORD: [redacted] end"),
            ("--token swordfish end", "--token [redacted] end"),
            ("token is swordfish end", "token is [redacted] end"),
            ("Authorization: Bearer swordfish end", "Authorization: [redacted] end"),
            ("sent Basic c3dvcmRmaXNo end", "sent Basic [redacted] end"),
            ("GET https://me:swordfish@r.io/v2/ failed", "GET https://[redacted]@r.io/v2/ failed"),
            ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.c2ln back", "got [redacted] back"),
            ("key AKIAabcdefghij0123456789xy end", "key [redacted] end"),
            (
                "/usr/local/libexec/Credential-Provider2: no such file",
                "/usr/local/libexec/Credential-Provider2: no such file",
            ),
            ("unauthorized: authentication required", "unauthorized: authentication required"),
            ("{\"auth\":\"swordfish\"}", "{\"auth\":[redacted]"),
            ("AWS_SECRET_ACCESS_KEY=abc end", "AWS_SECRET_ACCESS_KEY=[redacted] end"),
        ] {
            assert_eq!(scrub(text, &["hunter2", "end2"], 200), want, "{text}");
        }
    }

    #[test]
    fn bounded_by_its_end() {
        assert_eq!(scrub("aaaa ö bbbb", &[], 6), " bbbb");
        assert_eq!(scrub("x", &[], 0), "");
    }
}
