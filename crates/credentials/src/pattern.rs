//! What an image pattern matches: globs per label of the host, an equal port, a path prefix (KEP-2133, `matchImages` and
//! the keys of docker configs), and an index over many patterns. Patterns are read once, when configuration is.
use std::collections::HashMap;

/// Why a string is not a pattern, with the message of upstream's URL parser.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse {url:?}: {why}")]
pub struct PatternError {
    url: String,
    why: String,
}

/// Host, port and path of a schemeless URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    host: &'a str,
    port: &'a str,
    path: &'a str,
}

impl<'a> Target<'a> {
    /// Splits an image or pattern; `Err` says why no URL begins so.
    pub fn parse(text: &'a str) -> Result<Self, PatternError> {
        let fail = |why: String| Err(PatternError { url: format!("https://{text}"), why });
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return fail("net/url: invalid control character in URL".to_owned());
        }
        let text = text.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = text.find('/').map_or((text, ""), |i| text.split_at(i));
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => match v6.split_once(']') {
                None => return fail("missing ']' in host".to_owned()),
                Some((host, rest)) => (host, rest),
            },
            None => authority.find(':').map_or((authority, ""), |i| authority.split_at(i)),
        };
        let digits = port.strip_prefix(':').unwrap_or(port);
        if !digits.bytes().all(|b| b.is_ascii_digit()) || (!port.is_empty() && !port.starts_with(':')) {
            return fail(format!("invalid port {port:?} after host"));
        }
        if let Some(c) = host.chars().find(|c| c.is_ascii() && !host_char(*c)) {
            return fail(format!("invalid character {:?} in host name", c.to_string()));
        }
        Ok(Self { host, port: digits, path })
    }
}

fn host_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:\"<>".contains(c)
}

/// One pattern, ready to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    host: String,
    port: String,
    path: String,
}

impl Pattern {
    /// Reads a pattern such as `*.registry.io:8080/path`.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let t = Target::parse(text)?;
        Ok(Self { host: t.host.to_owned(), port: t.port.to_owned(), path: t.path.to_owned() })
    }

    /// Whether the image is meant.
    pub fn matches(&self, image: &Target<'_>) -> bool {
        self.port == image.port && image.path.starts_with(&self.path) && host_matches(&self.host, image.host)
    }

    fn is_glob(&self) -> bool {
        self.host.contains('*')
    }
}

/// Whether `image`, in any schemeless form, is meant by `pattern`; what cannot be read matches nothing.
pub fn matches(pattern: &str, image: &str) -> bool {
    match (Pattern::parse(pattern), Target::parse(image)) {
        (Ok(p), Ok(t)) => p.matches(&t),
        _ => false,
    }
}

fn host_matches(pattern: &str, host: &str) -> bool {
    let (mut patterns, mut labels) = (pattern.split('.'), host.split('.'));
    loop {
        match (patterns.next(), labels.next()) {
            (None, None) => return true,
            (Some(p), Some(l)) if glob(p.as_bytes(), l.as_bytes()) => {}
            _ => return false,
        }
    }
}

/// Matches a glob: `*` matches any characters, also none. Linear except for stars: backtracks to the last one only.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            (p, t) = (p + 1, t + 1);
        } else if let Some((sp, st)) = star {
            star = Some((sp, st + 1));
            (p, t) = (sp + 1, st + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

/// Many patterns, each with a number; answers which numbers an image belongs to without trying all.
#[derive(Debug, Default)]
pub struct PatternIndex {
    /// By port, then by how many labels the host has.
    buckets: HashMap<String, HashMap<usize, PatternBucket>>,
}

/// Patterns of one port and one number of labels.
#[derive(Debug, Default)]
struct PatternBucket {
    exact: HashMap<String, Vec<(Pattern, usize)>>,
    /// By shape: there are few shapes, however many patterns, and within one a look-up leads to those alone that can match.
    globs: Vec<(Shape, HashMap<Vec<u8>, Vec<Glob>>)>,
}

/// The common structure of patterns with globs whose fixed parts are at the same positions of every host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// A bit for each label that is a glob.
    globs: u64,
    /// The first of them.
    first: usize,
    /// Bytes of it before its first star.
    prefix: usize,
    /// Bytes of it after its last star.
    suffix: usize,
}

/// A pattern under the key of its fixed parts.
#[derive(Debug)]
struct Glob {
    labels: Vec<(usize, String)>,
    path: String,
    number: usize,
}

/// Labels beyond which a host is matched by no glob; names of DNS have fewer.
const LABELS_MAX: usize = 64;

impl Shape {
    /// Returns the shape of a host's labels; `None` if no label is a glob.
    fn of(labels: &[&str]) -> Option<Self> {
        let star = |label: &&str| label.contains('*');
        let first = labels.iter().position(star)?;
        let globs = labels.iter().enumerate().filter(|(_, l)| star(l)).fold(0, |mask, (i, _)| mask | (1 << i));
        let glob = labels[first];
        Some(Self { globs, first, prefix: glob.find('*')?, suffix: glob.len() - glob.rfind('*')? - 1 })
    }

    /// Returns the fixed parts of a host or pattern at this shape's positions. Returns `None` if the label is too short.
    fn key<'k>(&self, into: &'k mut Vec<u8>, labels: &[&str]) -> Option<&'k [u8]> {
        let glob = labels.get(self.first)?.as_bytes();
        // The prefix and the suffix do not overlap in any string that matches.
        if glob.len() < self.prefix + self.suffix {
            return None;
        }
        into.clear();
        for (_, label) in labels.iter().enumerate().filter(|(i, _)| self.globs & (1 << i) == 0) {
            into.extend_from_slice(label.as_bytes());
            into.push(b'.');
        }
        into.extend_from_slice(&glob[..self.prefix]);
        into.extend_from_slice(&glob[glob.len() - self.suffix..]);
        Some(into)
    }
}

