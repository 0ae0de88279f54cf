//! Query strings: decoded once into pairs, read by name. Which names mean what is the handlers' business.
use kelson_meta::Status;

/// Pairs kept of one query string; more are a client's mistake or an attack.
const PAIRS_MAX: usize = 256;

/// A decoded query string.
#[derive(Debug, Default, Clone)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=b&c=d`; a pair that is not valid UTF-8 after decoding is dropped.
    pub fn parse(text: Option<&str>) -> Self {
        let Some(text) = text.filter(|t| !t.is_empty()) else { return Self::default() };
        let decode = |s: &str| decode(s, true);
        let pairs = text.split('&').filter(|p| !p.is_empty()).take(PAIRS_MAX).filter_map(|pair| {
            let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(k)?, decode(v)?))
        });
        Self(pairs.collect())
    }
    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }
    /// The first value of a name, or the empty string.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or("")
    }
    /// All values of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == name).map(|(_, v)| v.as_str())
    }
    /// Whether the name occurs.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
    /// A boolean as API machinery reads it: present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| !matches!(v, "false" | "0"))
    }
    /// An integer.
    ///
    /// # Errors
    /// 400 when it is none.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, Status> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(v) => v
                .parse()
                .map(Some)
                .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {v:?}: invalid syntax"))),
        }
    }
}

/// Decodes `%xx` (and `+` in queries); `None` for what is not UTF-8 or a broken escape.
pub fn decode(s: &str, plus: bool) -> Option<String> {
    if !s.bytes().any(|b| b == b'%' || (plus && b == b'+')) {
        return Some(s.to_owned());
    }
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'%' => {
                let hex = |b: u8| (b as char).to_digit(16);
                let (high, low) = (hex(bytes.next()?)?, hex(bytes.next()?)?);
                out.push((high * 16 + low) as u8);
            }
            b'+' if plus => out.push(b' '),
            b => out.push(b),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs() {
        let q = Query::parse(Some("a=1&b=x%20y+z&a=2&c&d=%zz"));
        assert_eq!(q.get("a"), Some("1"));
        assert_eq!(q.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(q.text("b"), "x y z");
        assert!(q.has("c") && q.flag("c") && !q.has("d"));
        assert_eq!(q.integer("a").unwrap(), Some(1));
        assert_eq!(q.integer("b").unwrap_err().code, 400);
    }
}
