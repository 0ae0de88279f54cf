//! `/logs`: the files below the node's log directory, read only, each opened beneath its root by handle (upstream:
//! `enableSystemLogHandler`; the subresource `log` of the node authorizes it).
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::routes::{Body, text, typed};

/// What is served.
pub const ROOT: &str = "/var/log";
/// Bytes read at a time.
const BLOCK: usize = 64 * 1024;
/// Blocks on their way to the client: what it does not read is not read from the disk.
const BLOCKS_MAX: usize = 4;
/// Names listed of one directory.
const NAMES_MAX: usize = 10_000;

/// Answers for a path below `root`.
pub async fn answer(root: &'static str, path: String) -> Response<Body> {
    let work = tokio::task::spawn_blocking(move || open(Path::new(root), &path));
    match work.await {
        Ok(Ok(Found::Directory(names))) => {
            let lines: String = names.iter().map(|n| format!("<a href=\"{n}\">{n}</a>\n")).collect();
            typed(StatusCode::OK, "text/html; charset=utf-8", format!("<pre>\n{lines}</pre>\n"))
        }
        Ok(Ok(Found::File(file, size))) => stream(file, size),
        Ok(Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP)) => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Ok(Err(e)) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

#[derive(Debug)]
enum Found {
    /// Names, escaped; directories end in a slash.
    Directory(Vec<String>),
    File(std::fs::File, u64),
}

fn open(root: &Path, path: &str) -> Result<Found, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let base = rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let path = path.trim_matches('/');
    let path = if path.is_empty() { "." } else { path };
    // A pipe of somebody's making must not hold the opener up.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let found: OwnedFd = rustix::fs::openat2(&base, path, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&found)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Found::File(found.into(), u64::try_from(stat.st_size).unwrap_or(0))),
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
            Ok(Found::Directory(names))
        }
        _ => Err(Errno::NOENT),
    }
}

fn escaped(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;")
}

/// The file as it is now: what is appended meanwhile is not waited for.
fn stream(file: std::fs::File, size: u64) -> Response<Body> {
    let (sink, blocks) = tokio::sync::mpsc::channel::<Bytes>(BLOCKS_MAX);
    tokio::task::spawn_blocking(move || {
        let mut file = file.take(size);
        loop {
            let mut block = vec![0; BLOCK];
            match file.read(&mut block) {
                Ok(n) if n > 0 => {
                    block.truncate(n);
                    if sink.blocking_send(block.into()).is_err() {
                        return;
                    }
                }
                // The client sees a short answer where the file was cut meanwhile.
                _ => return,
            }
        }
    });
    let frames =
        tokio_stream::wrappers::ReceiverStream::new(blocks).map(|b| Ok::<_, std::convert::Infallible>(Frame::data(b)));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
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
        assert!(matches!(at(""), Ok(Found::Directory(names)) if names == ["d/", "out"]));
        assert!(matches!(at("d/"), Ok(Found::Directory(names)) if names == ["a&lt;b"]));
        assert!(matches!(at("/d/a<b"), Ok(Found::File(_, 5))));
        for bad in ["out", "../etc/passwd", "d/../../etc/passwd", "none"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
