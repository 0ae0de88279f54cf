//! Addresses of hosts, networks, resources and mail.
use std::net::Ipv6Addr;
use std::sync::LazyLock;

use regex::Regex;

/// Validates an IPv4 address, whose numbers may have leading zeros.
fn ipv4_with_zeros(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let part = |p: &&str| {
        !p.is_empty() && p.bytes().all(|c| c.is_ascii_digit()) && {
            let number = p.trim_start_matches('0');
            number.is_empty() || number.parse::<u8>().is_ok()
        }
    };
    parts.len() == 4 && parts.iter().all(part)
}

/// Accepts any address with a dot. An IPv6 address may end with an IPv4 address.
pub fn is_ipv4(text: &str) -> bool {
    text.contains('.') && (ipv4_with_zeros(text) || text.parse::<Ipv6Addr>().is_ok())
}

pub fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let max = match () {
        () if ipv4_with_zeros(address) => 32,
        () if address.parse::<Ipv6Addr>().is_ok() => 128,
        () => return false,
    };
    !length.is_empty()
        && length.bytes().all(|c| c.is_ascii_digit())
        && length.parse::<u32>().is_ok_and(|length| length <= max)
}

/// Accepts 6, 8 or 20 bytes: pairs of digits with colons or dashes, or groups of four with dots.
pub fn is_mac(text: &str) -> bool {
    let Some(separator) = text.chars().find(|c| !c.is_ascii_hexdigit()) else { return false };
    let (length, bytes) = match separator {
        ':' | '-' => (2, 1),
        '.' => (4, 2),
        _ => return false,
    };
    let parts: Vec<&str> = text.split(separator).collect();
    parts.iter().all(|p| p.len() == length && p.bytes().all(|c| c.is_ascii_hexdigit()))
        && matches!(parts.len() * bytes, 6 | 8 | 20)
}

/// Letters and symbols of any script, which host names may have.
static LETTER_OR_SYMBOL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{S}\p{L}]$").ok());
static LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{L}$").ok());

fn of_class(class: &LazyLock<Option<Regex>>, c: char) -> bool {
    class.as_ref().is_some_and(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || of_class(&LETTER_OR_SYMBOL, c)
}
fn is_top_char(c: char) -> bool {
    c.is_ascii_alphabetic() || !c.is_ascii() && of_class(&LETTER, c)
}

/// Accepts a name of RFC 1034, which may begin with a digit and have letters and symbols of any script.
pub fn is_hostname(text: &str) -> bool {
    const HOSTNAME_BYTES_MAX: usize = 255;
    const LABEL_BYTES_MAX: usize = 63;
    if text.len() > HOSTNAME_BYTES_MAX || text.split('.').any(|label| label.len() > LABEL_BYTES_MAX) {
        return false;
    }
    let Some((labels, top)) = text.rsplit_once('.') else {
        // A single label may have a dash only after its first character.
        let mut chars = text.chars();
        let first = chars.next().is_some_and(is_name_char);
        let rest = chars.as_str();
        return first && rest.strip_prefix('-').unwrap_or(rest).chars().all(is_name_char);
    };
    let label = |l: &str| {
        let ends = l.chars().next().is_some_and(is_name_char) && l.chars().next_back().is_some_and(is_name_char);
        ends && l.chars().all(|c| c == '-' || is_name_char(c))
    };
    labels.split('.').all(label) && top.chars().count() >= 2 && top.chars().all(is_top_char)
}

/// Accepts an absolute URI or an absolute path, as in a request line.
pub fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|c| c < 0x20 || c == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let Some((scheme, rest)) = scheme(text) else { return false };
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !rest.starts_with('/') {
        // Anything may follow a scheme.
        return !scheme.is_empty();
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(after) if !scheme.is_empty() || !rest.starts_with("///") => {
            let end = after.find('/').unwrap_or(after.len());
            (&after[..end], &after[end..])
        }
        _ => ("", rest),
    };
    is_authority(authority) && escapes_are_whole(path)
}

/// Returns the scheme, which may be empty, and the rest. Returns `None` if there is no scheme before a colon.
fn scheme(text: &str) -> Option<(&str, &str)> {
    for (i, c) in text.bytes().enumerate() {
        match c {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if i > 0 => {}
            b':' if i == 0 => return None,
            b':' => return Some((&text[..i], &text[i + 1..])),
            _ => break,
        }
    }
    Some(("", text))
}

fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').map_or(("", text), |(user, host)| (user, host));
    let user_char = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(user_char) || !escapes_are_whole(user) {
        return false;
    }
    let port = |p: &str| p.is_empty() || p.strip_prefix(':').is_some_and(|p| p.bytes().all(|c| c.is_ascii_digit()));
    let name = match host.strip_prefix('[') {
        Some(inner) => {
            let Some((inside, after)) = inner.rsplit_once(']') else { return false };
            if !port(after) {
                return false;
            }
            // Only the zone of an address may have escapes.
            let address = inside.split_once("%25").map_or(inside, |(address, _)| address);
            return address.parse::<Ipv6Addr>().is_ok();
        }
        None => match host.rfind(':') {
            Some(at) if !port(&host[at..]) => return false,
            Some(at) => &host[..at],
            None => host,
        },
    };
    let mut rest = name;
    while let Some(at) = rest.find('%') {
        let Some(code) = rest.get(at + 1..at + 3).and_then(|c| u8::from_str_radix(c, 16).ok()) else { return false };
        // In a host only non-ASCII characters are escaped.
        if code < 0x80 {
            return false;
        }
        rest = &rest[at + 3..];
    }
    name.chars().all(|c| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c))
}

fn escapes_are_whole(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let code = after.as_bytes().get(..2);
        code.is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Accepts an address of RFC 5322, alone or in angle brackets after a name.
pub fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    if is_addr_spec(text) {
        return true;
    }
    let Some((name, address)) = text.strip_suffix('>').and_then(|t| t.rsplit_once('<')) else { return false };
    is_phrase(name.trim_matches([' ', '\t'])) && is_addr_spec(address.trim_matches([' ', '\t']))
}

fn is_atom_char(c: char) -> bool {
    !c.is_ascii() || c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c)
}

fn is_dot_atom(text: &str) -> bool {
    text.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atom_char))
}

/// Returns the rest after a quoted string. Returns `None` if there is none.
fn after_quoted(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('"')?;
    let mut escaped = false;
    for (i, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(&inner[i + 1..]),
            '\r' | '\n' => return None,
            _ => {}
        }
    }
    None
}

fn is_addr_spec(text: &str) -> bool {
    let (local, domain) = match after_quoted(text) {
        Some(rest) => ("quoted", rest.strip_prefix('@').unwrap_or("")),
        None => text.rsplit_once('@').unwrap_or(("", "")),
    };
    let literal = domain.strip_prefix('[').and_then(|d| d.strip_suffix(']'));
    let domain = literal.map_or_else(
        || is_dot_atom(domain),
        |d| !d.is_empty() && d.chars().all(|c| c.is_ascii_graphic() && !"[]\\".contains(c)),
    );
    is_dot_atom(local) && domain
}

/// Accepts words and quoted strings before an address, or nothing.
fn is_phrase(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        rest = match after_quoted(rest) {
            Some(after) => after,
            None => {
                let after = rest.trim_start_matches(|c| is_atom_char(c) || c == '.');
                if after.len() == rest.len() {
                    return false;
                }
                after
            }
        };
        rest = rest.trim_start_matches([' ', '\t']);
    }
    true
}
