//! Query parameters.

/// Decoded pairs, in order.
pub fn pairs(query: Option<&str>) -> Vec<(String, String)> {
    query
        .unwrap_or_default()
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|p| {
            let (k, v) = p.split_once('=').unwrap_or((p, ""));
            (decode(k), decode(v))
        })
        .collect()
}

/// The first value of `name`.
pub fn first<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
}

/// Whether `name` is `1` or `true`.
pub fn flag(pairs: &[(String, String)], name: &str) -> bool {
    first(pairs, name).is_some_and(|v| matches!(v, "1" | "true"))
}

/// A value of a query: a plus is a space.
fn decode(text: &str) -> String {
    percent_decode(text, true)
}

/// A segment of a path.
pub fn decode_path(text: &str) -> String {
    percent_decode(text, false)
}

fn percent_decode(text: &str, plus_is_space: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes
            .get(i + 1..i + 3)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (bytes[i], hex) {
            (b'%', Some(b)) => {
                out.push(b);
                i += 3;
            }
            (b'+', _) if plus_is_space => {
                out.push(b' ');
                i += 1;
            }
            (b, _) => {
                out.push(b);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes() {
        let p = pairs(Some("command=sh&command=-c&command=echo+%22a%26b%22&tty=1&x"));
        let commands: Vec<&str> = p.iter().filter(|(k, _)| k == "command").map(|(_, v)| v.as_str()).collect();
        assert_eq!(commands, ["sh", "-c", "echo \"a&b\""]);
        assert!(flag(&p, "tty") && !flag(&p, "input"));
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode_path("%65xec+"), "exec+");
    }
}
