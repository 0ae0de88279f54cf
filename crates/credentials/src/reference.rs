//! Image references: registry, repository, tag and digest (the grammar of `distribution/reference`, whose messages pod
//! owners see). No registry is called.

/// Longest repository path, bytes.
pub const REPOSITORY_BYTES_MAX: usize = 255;
/// Longest tag, bytes.
const TAG_BYTES_MAX: usize = 128;
/// Fewest hex digits of a digest.
const DIGEST_HEX_MIN: usize = 32;
const DEFAULT_DOMAIN: &str = "docker.io";

/// Why a string is not an image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Not the grammar.
    #[error("invalid reference format")]
    Format,
    /// Upper case in the repository path.
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    /// Longer than [`REPOSITORY_BYTES_MAX`].
    #[error("repository name must not be more than {REPOSITORY_BYTES_MAX} characters")]
    TooLong,
    /// Looks like an image ID.
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Identifier(String),
}

/// A reference in its full form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Registry host, with its port if given: `docker.io`, `r.io:5000`.
    pub domain: String,
    /// Path below the registry: `library/nginx`.
    pub path: String,
    /// Tag, if given.
    pub tag: Option<String>,
    /// Digest, if given: `sha256:…`.
    pub digest: Option<String>,
}

impl Reference {
    /// Reads a reference, short forms completed (`nginx` is `docker.io/library/nginx`).
    pub fn parse(image: &str) -> Result<Self, ReferenceError> {
        if image.len() == 64 && image.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(ReferenceError::Identifier(image.to_owned()));
        }
        let (domain, rest) = split_domain(image);
        let remote = rest.split(':').next().unwrap_or_default();
        if remote.chars().any(char::is_uppercase) {
            return Err(ReferenceError::Uppercase(remote.to_owned()));
        }
        let (named, digest) = match rest.split_once('@') {
            Some((n, d)) => (n, Some(d)),
            None => (rest.as_str(), None),
        };
        let (path, tag) = match named.split_once(':') {
            Some((p, t)) => (p, Some(t)),
            None => (named, None),
        };
        let sound = domain_ok(&domain) && path_ok(path) && tag.is_none_or(tag_ok) && digest.is_none_or(digest_ok);
        if !sound {
            return Err(ReferenceError::Format);
        }
        if path.len() > REPOSITORY_BYTES_MAX {
            return Err(ReferenceError::TooLong);
        }
        Ok(Self { domain, path: path.to_owned(), tag: tag.map(Into::into), digest: digest.map(Into::into) })
    }

    /// Registry and path, without tag and digest: what credentials are looked up by.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }
}

/// `image` as given, with `:latest` appended where it has neither tag nor digest. The error is the one of a pod's
/// waiting message.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let r = Reference::parse(image).map_err(|e| format!("couldn't parse image name {image:?}: {e}"))?;
    Ok(if r.tag.is_none() && r.digest.is_none() { format!("{image}:latest") } else { image.to_owned() })
}

/// `image` as given, without tag and digest: how pulled-image records are keyed.
pub fn without_tag(image: &str) -> Result<&str, ReferenceError> {
    let r = Reference::parse(image)?;
    let mut bare = image;
    if let Some(d) = &r.digest {
        bare = bare.strip_suffix(d.as_str()).and_then(|b| b.strip_suffix('@')).ok_or(ReferenceError::Format)?;
    }
    if let Some(t) = &r.tag {
        bare = bare.strip_suffix(t.as_str()).and_then(|b| b.strip_suffix(':')).ok_or(ReferenceError::Format)?;
    }
    Ok(bare)
}

