//! Image names: the default tag and the pull policy it implies (upstream: `distribution/reference`, `pkg/util/parsers`).

/// Longest repository name.
const NAME_MAX: usize = 255;

/// `image` with `:latest` where it has neither tag nor digest.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let bad = |why: &str| Err(format!("couldn't parse image name {image:?}: {why}"));
    let (name, digest) = match image.split_once('@') {
        Some((n, d)) => (n, Some(d)),
        None => (image, None),
    };
    let (repository, tag) = split_tag(name);
    if repository.is_empty() {
        return bad("invalid reference format");
    }
    if repository.len() > NAME_MAX {
        return bad("repository name must not be more than 255 characters");
    }
    if !repository_ok(repository) {
        let lower = repository.to_lowercase();
        let why = if repository != lower && repository_ok(&lower) {
            "invalid reference format: repository name must be lowercase"
        } else {
            "invalid reference format"
        };
        return bad(why);
    }
    let tag_ok = |t: &str| {
        !t.is_empty()
            && t.len() <= 128
            && !t.starts_with(['.', '-'])
            && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
    };
    let digest_ok = |d: &str| {
        d.split_once(':')
            .is_some_and(|(a, h)| !a.is_empty() && h.len() >= 32 && h.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    if tag.is_some_and(|t| !tag_ok(t)) || digest.is_some_and(|d| !digest_ok(d)) {
        return bad("invalid reference format");
    }
    Ok(if tag.is_none() && digest.is_none() { format!("{image}:latest") } else { image.to_owned() })
}

fn split_tag(name: &str) -> (&str, Option<&str>) {
    let slash = name.rfind('/').map_or(0, |i| i + 1);
    match name[slash..].find(':') {
        Some(colon) => (&name[..slash + colon], Some(&name[slash + colon + 1..])),
        None => (name, None),
    }
}

fn repository_ok(repository: &str) -> bool {
    let mut parts = repository.split('/').peekable();
    let mut first = true;
    while let Some(p) = parts.next() {
        let host =
            first && parts.peek().is_some() && (p.contains(['.', ':']) || p == "localhost" || p.starts_with('['));
        first = false;
        let ok = if host {
            p.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b))
        } else {
            !p.is_empty()
                && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
                && p.starts_with(|c: char| c.is_ascii_alphanumeric())
                && p.ends_with(|c: char| c.is_ascii_alphanumeric())
        };
        if !ok {
            return false;
        }
    }
    true
}

/// The registry host of an image, the default one where it names none.
pub fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

/// `Always` for `:latest`, else `IfNotPresent`.
pub fn default_policy(image: &str) -> &'static str {
    let latest = !image.contains('@') && split_tag(image).1.is_none_or(|t| t == "latest");
    if latest { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        for (image, want) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("r.io/a@sha256:0123456789abcdef0123456789abcdef", "r.io/a@sha256:0123456789abcdef0123456789abcdef"),
        ] {
            assert_eq!(with_default_tag(image).as_deref(), Ok(want));
        }
        for bad in ["", "Foo", "a//b", "a:", "a:b c", "/a", "a@x", "-a"] {
            assert!(with_default_tag(bad).is_err(), "{bad}");
        }
        assert_eq!(
            with_default_tag("Foo").expect_err("upper"),
            "couldn't parse image name \"Foo\": invalid reference format: repository name must be lowercase"
        );
        assert_eq!((default_policy("a:latest"), default_policy("a:1")), ("Always", "IfNotPresent"));
        assert_eq!((registry("a/b"), registry("r.io:5000/a"), registry("a")), ("docker.io", "r.io:5000", "docker.io"));
    }
}
