//! Name rules (apimachinery `util/validation`) and suffixes of generated names. A rule returns the reasons for an
//! invalid name in upstream's words, which API clients read.
use rand::Rng;

const DNS1123_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS1123_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS1035_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// The maximum length of a label of a DNS name in bytes.
const LABEL_MAX: usize = 63;
/// The maximum length of a DNS name in bytes.
const SUBDOMAIN_MAX: usize = 253;

/// Returns the message for label keys and values that are too long.
fn max_bytes(n: usize) -> String {
    format!("must be no more than {n} bytes")
}

/// Returns the message for other names that are too long. Upstream's older rules count characters, its newer rules
/// count bytes.
fn max_characters(n: usize) -> String {
    format!("must be no more than {n} characters")
}

fn bounded(s: &str, ends: fn(u8) -> bool, middle: fn(u8) -> bool) -> bool {
    let b = s.as_bytes();
    match (b.first(), b.last()) {
        (Some(&f), Some(&l)) => ends(f) && ends(l) && b.iter().all(|&c| middle(c)),
        _ => false,
    }
}

fn lower_alnum(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn check(ok: bool, rule: &str, len: usize, max: usize) -> Result<(), Vec<String>> {
    let mut why = Vec::new();
    if len > max {
        why.push(max_characters(max));
    }
    if !ok {
        why.push(rule.to_owned());
    }
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// Validates an RFC 1123 label: the name of a namespace and most names inside objects.
pub fn is_dns1123_label(s: &str) -> Result<(), Vec<String>> {
    let ok = bounded(s, lower_alnum, |c| lower_alnum(c) || c == b'-');
    check(ok, if is_subdomain(s) { "must not contain dots" } else { DNS1123_LABEL }, s.len(), LABEL_MAX)
}

/// Validates an RFC 1123 subdomain: most object names.
pub fn is_dns1123_subdomain(s: &str) -> Result<(), Vec<String>> {
    check(is_subdomain(s), DNS1123_SUBDOMAIN, s.len(), SUBDOMAIN_MAX)
}

fn is_subdomain(s: &str) -> bool {
    s.split('.').all(|l| bounded(l, lower_alnum, |c| lower_alnum(c) || c == b'-'))
}

/// Validates an RFC 1035 label: service names in older rules.
pub fn is_dns1035_label(s: &str) -> Result<(), Vec<String>> {
    let ok = s.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
        && bounded(s, lower_alnum, |c| lower_alnum(c) || c == b'-');
    check(ok, DNS1035_LABEL, s.len(), LABEL_MAX)
}

/// Validates the value of a label, which may be empty.
pub fn is_label_value(s: &str) -> Result<(), Vec<String>> {
    let ok =
        s.is_empty() || bounded(s, |c| c.is_ascii_alphanumeric(), |c| c.is_ascii_alphanumeric() || b"-_.".contains(&c));
    let long = (s.len() > LABEL_MAX).then(|| max_bytes(LABEL_MAX));
    let why: Vec<String> = long.into_iter().chain((!ok).then(|| LABEL_VALUE.to_owned())).collect();
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// Validates `[prefix/]name`: label keys, annotation keys and resource names.
pub fn is_qualified_name(s: &str) -> Result<(), Vec<String>> {
    let mut why = Vec::new();
    let name = match s.split_once('/') {
        None => s,
        Some((_, n)) if n.contains('/') => {
            return Err(vec![
                "a valid label key ".to_owned()
                    + &QUALIFIED["name part ".len()..]
                    + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            ]);
        }
        Some((prefix, n)) => {
            if prefix.is_empty() {
                why.push("prefix part must be non-empty".to_owned());
            } else {
                why.extend((prefix.len() > SUBDOMAIN_MAX).then(|| format!("prefix part {}", max_bytes(SUBDOMAIN_MAX))));
                why.extend((!is_subdomain(prefix)).then(|| format!("prefix part {DNS1123_SUBDOMAIN}")));
            }
            n
        }
    };
    if name.is_empty() {
        why.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        why.push(format!("name part {}", max_bytes(LABEL_MAX)));
    }
    if !bounded(name, |c| c.is_ascii_alphanumeric(), |c| c.is_ascii_alphanumeric() || b"-_.".contains(&c)) {
        why.push(QUALIFIED.to_owned());
    }
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// Validates a key of a ConfigMap or Secret, which is also a file name in a volume.
pub fn is_config_map_key(s: &str) -> Result<(), Vec<String>> {
    let mut why = Vec::new();
    if s.len() > SUBDOMAIN_MAX {
        why.push(max_characters(SUBDOMAIN_MAX));
    }
    if s.is_empty() || !s.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c)) {
        why.push(CONFIG_KEY.to_owned());
    } else if s == "." {
        why.push("must not be '.'".to_owned());
    } else if s == ".." {
        why.push("must not be '..'".to_owned());
    } else if s.starts_with("..") {
        why.push("must not start with '..'".to_owned());
    }
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// Validates a name that is used as one segment of a URL path (for example RBAC objects).
pub fn is_path_segment_name(s: &str) -> Result<(), Vec<String>> {
    if s == "." || s == ".." {
        return Err(vec![format!("may not be '{s}'")]);
    }
    let why: Vec<String> =
        ["/", "%"].iter().filter(|c| s.contains(**c)).map(|c| format!("may not contain '{c}'")).collect();
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// The characters of generated suffixes, without vowels and similar characters (apimachinery `util/rand`).
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns a random suffix of `n` characters, which contains no words.
pub fn random_suffix(n: usize) -> String {
    let mut rng = rand::rng();
    (0..n).map(|_| char::from(SUFFIX_ALPHABET[rng.random_range(0..SUFFIX_ALPHABET.len())])).collect()
}

/// Returns `generateName` plus five random characters. The base is truncated, so that the name has at most 63
/// characters.
pub fn generate_name(base: &str) -> String {
    const SUFFIX: usize = 5;
    let mut end = base.len().min(LABEL_MAX - SUFFIX);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &base[..end], random_suffix(SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        assert!(is_dns1123_label("a-1").is_ok());
        for bad in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
            assert!(is_dns1123_label(bad).is_err(), "{bad}");
        }
        assert!(is_dns1123_subdomain("a.b-c.1").is_ok());
        for bad in ["a..b", ".a", "a_b"] {
            assert!(is_dns1123_subdomain(bad).is_err(), "{bad}");
        }
        assert!(is_dns1035_label("1a").is_err());
        assert!(is_label_value("").is_ok());
        assert!(is_label_value("-x").is_err());
    }

    #[test]
    fn qualified() {
        assert!(is_qualified_name("app.kubernetes.io/Name_1").is_ok());
        for bad in ["", "/a", "a/", "a/b/c", "UP.x/a", "a b"] {
            assert!(is_qualified_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn generated() {
        let n = generate_name("web-");
        assert!(n.starts_with("web-") && n.len() == 9);
        assert_eq!(generate_name(&"x".repeat(80)).len(), 63);
    }
}
