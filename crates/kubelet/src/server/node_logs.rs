//! `/logs`: the files below the node's log directory, read only, each opened beneath its root by handle (upstream:
//! `enableSystemLogHandler`; the subresource `log` of the node authorizes it).
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use kelson_tasks::FILES;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::answer::{Body, not_found, text, typed};
use super::endpoint::{Answer, Call};
use super::state::ServerState;

/// What is served.
const ROOT: &str = "/var/log";
/// Bytes read at a time.
const BLOCK: usize = 64 * 1024;
/// Names listed of one directory.
const NAMES_MAX: usize = 10_000;

/// A file, or the names in a directory.
pub fn serve(_: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        if call.request.method() == Method::GET { answer(ROOT, call.below.join("/")).await } else { not_found() }
    })
}

async fn answer(root: &'static str, path: String) -> Response<Body> {
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
    /// Names, escaped; directories end in a slash.
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

/// The file as it is now: what is appended meanwhile is not waited for. A block is read when the client has taken the one
/// before.
fn stream(file: std::fs::File, size: u64) -> Response<Body> {
    let frames = futures::stream::unfold(file.take(size), |mut file| async move {
        let read = FILES.run(move || {
            let mut block = vec![0; BLOCK];
            let n = file.read(&mut block).unwrap_or(0);
            block.truncate(n);
            (file, block)
        });
        // The client sees a short answer where the file was cut meanwhile.
        let (file, block) = read.await.ok().filter(|(_, block)| !block.is_empty())?;
        Some((Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(block))), file))
    });
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
        assert!(matches!(at(""), Ok(FoundLog::Directory(names)) if names == ["d/", "out"]));
        assert!(matches!(at("d/"), Ok(FoundLog::Directory(names)) if names == ["a&lt;b"]));
        assert!(matches!(at("/d/a<b"), Ok(FoundLog::File(_, 5))));
        for bad in ["out", "../etc/passwd", "d/../../etc/passwd", "none"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
