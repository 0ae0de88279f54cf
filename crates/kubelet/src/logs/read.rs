//! Reads a container's log with the options of the API, and follows it across rotation (upstream: `kuberuntime/logs/logs.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use kelson_tasks::FILES;
use tokio::sync::mpsc;

use super::line;
use super::notify::Watch;

/// Number of bytes per read.
const BLOCK: usize = 64 * 1024;
/// Maximum length of a line; a longer one is split.
const LINE_MAX: usize = 1 << 20;

/// Options of a log request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Continue with new lines.
    pub follow: bool,
    /// Only the last lines, by number.
    pub tail_lines: Option<u64>,
    /// Only lines from this time on.
    pub since: Option<Timestamp>,
    /// Write the timestamp before each line.
    pub timestamps: bool,
    /// Maximum number of bytes.
    pub limit_bytes: Option<u64>,
    /// Only `stdout` or `stderr`; `None` means both.
    pub stream: Option<String>,
}

/// Receives the output. Reading ends when the receiver is closed.
pub type Sink = mpsc::Sender<Bytes>;

struct LogReader {
    options: Options,
    left: Option<u64>,
    sink: Sink,
    /// Whether the previous line was partial, so that this one gets no timestamp.
    continued: bool,
    over: bool,
}

/// Reads `path` and writes the output to `sink`. At the end of the file, `alive` is asked whether more lines may follow.
pub async fn read<F>(path: PathBuf, options: Options, sink: Sink, alive: impl Fn() -> F) -> io::Result<()>
where
    F: Future<Output = bool>,
{
    let (at, tail_lines) = (path.clone(), options.tail_lines);
    let mut file = in_files(move || {
        let mut file = open(&at)?;
        if let Some(lines) = tail_lines {
            let at = tail_offset(&mut file, lines)?;
            file.seek(SeekFrom::Start(at))?;
        }
        Ok(file)
    })
    .await?;
    let watch = match path.parent().filter(|_| options.follow) {
        Some(dir) => Some(Watch::new(dir)?),
        None => None,
    };
    let follow = options.follow;
    let mut reader = LogReader { left: options.limit_bytes, options, sink, continued: false, over: false };
    let mut pending = BytesMut::new();
    loop {
        file = reader.drain(file, &mut pending).await?;
        if reader.over {
            return Ok(());
        }
        let Some(watch) = watch.as_ref().filter(|_| follow) else { return Ok(()) };
        let at = path.clone();
        let (same, next) = in_files(move || {
            let next = rotated(&at, &file);
            Ok((file, next))
        })
        .await?;
        file = same;
        if let Some(next) = next {
            reader.drain(file, &mut pending).await?;
            file = next;
            continue;
        }
        if !alive().await {
            // Reads what was written between the last read and the end of the container.
            return reader.drain(file, &mut pending).await.map(drop);
        }
        tokio::select! {
            changed = watch.changed() => changed?,
            () = reader.sink.closed() => return Ok(()),
            // The end of a container does not change the file, so check periodically.
            () = tokio::time::sleep(std::time::Duration::from_secs(1)) => {}
        }
    }
}

/// Opens the new file, if the path refers to another file than `file`.
fn rotated(path: &Path, file: &File) -> Option<File> {
    let now = std::fs::metadata(path).ok()?;
    let held = file.metadata().ok()?;
    if now.ino() == held.ino() && now.dev() == held.dev() { None } else { open(path).ok() }
}

impl LogReader {
    /// Reads to the current end of the file and returns the file.
    async fn drain(&mut self, mut file: File, pending: &mut BytesMut) -> io::Result<File> {
        let mut block = vec![0; BLOCK];
        while !self.over {
            let n;
            (file, block, n) = in_files(move || {
                let n = file.read(&mut block)?;
                Ok((file, block, n))
            })
            .await?;
            if n == 0 {
                break;
            }
            pending.extend_from_slice(&block[..n]);
            let mut out = BytesMut::with_capacity(n);
            while let Some(end) = pending.iter().position(|b| *b == b'\n') {
                let line = pending.split_to(end + 1);
                self.line(&line, &mut out);
                if self.over {
                    break;
                }
            }
            if pending.len() > LINE_MAX {
                pending.clear();
            }
            if !out.is_empty() && self.sink.send(out.freeze()).await.is_err() {
                self.over = true;
            }
        }
        Ok(file)
    }

    fn line(&mut self, raw: &[u8], out: &mut BytesMut) {
        let Some(line) = line::parse(raw) else { return };
        if self.options.stream.as_deref().is_some_and(|s| s != line.stream) {
            return;
        }
        if let Some(since) = self.options.since
            && line.timestamp().is_some_and(|t| t < since)
        {
            return;
        }
        if self.options.timestamps && !self.continued {
            self.put(line.time.as_bytes(), out);
            self.put(b" ", out);
        }
        self.continued = line.partial;
        self.put(line.content, out);
    }

    fn put(&mut self, bytes: &[u8], out: &mut BytesMut) {
        match self.left.as_mut() {
            None => out.extend_from_slice(bytes),
            Some(left) => {
                let n = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                out.extend_from_slice(&bytes[..n]);
                *left -= n as u64;
                self.over |= *left == 0;
            }
        }
    }
}

/// Opens a log or another file that a container can create.
///
/// # Errors
/// It cannot be read or is not a regular file; a container may have replaced it by a pipe or a link.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(flags()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    Ok(file)
}

/// Opening must not block at a pipe and must not follow a link that replaced the log.
fn flags() -> i32 {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    i32::try_from(flags.bits()).unwrap_or(0)
}

