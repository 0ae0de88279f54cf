//! Values from files that containers of the pod wrote into a volume (`fileKeyRef`, KEP-3721). The file is opened beneath the volume by
//! handle, because its writer may place symbolic links there, and is parsed as `KEY='value'`.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::io::Read as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Symbolic links resolve as in the container: the volume is the root.
const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// Returns the value of `key` in the file `path` of the volume at `root`; `None` if it is missing or empty. Blocking.
///
/// # Errors
/// What is invalid in the file, with the line if there is one.
pub fn value(root: &Path, path: &str, key: &str) -> Result<Option<String>, String> {
    let open = || -> std::io::Result<std::fs::File> {
        let base = rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        // Opening a pipe must not block until there is a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::openat2(&base, path, flags, Mode::empty(), RESOLVE)?.into())
    };
    let failed = |e: std::io::Error| format!("failed to open environment variable file {path:?}: {e}");
    let file = open().map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(format!("environment variable file {path:?} is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("environment variable file {path:?} is longer than {FILE_BYTES_MAX} bytes"));
    }
    let found = parse(&String::from_utf8_lossy(&bytes), key)?;
    Ok(found.filter(|v| !v.is_empty()))
}

/// Returns the first value of `key`. Later lines are not validated, so that the result does not depend on them.
fn parse(text: &str, key: &str) -> Result<Option<String>, String> {
    let fault = |line: usize, why: &str| Err(format!("invalid environment variable format at line {line}: {why}"));
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else { return fault(number, "missing '='") };
        let trimmed = name.trim_end_matches([' ', '\t']);
        if trimmed.is_empty() {
            return fault(number, "empty variable name");
        }
        if trimmed != name {
            return fault(number, "whitespace before '=' is not allowed");
        }
        if value.starts_with([' ', '\t']) {
            // Like in shells, the value is empty and the rest of the line is ignored.
            if name == key {
                return Ok(Some(String::new()));
            }
            continue;
        }
        let Some(mut rest) = value.strip_prefix('\'') else {
            return fault(number, "value must be enclosed in single quotes");
        };
        let (mut found, mut at) = (String::new(), number);
        loop {
            if let Some((last, after)) = rest.split_once('\'') {
                found.push_str(last);
                let after = after.trim_start_matches([' ', '\t']);
                if !after.is_empty() && !after.starts_with('#') {
                    return fault(at, "unexpected content after closing quote");
                }
                break;
            }
            found.push_str(rest);
            found.push('\n');
            let Some((next, line)) = lines.next() else { return fault(number, "unclosed single quote") };
            (at, rest) = (next, line);
        }
        if name == key {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_quotes() {
        let text = "# comment\n\n A='one' # said\nEMPTY=''\nGAP= 'x'\nMANY='first\n  second\n'\nB='#='\nA='two'\n";
        for (key, wanted) in [
            ("A", Some("one")),
            ("EMPTY", Some("")),
            ("GAP", Some("")),
            ("MANY", Some("first\n  second\n")),
            ("B", Some("#=")),
            ("NO", None),
        ] {
            assert_eq!(parse(text, key), Ok(wanted.map(str::to_owned)), "{key}");
        }
        for (text, why) in [
            ("A", "line 1: missing '='"),
            ("\n='x'", "line 2: empty variable name"),
            ("A ='x'", "line 1: whitespace before '=' is not allowed"),
            ("A=x", "line 1: value must be enclosed in single quotes"),
            ("A='x' y", "line 1: unexpected content after closing quote"),
            ("A='x\ny'z", "line 2: unexpected content after closing quote"),
            ("A='x\n", "line 1: unclosed single quote"),
        ] {
            assert_eq!(parse(text, "K"), Err(format!("invalid environment variable format at {why}")), "{text:?}");
        }
        assert_eq!(parse("A='x'\nbroken", "A"), Ok(Some("x".into())), "it was found before");
    }

    #[test]
    fn files_are_opened_beneath_their_volume() {
        let dir = tempfile::tempdir().expect("a directory");
        let (volume, secret) = (dir.path().join("volume"), dir.path().join("secret"));
        std::fs::create_dir_all(volume.join("sub")).expect("directories");
        std::fs::write(&secret, "K='host'").expect("a file");
        std::fs::write(volume.join("sub/env"), "K='own'").expect("a file");
        std::os::unix::fs::symlink(&secret, volume.join("absolute")).expect("a link");
        std::os::unix::fs::symlink("../../secret", volume.join("sub/up")).expect("a link");
        std::os::unix::fs::symlink("/sub/env", volume.join("inside")).expect("a link");
        assert_eq!(value(&volume, "sub/env", "K"), Ok(Some("own".into())));
        assert_eq!(value(&volume, "inside", "K"), Ok(Some("own".into())), "the volume is the root of links");
        for path in ["absolute", "sub/up", "../secret", "sub", "none"] {
            assert!(value(&volume, path, "K").is_err(), "{path}");
        }
        let long = format!("A='{}'", "x".repeat(FILE_BYTES_MAX as usize));
        std::fs::write(volume.join("long"), long).expect("a file");
        assert!(value(&volume, "long", "K").is_err_and(|e| e.contains("longer than")));
    }
}