impl PatternIndex {
    /// Adds a pattern under a number; one number may have many.
    pub fn add(&mut self, pattern: Pattern, number: usize) {
        let labels: Vec<&str> = pattern.host.split('.').collect();
        let bucket = self.buckets.entry(pattern.port.clone()).or_default().entry(labels.len()).or_default();
        if !pattern.is_glob() {
            bucket.exact.entry(pattern.host.clone()).or_default().push((pattern, number));
            return;
        }
        if labels.len() > LABELS_MAX {
            return;
        }
        let Some(shape) = Shape::of(&labels) else { return };
        let mut key = Vec::new();
        if shape.key(&mut key, &labels).is_none() {
            return;
        }
        let own = labels.iter().enumerate().filter(|(_, l)| l.contains('*')).map(|(i, l)| (i, (*l).to_owned()));
        let glob = Glob { labels: own.collect(), path: pattern.path.clone(), number };
        let at = bucket.globs.iter().position(|(s, _)| *s == shape).unwrap_or_else(|| {
            bucket.globs.push((shape, HashMap::new()));
            bucket.globs.len() - 1
        });
        bucket.globs[at].1.entry(key).or_default().push(glob);
    }

    /// The numbers that match, ascending, each once.
    pub fn lookup(&self, image: &Target<'_>) -> Vec<usize> {
        let mut found = Vec::new();
        let labels: Vec<&str> = image.host.split('.').collect();
        let Some(bucket) = self.buckets.get(image.port).and_then(|b| b.get(&labels.len())) else { return found };
        for (pattern, number) in bucket.exact.get(image.host).into_iter().flatten() {
            if image.path.starts_with(&pattern.path) {
                found.push(*number);
            }
        }
        let mut key = Vec::with_capacity(image.host.len() + 1);
        for (shape, by_key) in &bucket.globs {
            let Some(key) = shape.key(&mut key, &labels) else { continue };
            for g in by_key.get(key).into_iter().flatten() {
                let host = || g.labels.iter().all(|(i, p)| glob(p.as_bytes(), labels[*i].as_bytes()));
                if image.path.starts_with(&g.path) && host() {
                    found.push(g.number);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pattern, image, whether it matches.
    const CASES: &[(&str, &str, bool)] = &[
        ("*.kubernetes.io", "prefix.kubernetes.io", true),
        ("*.kubernetes.io", "a.b.kubernetes.io", false),
        ("*.good.io", "prefix.bad.io/app", false),
        ("*.*.kubernetes.io", "a.b.kubernetes.io", true),
        ("prefix.*.io", "prefix.kubernetes.io", true),
        ("*-good.kubernetes.io", "prefix-good.kubernetes.io", true),
        ("*-good.kubernetes.io", "prefix-bad.kubernetes.io", false),
        ("a*c*e.io", "abcde.io", true),
        ("a*c*e.io", "abcd.io", false),
        ("ab*bc.io", "abc.io", false),
        ("ab*bc.io", "abbc.io", true),
        ("a*.b*.io", "ax.by.io", true),
        ("a*.b*.io", "ax.cy.io", false),
        ("*", "localhost/x", true),
        ("*.io", "r.k8s.io/x", false),
        ("kubernetes.io:8080", "kubernetes.io:8080/app", true),
        ("kubernetes.io:8080", "kubernetes.io/app", false),
        ("kubernetes.io", "kubernetes.io:8080/app", false),
        ("*.kubernetes.io:8080", "a.kubernetes.io:8080/app", true),
        ("r.io/team", "r.io/team/app", true),
        ("r.io/team", "r.io/teamwork/app", true),
        ("r.io/team/", "r.io/teamwork/app", false),
        ("r.io/team", "r.io/other", false),
        ("*.r.io/team", "a.r.io/team/x", true),
        ("R.io", "r.io/x", false),
        ("[::1]:5000", "[::1]:5000/x", true),
        ("r.io", "", false),
        ("", "r.io/x", false),
    ];

    #[test]
    fn table() {
        for (pattern, image, want) in CASES {
            assert_eq!(matches(pattern, image), *want, "{pattern} {image}");
        }
    }

    #[test]
    fn the_index_agrees_with_the_patterns() {
        let mut index = PatternIndex::default();
        for (i, (pattern, ..)) in CASES.iter().enumerate() {
            index.add(Pattern::parse(pattern).unwrap(), i);
        }
        for (_, image, _) in CASES {
            let want: Vec<usize> = (0..CASES.len()).filter(|i| matches(CASES[*i].0, image)).collect();
            assert_eq!(index.lookup(&Target::parse(image).unwrap()), want, "{image}");
        }
    }

    #[test]
    fn faults_are_named() {
        for (pattern, why) in [
            ("r.io:x", "parse \"https://r.io:x\": invalid port \":x\" after host"),
            ("a b.io", "parse \"https://a b.io\": invalid character \" \" in host name"),
            ("a[b].io", "parse \"https://a[b].io\": invalid character \"[\" in host name"),
            ("%.io", "parse \"https://%.io\": invalid character \"%\" in host name"),
            ("[::1", "parse \"https://[::1\": missing ']' in host"),
            ("a\n.io", "parse \"https://a\\n.io\": net/url: invalid control character in URL"),
        ] {
            assert_eq!(Pattern::parse(pattern).expect_err(pattern).to_string(), why);
        }
    }
}