/// Runs a blocking file operation in the lane for files.
async fn in_files<T, W>(work: W) -> io::Result<T>
where
    W: FnOnce() -> io::Result<T> + Send + 'static,
    T: Send + 'static,
{
    FILES.run(work).await.map_err(io::Error::other)?
}

/// Returns the offset at which the last `lines` lines begin.
fn tail_offset(file: &mut File, lines: u64) -> io::Result<u64> {
    let size = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(size);
    }
    let mut at = size;
    let mut found = 0u64;
    let mut block = vec![0; BLOCK];
    while at > 0 {
        let n = usize::try_from(at.min(BLOCK as u64)).unwrap_or(BLOCK);
        at -= n as u64;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut block[..n])?;
        for i in (0..n).rev() {
            // The line end at the end of the file does not begin a line.
            if block[i] == b'\n' && at + i as u64 + 1 < size {
                found += 1;
                if found == lines {
                    return Ok(at + i as u64 + 1);
                }
            }
        }
    }
    Ok(0)
}

/// Returns the end of a log for a termination message: at most `lines` lines and `bytes` bytes.
pub fn tail(path: &Path, lines: u64, bytes: u64) -> io::Result<String> {
    let mut file = open(path)?;
    let at = tail_offset(&mut file, lines)?;
    file.seek(SeekFrom::Start(at))?;
    let mut raw = Vec::new();
    file.take(4 * bytes.max(1024)).read_to_end(&mut raw)?;
    let mut out: Vec<u8> = Vec::new();
    for l in raw.split_inclusive(|b| *b == b'\n').filter_map(line::parse) {
        out.extend_from_slice(l.content);
    }
    let cut = out.len().saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok(String::from_utf8_lossy(&out[cut..]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const LOG: &str = "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stderr F two\n2026-01-01T00:00:03Z stdout P thr\n2026-01-01T00:00:03Z stdout F ee\n";

    async fn get(options: Options) -> String {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("0.log");
        std::fs::write(&path, LOG).expect("write");
        let (sink, mut lines) = mpsc::channel(16);
        read(path, options, sink, || async { false }).await.expect("read");
        let mut out = Vec::new();
        while let Ok(b) = lines.try_recv() {
            out.extend_from_slice(&b);
        }
        String::from_utf8(out).expect("utf-8")
    }

    #[tokio::test]
    async fn options() {
        let o = Options::default;
        assert_eq!(get(o()).await, "one\ntwo\nthree\n");
        assert_eq!(get(Options { tail_lines: Some(3), ..o() }).await, "two\nthree\n");
        assert_eq!(get(Options { tail_lines: Some(0), ..o() }).await, "");
        assert_eq!(get(Options { stream: Some("stderr".into()), ..o() }).await, "two\n");
        assert_eq!(get(Options { limit_bytes: Some(5), ..o() }).await, "one\nt");
        let since = "2026-01-01T00:00:02Z".parse().ok();
        assert_eq!(get(Options { since, ..o() }).await, "two\nthree\n");
        assert_eq!(get(Options { timestamps: true, tail_lines: Some(2), ..o() }).await, "2026-01-01T00:00:03Z three\n");
    }

    #[tokio::test]
    async fn a_pipe_in_place_of_a_log_does_not_block() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("0.log");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        let (sink, _lines) = mpsc::channel(1);
        let reading = read(path.clone(), Options::default(), sink, || async { false });
        let outcome = tokio::time::timeout(std::time::Duration::from_secs(5), reading).await.expect("answers at once");
        assert!(outcome.expect_err("no log").to_string().ends_with("is not a regular file"));
        assert!(tail(&path, 1, 1).is_err());
    }

    #[tokio::test]
    async fn a_link_that_replaced_a_log_is_not_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (path, secret) = (dir.path().join("0.log"), dir.path().join("secret"));
        std::fs::write(&secret, LOG).expect("write");
        std::os::unix::fs::symlink(&secret, &path).expect("a link");
        let (sink, _lines) = mpsc::channel(1);
        assert!(read(path.clone(), Options::default(), sink, || async { false }).await.is_err());
        assert!(tail(&path, 1, 1).is_err());
        // A followed log continues with the open file.
        let log = dir.path().join("1.log");
        std::fs::write(&log, LOG).expect("write");
        let held = open(&log).expect("a log");
        std::fs::remove_file(&log).expect("removed");
        std::os::unix::fs::symlink(&secret, &log).expect("a link");
        assert!(rotated(&log, &held).is_none());
    }

    #[tokio::test]
    async fn follows_across_rotation() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("0.log");
        std::fs::write(&path, LOG).expect("write");
        let (sink, mut lines) = mpsc::channel(16);
        let alive = std::sync::Arc::new(AtomicBool::new(true));
        let asked = std::sync::Arc::clone(&alive);
        let options = Options { follow: true, tail_lines: Some(0), ..Options::default() };
        let task = kelson_tasks::scoped(
            "read",
            read(path.clone(), options, sink, move || {
                let alive = asked.load(Ordering::SeqCst);
                async move { alive }
            }),
        );
        // The file must be opened and the watch be created before the log is rotated.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let fresh = dir.path().join("next");
        std::fs::write(&fresh, "2026-01-01T00:00:09Z stdout F rotated\n").expect("write");
        std::fs::rename(&path, dir.path().join("0.log.1")).expect("rename");
        std::fs::rename(&fresh, &path).expect("rename");
        let got = tokio::time::timeout(std::time::Duration::from_secs(5), lines.recv()).await.expect("in time");
        assert_eq!(got.as_deref(), Some(b"rotated\n".as_slice()));
        alive.store(false, Ordering::SeqCst);
        task.await.expect("task").expect("read");
    }
}
