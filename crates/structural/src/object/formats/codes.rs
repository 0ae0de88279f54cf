//! Numbers and codes: UUIDs, ISBNs, credit cards, colors, base64, names.

/// Validates a UUID; with `version`, the digit at its position. Versions 4 and 5 have a variant too.
pub fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let mut rest = text.as_bytes();
    let mut parts = [&[][..]; 5];
    for (i, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0
            && let [b'-', tail @ ..] = rest
        {
            rest = tail;
        }
        let Some((part, tail)) = rest.split_at_checked(length) else { return false };
        if !part.iter().all(u8::is_ascii_hexdigit) {
            return false;
        }
        (parts[i], rest) = (part, tail);
    }
    let versioned = version.is_none_or(|v| parts[2][0] == v);
    let variant = !matches!(version, Some(b'4' | b'5')) || b"89abAB".contains(&parts[3][0]);
    rest.is_empty() && versioned && variant
}

fn without_spaces_and_minus(text: &str) -> Vec<u8> {
    text.bytes().filter(|c| !matches!(c, b'\t' | b'\n' | 0x0c | b'\r' | b' ' | b'-')).collect()
}

fn digit(c: u8) -> u32 {
    u32::from(c - b'0')
}

pub fn is_isbn10(text: &str) -> bool {
    let code = without_spaces_and_minus(text);
    let Some((&last, digits)) = code.split_last() else { return false };
    if digits.len() != 9 || !digits.iter().all(u8::is_ascii_digit) || !(last == b'X' || last.is_ascii_digit()) {
        return false;
    }
    let sum: u32 = digits.iter().zip(1..).map(|(&c, weight)| weight * digit(c)).sum();
    (sum + 10 * if last == b'X' { 10 } else { digit(last) }).is_multiple_of(11)
}

pub fn is_isbn13(text: &str) -> bool {
    let code = without_spaces_and_minus(text);
    if code.len() != 13 || !code.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let sum: u32 = code[..12].iter().enumerate().map(|(i, &c)| digit(c) * if i % 2 == 0 { 1 } else { 3 }).sum();
    digit(code[12]) == (10 - sum % 10) % 10
}

/// Validates a number of a known issuer, with any other characters between its digits, and its check digit.
pub fn is_credit_card(text: &str) -> bool {
    let code: Vec<u8> = text.bytes().filter(u8::is_ascii_digit).collect();
    let prefix = |n: usize| code[..n.min(code.len())].iter().fold(0, |sum, &c| sum * 10 + digit(c));
    let known = match (code.len(), prefix(1), prefix(2), prefix(4)) {
        (13 | 16, 4, _, _) | (16, _, 51..=55, _) | (15, _, 34 | 37, _) => true,
        (16, _, 65, _) | (16, _, _, 6011) => true,
        (16, 6, ..) => code[1] == b'5',
        (14, _, 36 | 38, _) => true,
        (14, _, 30, _) => code[2] <= b'5',
        (15, _, _, 2131 | 1800) => true,
        (16, _, 35, _) => true,
        _ => false,
    };
    let sum: u32 = code
        .iter()
        .rev()
        .enumerate()
        .map(|(i, &c)| match (i % 2, digit(c) * 2) {
            (0, _) => digit(c),
            (_, double) if double >= 10 => double % 10 + 1,
            (_, double) => double,
        })
        .sum();
    known && sum.is_multiple_of(10)
}

pub fn is_ssn(text: &str) -> bool {
    let b = text.as_bytes();
    b.len() == 11
        && b.iter().enumerate().all(|(i, c)| if i == 3 || i == 6 { b"- ".contains(c) } else { c.is_ascii_digit() })
}

pub fn is_hex_color(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    matches!(digits.len(), 3 | 6) && digits.bytes().all(|c| c.is_ascii_hexdigit())
}

pub fn is_rgb_color(text: &str) -> bool {
    let Some(inner) = text.strip_prefix("rgb(").and_then(|t| t.strip_suffix(')')) else { return false };
    let parts: Vec<&str> = inner.split(',').collect();
    let part = |p: &&str| {
        let p = p.trim_matches(['\t', '\n', '\x0c', '\r', ' ']);
        let plain = p == "0" || !p.starts_with('0');
        plain && p.len() <= 3 && p.bytes().all(|c| c.is_ascii_digit()) && p.parse::<u8>().is_ok()
    };
    parts.len() == 3 && parts.iter().all(part)
}

/// Validates base64 in complete groups of four, at least one.
pub fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    !body.is_empty()
        && text.len().is_multiple_of(4)
        && padding <= 2
        && body.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'+' || c == b'/')
}

fn is_label(text: &str) -> bool {
    let b = text.as_bytes();
    let end = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    end(b.first()) && end(b.last()) && b.iter().all(|&c| c == b'-' || c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// Validates a name of up to 63 characters: a label in lower case.
pub fn is_short_name(text: &str) -> bool {
    text.len() <= 63 && is_label(text)
}

/// Validates a name of up to 253 characters: labels in lower case, of any length, with dots between them.
pub fn is_long_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}
