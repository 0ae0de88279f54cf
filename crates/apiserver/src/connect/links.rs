//! Rewrites links in proxied responses: pages and redirects of a backend contain its own paths, which are below the proxy's path for the
//! client. Pure functions; `proxy` decides which responses are rewritten. (upstream: `util/proxy/transport.go`)

/// The addresses of a backend inside and outside.
pub struct Links<'a> {
    /// The proxy's path without a trailing slash.
    pub prefix: &'a str,
    /// The backend's host and port.
    pub backend: &'a str,
    /// The host in the client's request.
    pub asked: &'a str,
}

/// The target of a link.
#[derive(Debug, PartialEq, Eq)]
pub enum Link {
    /// Unchanged: the link is relative.
    Same,
    /// The backend, at this path of the proxy.
    Inside(String),
    /// The link leads to another host.
    Elsewhere,
}

impl Links<'_> {
    /// Classifies a link.
    pub fn link(&self, text: &str) -> Link {
        let rest = match text.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => match rest.strip_prefix("//") {
                Some(_) if !matches!(scheme, "http" | "https") => return Link::Elsewhere,
                Some(rest) => Some(rest),
                // mailto:, data: and javascript: have no host.
                None => return Link::Elsewhere,
            },
            _ => text.strip_prefix("//"),
        };
        let path = match rest {
            Some(rest) => {
                let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
                if host != self.backend && host != self.asked {
                    return Link::Elsewhere;
                }
                if path.is_empty() { "/" } else { path }
            }
            None if text.starts_with('/') => text,
            // Relative links stay below the proxy's path.
            None => return Link::Same,
        };
        match path.strip_prefix(self.prefix) {
            Some(after) if after.is_empty() || after.starts_with(['/', '?', '#']) => Link::Inside(path.to_owned()),
            _ => Link::Inside(format!("{}{path}", self.prefix)),
        }
    }

    /// The location of a redirect for the client. `path` is the backend's path in the request. `None` if the redirect leads to another
    /// host or above the proxy's path; it must not be passed on.
    pub fn redirect(&self, location: &str, path: &str) -> Option<String> {
        // Browsers read a backslash as a slash and ignore tabs, line breaks and surrounding spaces, so they would see another location
        // than the one that is checked here.
        if location.contains(|c: char| c == '\\' || c.is_control()) || location.trim() != location {
            return None;
        }
        let below = match self.link(location) {
            Link::Elsewhere => return None,
            Link::Inside(inside) => {
                let at = inside.strip_prefix(self.prefix).unwrap_or("").to_owned();
                return (!climbs_out(&at)).then_some(inside);
            }
            Link::Same => &path[..path.rfind('/').map_or(0, |at| at + 1)],
        };
        (!climbs_out(&format!("{below}{location}"))).then(|| location.to_owned())
    }

    /// Rewrites the links in a page. Everything but tags stays unchanged.
    pub fn page(&self, html: &str) -> String {
        let mut out = String::with_capacity(html.len() + html.len() / 8);
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let skipped = if rest.starts_with("<!--") {
                rest.find("-->").map_or(rest.len(), |end| end + 3)
            } else if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic()) {
                let (length, name) = self.tag(rest, &mut out);
                rest = &rest[length..];
                // Scripts and style sheets contain no tags.
                if name == "script" || name == "style" { text_until_end(rest, &name) } else { 0 }
            } else {
                1
            };
            out.push_str(&rest[..skipped]);
            rest = &rest[skipped..];
        }
        out.push_str(rest);
        out
    }

    /// Rewrites one start tag. Returns its length and name.
    fn tag(&self, html: &str, out: &mut String) -> (usize, String) {
        let bytes = html.as_bytes();
        let end = |from: usize, stop: fn(u8) -> bool| {
            bytes[from..].iter().position(|b| stop(*b)).map_or(bytes.len(), |n| from + n)
        };
        let mut at = end(1, |b| b.is_ascii_whitespace() || matches!(b, b'/' | b'>'));
        let name = html[1..at].to_ascii_lowercase();
        let mut written = 0;
        while at < bytes.len() && bytes[at] != b'>' {
            if bytes[at].is_ascii_whitespace() || bytes[at] == b'/' {
                at += 1;
                continue;
            }
            let start = at;
            at = end(at + 1, |b| b.is_ascii_whitespace() || matches!(b, b'=' | b'>' | b'/'));
            let attribute = html[start..at].to_ascii_lowercase();
            let equals = end(at, |b| !b.is_ascii_whitespace());
            if bytes.get(equals) != Some(&b'=') {
                continue;
            }
            let value = end(equals + 1, |b| !b.is_ascii_whitespace());
            let (from, to) = match bytes.get(value) {
                Some(b'"') => (value + 1, end(value + 1, |b| b == b'"')),
                Some(b'\'') => (value + 1, end(value + 1, |b| b == b'\'')),
                _ => (value, end(value, |b| b.is_ascii_whitespace() || b == b'>')),
            };
            at = if from > value { (to + 1).min(bytes.len()) } else { to };
            if is_link(&name, &attribute)
                && let Link::Inside(path) = self.link(&html[from..to])
            {
                out.push_str(&html[written..from]);
                out.push_str(&path);
                written = to;
            }
        }
        let length = (at + 1).min(bytes.len());
        out.push_str(&html[written..length]);
        (length, name)
    }
}

