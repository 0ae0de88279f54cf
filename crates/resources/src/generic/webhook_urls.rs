//! URLs of webhooks, parsed as Go does.
use crate::path::{Errors, Path};

/// The parts of a URL that are validated.
#[derive(Debug, Default, PartialEq, Eq)]
struct Url<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: &'a str,
    query: &'a str,
    fragment: &'a str,
}

/// Validates the URL of a webhook.
pub(super) fn check(url: &str, p: &Path<'_>, e: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let Some(url) = parse(url) else { return e.required(p, &format!("url must be a valid URL{FORM}")) };
    if url.scheme != "https" {
        e.invalid(p, url.scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if url.host.is_empty() {
        e.invalid(p, url.host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        e.invalid(p, user, "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        e.invalid(p, url.fragment, "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        e.invalid(p, url.query, "query parameters are not permitted in the URL");
    }
}

/// Splits a URL; `None` if it is invalid (upstream `net/url.Parse`).
fn parse(raw: &str) -> Option<Url<'_>> {
    if raw.bytes().any(|c| c < b' ' || c == 0x7f) {
        return None;
    }
    let (rest, fragment) = raw.split_once('#').unwrap_or((raw, ""));
    let (scheme, rest) = scheme(rest)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { scheme: scheme.to_ascii_lowercase(), query, fragment, ..Url::default() };
    let mut path = rest;
    if !rest.starts_with('/') {
        let first = rest.split('/').next().unwrap_or("");
        return if !scheme.is_empty() || (!first.contains(':') && escapes_are_whole(rest)) { Some(url) } else { None };
    }
    if let Some(after) = rest.strip_prefix("//")
        && (!scheme.is_empty() || !after.starts_with('/'))
    {
        let (authority, behind) = after.split_at(after.find('/').unwrap_or(after.len()));
        path = behind;
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let of_user = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
        if !user.is_none_or(|user| user.chars().all(of_user) && escapes_are_whole(user)) || !is_host(host) {
            return None;
        }
        (url.user, url.host) = (user, host);
    }
    (escapes_are_whole(path) && escapes_are_whole(fragment)).then_some(url)
}

/// Returns the scheme, if there is one, and the rest.
fn scheme(raw: &str) -> Option<(&str, &str)> {
    let end = raw.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(raw.len());
    let (scheme, rest) = raw.split_at(end);
    match rest.strip_prefix(':') {
        Some(_) if scheme.is_empty() => None,
        Some(rest) if scheme.starts_with(|c: char| c.is_ascii_alphabetic()) => Some((scheme, rest)),
        _ => Some(("", raw)),
    }
}

fn is_host(host: &str) -> bool {
    let port = match host.rfind(']') {
        _ if !host.starts_with('[') => host.rfind(':').map_or("", |at| &host[at..]),
        Some(end) => &host[end + 1..],
        None => return false,
    };
    let in_host = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"".contains(c);
    let is_port = |p: &str| p.is_empty() || p.strip_prefix(':').is_some_and(|n| n.bytes().all(|c| c.is_ascii_digit()));
    is_port(port) && host.chars().all(in_host)
}

/// Checks that two hexadecimal digits follow every percent sign.
fn escapes_are_whole(text: &str) -> bool {
    text.split('%').skip(1).all(|after| after.len() >= 2 && after.bytes().take(2).all(|c| c.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read() {
        for unreadable in
            ["a\nb", " https://a.b/x", "-https://a/x", ":a", "https://a b/x", "https://a:x/", "https://a/%z"]
        {
            assert_eq!(parse(unreadable), None, "{unreadable}");
        }
        for (given, scheme, host) in [
            ("HTTPS://Hook.Example.com/x", "https", "Hook.Example.com"),
            ("a:b", "a", ""),
            ("https:///x", "https", ""),
            ("{{ .x }}", "", ""),
            ("https://[::1]:443/x", "https", "[::1]:443"),
        ] {
            let url = parse(given).expect(given);
            assert_eq!((url.scheme.as_str(), url.host), (scheme, host), "{given}");
        }
    }
}
