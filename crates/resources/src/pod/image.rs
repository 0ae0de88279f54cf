//! The tag of an image name, by the grammar of `distribution/reference`; an invalid name has none.

const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;
const DOCKER_HUB: &str = "docker.io";

/// Returns the tag: `latest` if there is neither a tag nor a digest; `None` if there is only a digest, or the name is
/// invalid.
pub fn tag(image: &str) -> Option<&str> {
    if image.len() == 64 && image.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    let (domain, rest) = split_domain(named);
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    let library = if domain == DOCKER_HUB && !path.contains('/') { "library/".len() } else { 0 };
    let fits = is_domain(domain)
        && path.split('/').all(is_component)
        && domain.len() + 1 + library + path.len() <= NAME_MAX
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    match (fits, tag, digest) {
        (false, ..) | (true, None, Some(_)) => None,
        (true, Some(tag), _) => Some(tag),
        (true, None, None) => Some("latest"),
    }
}

/// Splits a name into registry and rest: a first part without a dot, a port or a capital letter is not a registry.
fn split_domain(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':']) || first == "localhost" || first.chars().any(char::is_uppercase) =>
        {
            (if first == "index.docker.io" { DOCKER_HUB } else { first }, rest)
        }
        _ => (DOCKER_HUB, name),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !domain.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'-')
    };
    let v6 = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_fits = match v6 {
        Some(v6) => !v6.is_empty() && v6.bytes().all(|c| c.is_ascii_hexdigit() || c == b':'),
        None => host.split('.').all(label),
    };
    host_fits && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit()))
}

/// Reports whether a part consists of lower case letters and digits, separated by one period, one or two underscores,
/// or any number of dashes.
fn is_component(part: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let mut separators = part.split(word).filter(|s| !s.is_empty());
    part.starts_with(word)
        && part.ends_with(word)
        && separators.all(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|c| c == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let bytes = tag.as_bytes();
    (1..=TAG_MAX).contains(&bytes.len())
        && bytes.first().is_some_and(|c| word(*c))
        && bytes.iter().all(|c| word(*c) || matches!(c, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let digits = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    hex.len() == digits && hex.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn tags() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (image, want) in [
            ("nginx".to_owned(), Some("latest")),
            ("nginx:1.2".to_owned(), Some("1.2")),
            ("reg:5000/a/nginx".to_owned(), Some("latest")),
            ("Reg/a".to_owned(), Some("latest")),
            (format!("nginx@{digest}"), None),
            (format!("nginx:latest@{digest}"), Some("latest")),
            ("nginx:latest@sha256:abc".to_owned(), None),
            ("Foo".to_owned(), None),
            ("/abs/x".to_owned(), None),
            ("a//b".to_owned(), None),
            ("a:b:c".to_owned(), None),
            ("a b".to_owned(), None),
            (String::new(), None),
            ("a".repeat(256), None),
            ("a___b".to_owned(), None),
        ] {
            assert_eq!(tag(&image), want, "{image}");
        }
    }
}