/// Whether a path leads above its root.
fn climbs_out(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or("").to_ascii_lowercase().replace("%2e", ".").replace('\\', "/");
    let mut depth = 0_i32;
    for segment in path.split('/') {
        depth += match segment {
            "" | "." => 0,
            ".." => -1,
            _ => 1,
        };
        if depth < 0 {
            return true;
        }
    }
    false
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

fn text_until_end(html: &str, name: &str) -> usize {
    let closing = |at: usize| html[at + 2..].get(..name.len()).is_some_and(|n| n.eq_ignore_ascii_case(name));
    html.match_indices("</").map(|(at, _)| at).find(|at| closing(*at)).unwrap_or(html.len())
}

/// Whether an HTML attribute contains a URL.
fn is_link(tag: &str, attribute: &str) -> bool {
    let of: &[&str] = match tag {
        "a" | "area" | "base" | "link" => &["href"],
        "applet" => &["codebase"],
        "audio" | "embed" | "script" | "source" => &["src"],
        "blockquote" | "del" | "ins" | "q" => &["cite"],
        "body" => &["background"],
        "button" => &["formaction"],
        "command" => &["icon"],
        "form" => &["action"],
        "frame" | "iframe" => &["longdesc", "src"],
        "head" => &["profile"],
        "html" => &["manifest"],
        "img" => &["longdesc", "src", "usemap"],
        "input" => &["src", "usemap", "formaction"],
        "object" => &["classid", "codebase", "data", "usemap"],
        "video" => &["poster", "src"],
        _ => &[],
    };
    of.contains(&attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: Links<'static> =
        Links { prefix: "/api/v1/namespaces/n/pods/p/proxy", backend: "10.0.0.7:80", asked: "cluster:6443" };

    #[test]
    fn links() {
        let inside = |path: &str| Link::Inside(format!("/api/v1/namespaces/n/pods/p/proxy{path}"));
        for (text, want) in [
            ("/login?next=/", inside("/login?next=/")),
            ("/", inside("/")),
            ("http://10.0.0.7:80/a", inside("/a")),
            ("http://10.0.0.7:80", inside("/")),
            ("//cluster:6443/a", inside("/a")),
            ("/api/v1/namespaces/n/pods/p/proxy/a", inside("/a")),
            ("/api/v1/namespaces/n/pods/p/proxying", inside("/api/v1/namespaces/n/pods/p/proxying")),
            ("a/b", Link::Same),
            ("../a", Link::Same),
            ("#top", Link::Same),
            ("", Link::Same),
            ("https://example.org/", Link::Elsewhere),
            ("//example.org/a", Link::Elsewhere),
            ("http://10.0.0.7:80@evil/", Link::Elsewhere),
            ("ftp://10.0.0.7:80/a", Link::Elsewhere),
            ("javascript:alert(1)", Link::Elsewhere),
            ("mailto:a@b", Link::Elsewhere),
        ] {
            assert_eq!(LINKS.link(text), want, "{text}");
        }
    }

    #[test]
    fn redirects_stay_below_the_proxy() {
        let p = LINKS.prefix;
        for (location, path, want) in [
            ("/login", "/", Some(format!("{p}/login"))),
            ("http://10.0.0.7:80/login?a=..", "/", Some(format!("{p}/login?a=.."))),
            ("login", "/a/b", Some("login".into())),
            ("../login", "/a/b", Some("../login".into())),
            ("../../login", "/a/b", None),
            ("/../../x", "/", None),
            ("/%2E%2e/x", "/", None),
            ("\\..\\..\\x", "/a", None),
            ("https://example.org/", "/", None),
            ("\\\\example.org/", "/", None),
            ("/\\example.org/", "/", None),
            ("ht\ttps://example.org/", "/", None),
            (" //example.org/", "/", None),
        ] {
            assert_eq!(LINKS.redirect(location, path), want, "{location} at {path}");
        }
    }

    #[test]
    fn pages() {
        let p = LINKS.prefix;
        for (html, want) in [
            ("<a href=\"/x\">y</a>", format!("<a href=\"{p}/x\">y</a>")),
            ("<A HREF='/x' b>", format!("<A HREF='{p}/x' b>")),
            ("<a href=/x>", format!("<a href={p}/x>")),
            ("<img alt=\"/x\" src = \"/i.png\"/>", format!("<img alt=\"/x\" src = \"{p}/i.png\"/>")),
            ("<a title=\"a>b\" href=\"/x\">", format!("<a title=\"a>b\" href=\"{p}/x\">")),
            ("<a href=\"x\"><p href=\"/x\">", "<a href=\"x\"><p href=\"/x\">".into()),
            ("<!-- <a href=\"/x\"> --><b>", "<!-- <a href=\"/x\"> --><b>".into()),
            (
                "<script>'<a href=\"/x\">'</SCRIPT><a href=/y>",
                format!("<script>'<a href=\"/x\">'</SCRIPT><a href={p}/y>"),
            ),
            ("1 < 2 <", "1 < 2 <".into()),
            ("<a href=\"/x", format!("<a href=\"{p}/x")),
            ("ä<a\nhref=\"/ü\">ö", format!("ä<a\nhref=\"{p}/ü\">ö")),
            ("<a", "<a".into()),
            ("<a href", "<a href".into()),
            ("<a href=", "<a href=".into()),
        ] {
            assert_eq!(LINKS.page(html), want, "{html}");
        }
    }
}
