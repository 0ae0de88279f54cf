//! Image names in their full form, as the runtime stores them: `busybox` is `docker.io/library/busybox:latest`.
//! (github.com/distribution/reference defines the rules)

/// The maximum length of the repository part, as in the reference implementation.
const NAME_BYTES_MAX: usize = 255;

/// Adds registry, `library/` and `:latest` if a name lacks them.
///
/// # Errors
/// A sentence that says what is wrong with the name.
pub fn normalize(name: &str) -> Result<String, String> {
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    let (domain, path) = match rest.split_once('/') {
        Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path.to_owned()),
        _ => ("docker.io", rest.to_owned()),
    };
    let domain = if domain == "index.docker.io" { "docker.io" } else { domain };
    let (path, tag) = match path.rsplit_once(':') {
        Some((path, tag)) => (path.to_owned(), Some(tag.to_owned())),
        None => (path, None),
    };
    let path = if domain == "docker.io" && !path.contains('/') { format!("library/{path}") } else { path };
    let path_ok = path.split('/').all(|part| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
    });
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(format!("invalid image name {name:?}: repository name must be lowercase"));
    }
    let tag_ok = tag.as_deref().is_none_or(|tag| {
        !tag.is_empty()
            && tag.len() <= 128
            && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
            && !tag.starts_with(['.', '-'])
    });
    if !path_ok || !tag_ok || path.len() > NAME_BYTES_MAX || digest.is_some_and(|d| !d.starts_with("sha256:")) {
        return Err(format!("invalid image name {name:?}: invalid reference format"));
    }
    Ok(match (tag, digest) {
        (None, None) => format!("{domain}/{path}:latest"),
        (Some(tag), None) => format!("{domain}/{path}:{tag}"),
        (None, Some(digest)) => format!("{domain}/{path}@{digest}"),
        (Some(tag), Some(digest)) => format!("{domain}/{path}:{tag}@{digest}"),
    })
}

/// Returns the part of a full name before its tag and digest.
pub fn repository(full: &str) -> &str {
    let name = full.split('@').next().unwrap_or_default();
    match name.rsplit_once(':') {
        // After a slash: the colon before it belongs to a port.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::{normalize, repository};

    #[test]
    fn repositories_of_names() {
        for (name, expected) in [
            ("docker.io/library/a:1", "docker.io/library/a"),
            ("localhost:5000/a/b@sha256:0", "localhost:5000/a/b"),
            ("localhost:5000/a:1@sha256:0", "localhost:5000/a"),
        ] {
            assert_eq!(repository(name), expected);
        }
    }

    #[test]
    fn names_become_full() {
        for (short, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.0", "docker.io/library/busybox:1.0"),
            ("bitnami/redis", "docker.io/bitnami/redis:latest"),
            ("index.docker.io/a/b", "docker.io/a/b:latest"),
            ("localhost/x", "localhost/x:latest"),
            ("localhost:5000/x:y", "localhost:5000/x:y"),
            ("kelson.local/pause:0.1.0", "kelson.local/pause:0.1.0"),
            ("a@sha256:00", "docker.io/library/a@sha256:00"),
        ] {
            assert_eq!(normalize(short).as_deref(), Ok(full));
        }
        for bad in ["", "Busybox", "a:", "a//b", ":x", "a b", "-a"] {
            assert!(normalize(bad).is_err(), "{bad}");
        }
    }
}
