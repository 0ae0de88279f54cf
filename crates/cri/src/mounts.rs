//! Lists what is mounted below a directory, from the kernel's table.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};

/// Returns mount points at and below `dir`, the deepest first, and for the same path the newest first.
pub fn below(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    select(&table, dir)
}

fn select(table: &str, dir: &Path) -> Vec<PathBuf> {
    let targets = table.lines().rev().filter_map(|l| l.split(' ').nth(4)).map(unescape);
    let mut out: Vec<PathBuf> = targets.filter(|p| p.starts_with(dir)).collect();
    out.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    out
}

/// Decodes the octal escapes of mountinfo.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = bytes.get(i + 1..i + 4).filter(|d| bytes[i] == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match code {
            Some(d) => {
                // Three octal digits of one byte: the kernel writes none above \377.
                out.push(d.iter().fold(0u32, |n, b| n * 8 + u32::from(b - b'0')) as u8);
                i += 4;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_escapes() {
        assert_eq!(unescape("/a\\040b"), PathBuf::from("/a b"));
        assert_eq!(unescape("/a\\04"), PathBuf::from("/a\\04"));
    }

    #[test]
    fn what_is_below_goes_first() {
        let line = |target: &str| format!("36 35 98:0 / {target} rw,noatime master:1 - ext3 /dev/root rw\n");
        let table: String = ["/", "/d/x", "/d/x/y/z", "/d\\040q", "/dd", "/d/x/y", "/d/a"].map(line).concat();
        let got: Vec<String> = select(&table, Path::new("/d")).iter().map(|p| p.display().to_string()).collect();
        assert_eq!(got, ["/d/x/y/z", "/d/x/y", "/d/a", "/d/x"]);
    }
}
