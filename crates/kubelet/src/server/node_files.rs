//! Log files below a directory, opened beneath it by handle, so that no link leads out of it.
use std::convert::Infallible;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use kelson_tasks::FILES;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::answer::{Body, not_found, text, typed};

/// Number of bytes per read.
pub(super) const BLOCK: usize = 64 * 1024;
/// Maximum number of names in a listing.
const NAMES_MAX: usize = 10_000;

/// Opens the first of these names that is a file, for the log of a service; errors are written to the output.
pub(super) fn read_first(
    root: &'static str,
    service: String,
    names: [String; 3],
) -> impl futures::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    let found = FILES.run(move || {
        for name in names {
            match open(Path::new(root), &name) {
                Ok(FoundLog::File(file, size)) => return Ok(Some((file, size))),
                Ok(FoundLog::Directory(_)) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(None)
    });
    let frames = async move {
        let words = match found.await.map_err(|e| e.to_string()).and_then(|found| found) {
            Ok(Some((file, size))) => return frames(file, size).left_stream(),
            Ok(None) => format!("\nlog not found for {service}\n"),
            Err(e) => format!("\nerror getting log for {service}: {e}\n"),
        };
        futures::stream::iter([Ok(Frame::data(Bytes::from(words)))]).right_stream()
    };
    frames.flatten_stream()
}

/// Serves a file, or a listing of a directory.
pub(super) async fn answer(root: &'static str, path: String) -> Response<Body> {
    let work = FILES.run(move || open(Path::new(root), &path));
    match work.await {
        Ok(Ok(FoundLog::Directory(names))) => {
            let lines: String = names.iter().map(|n| format!("<a href=\"{n}\">{n}</a>\n")).collect();
            typed(StatusCode::OK, "text/html; charset=utf-8", format!("<pre>\n{lines}</pre>\n"))
        }
        Ok(Ok(FoundLog::File(file, size))) => stream(file, size),
        Ok(Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP)) => not_found(),
        Ok(Err(e)) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

#[derive(Debug)]
enum FoundLog {
    /// Escaped names; directories end with a slash.
    Directory(Vec<String>),
    File(std::fs::File, u64),
}

fn open(root: &Path, path: &str) -> Result<FoundLog, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let base = rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let path = path.trim_matches('/');
    let path = if path.is_empty() { "." } else { path };
    // Opening a pipe must not wait for its other end.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let found: OwnedFd = rustix::fs::openat2(&base, path, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&found)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(FoundLog::File(found.into(), u64::try_from(stat.st_size).unwrap_or(0))),
        FileType::Directory => {
            let mut names = Vec::new();
            for e in rustix::fs::Dir::read_from(&found)?.take(NAMES_MAX) {
                let e = e?;
                let name = escaped(&e.file_name().to_string_lossy());
                match e.file_type() {
                    _ if matches!(name.as_str(), "." | "..") => {}
                    FileType::Directory => names.push(name + "/"),
                    _ => names.push(name),
                }
            }
            names.sort();
            Ok(FoundLog::Directory(names))
        }
        _ => Err(Errno::NOENT),
    }
}

fn escaped(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;")
}

/// Streams the file with its current size. A block is read when the client has taken the previous one.
fn stream(file: std::fs::File, size: u64) -> Response<Body> {
    let mut response = Response::new(StreamBody::new(frames(file, size)).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn frames(file: std::fs::File, size: u64) -> impl futures::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    futures::stream::unfold(file.take(size), |mut file| async move {
        let read = FILES.run(move || {
            let mut block = vec![0; BLOCK];
            let n = file.read(&mut block).unwrap_or(0);
            block.truncate(n);
            (file, block)
        });
        // If the file was truncated meanwhile, the response is short.
        let (file, block) = read.await.ok().filter(|(_, block)| !block.is_empty())?;
        Some((Ok(Frame::data(Bytes::from(block))), file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beneath_the_root_only() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(dir.path().join("d")).expect("mkdir");
        std::fs::write(dir.path().join("d/a<b"), "hello").expect("write");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("out")).expect("symlink");
        let at = |path: &str| open(dir.path(), path);
        assert!(matches!(at(""), Ok(FoundLog::Directory(names)) if names == ["d/", "out"]));
        assert!(matches!(at("d/"), Ok(FoundLog::Directory(names)) if names == ["a&lt;b"]));
        assert!(matches!(at("/d/a<b"), Ok(FoundLog::File(_, 5))));
        for bad in ["out", "../etc/passwd", "d/../../etc/passwd", "none"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