/// The pull policy of a container that names none: `Always` for `:latest` or no tag, else `IfNotPresent`.
pub fn default_policy(image: &str) -> &'static str {
    match Reference::parse(image) {
        Ok(r) if r.digest.is_none() && r.tag.as_deref().is_none_or(|t| t == "latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// Registry host and port of a normalised repository name.
pub fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or_default()
}

fn split_domain(name: &str) -> (String, String) {
    let Some((first, rest)) = name.split_once('/') else {
        return (DEFAULT_DOMAIN.to_owned(), format!("library/{name}"));
    };
    let is_domain = first == "localhost" || first.contains(['.', ':']) || first.chars().any(char::is_uppercase);
    let (domain, rest) = match (first, is_domain) {
        ("index.docker.io", _) => (DEFAULT_DOMAIN, rest),
        (_, true) => (first, rest),
        _ => (DEFAULT_DOMAIN, name),
    };
    if domain == DEFAULT_DOMAIN && !rest.contains('/') {
        return (domain.to_owned(), format!("library/{rest}"));
    }
    (domain.to_owned(), rest.to_owned())
}

fn domain_ok(domain: &str) -> bool {
    let port_ok = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit());
    if let Some(v6) = domain.strip_prefix('[') {
        let Some((address, rest)) = v6.split_once(']') else { return false };
        let address_ok = !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
        return address_ok && (rest.is_empty() || rest.strip_prefix(':').is_some_and(port_ok));
    }
    let (host, port) = domain.split_once(':').map_or((domain, None), |(h, p)| (h, Some(p)));
    let label_ok = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label_ok) && port.is_none_or(port_ok)
}

/// Components of lower-case letters and digits, joined by one dot, one or two underscores, or dashes.
fn path_ok(path: &str) -> bool {
    path.split('/').all(|component| {
        let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = component.as_bytes();
        let ends = bytes.first().is_some_and(|b| alnum(*b)) && bytes.last().is_some_and(|b| alnum(*b));
        ends && component
            .split(|c: char| c.is_ascii() && alnum(c as u8))
            .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-'))
    })
}

fn tag_ok(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= TAG_BYTES_MAX
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn digest_ok(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let part_ok = |p: &str| {
        p.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && p.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(part_ok)
        && hex.len() >= DIGEST_HEX_MIN
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:f24acc752be18b93b0504c86312bbaf482c9efb0c45e925bbccb0a591cebd7af";

    #[test]
    fn short_forms_are_completed() {
        for (image, repository, tag) in [
            ("nginx", "docker.io/library/nginx", None),
            ("nginx:1.2", "docker.io/library/nginx", Some("1.2")),
            ("team/app", "docker.io/team/app", None),
            ("index.docker.io/nginx", "docker.io/library/nginx", None),
            ("localhost/a", "localhost/a", None),
            ("localhost:5000/a/b:c", "localhost:5000/a/b", Some("c")),
            ("[::1]:5000/a:c", "[::1]:5000/a", Some("c")),
            ("Reg/app", "Reg/app", None),
            ("r.io/a__b/c--d.e_f:X", "r.io/a__b/c--d.e_f", Some("X")),
        ] {
            let r = Reference::parse(image).unwrap_or_else(|e| panic!("{image}: {e}"));
            assert_eq!((r.repository().as_str(), r.tag.as_deref()), (repository, tag), "{image}");
        }
        for bad in
            ["", "a//b", "a:", "a:b c", "/a", "a@x", "-a", "r.io/a___b", "r.io/a.-b", "r-.io/a", "r.io:x/a", "a:-b"]
        {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_and_digests() {
        let both = format!("r.io/a:1@{DIGEST}");
        assert_eq!(with_default_tag("nginx").as_deref(), Ok("nginx:latest"));
        assert_eq!(with_default_tag(&both).as_deref(), Ok(both.as_str()));
        assert_eq!(without_tag(&both), Ok("r.io/a"));
        assert_eq!(without_tag("nginx:1"), Ok("nginx"));
        assert_eq!(without_tag("localhost:5000/a"), Ok("localhost:5000/a"));
        assert_eq!(
            (default_policy("a"), default_policy("a:1"), default_policy(&both)),
            ("Always", "IfNotPresent", "IfNotPresent")
        );
        assert_eq!(
            with_default_tag("Foo").expect_err("upper case"),
            "couldn't parse image name \"Foo\": invalid reference format: repository name (library/Foo) must be lowercase"
        );
        assert_eq!(Reference::parse(&"a".repeat(64)), Err(ReferenceError::Identifier("a".repeat(64))));
        assert_eq!(Reference::parse(&format!("r.io/{}", "a".repeat(256))), Err(ReferenceError::TooLong));
    }
}
