//! Notices that a configuration changed, through the kernel's change notices on its directory: files that are written,
//! moved into place or reached through a replaced link all count. What to do about it is the caller's.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; at start before pods are")]

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kelson_tasks::FILES;
use rustix::fd::OwnedFd;
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

/// The time for which files must be unchanged before a change is reported: editors and volume updates write in several steps.
const SETTLE: Duration = Duration::from_millis(100);
/// The maximum wait while changes continue.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// The interval at which the directories are opened again when watching fails, for instance because a directory was
/// replaced.
const RETRY: Duration = Duration::from_secs(10);

/// Awaits what `changed` gives after every change of the file or directory at `path`, and of what is in the directory
/// `beside`; ends only when dropped.
pub async fn watch<C, F>(path: PathBuf, beside: Option<PathBuf>, mut changed: C)
where
    C: FnMut() -> F + Send,
    F: Future<Output = ()> + Send,
{
    loop {
        match Watch::open(&path, beside.as_ref()).await {
            Ok(mut watch) => {
                // What happened between the last look and this watch is seen by looking once.
                changed().await;
                loop {
                    if let Err(e) = watch.next().await {
                        tracing::warn!(path = %path.display(), error = %e, "watching the credential provider configuration failed; retrying");
                        break;
                    }
                    changed().await;
                    if watch.gone || !watch.is_of(&path, beside.as_ref()).await {
                        break;
                    }
                }
            }
            Err(e) => {
                tracing::warn!(path = %path.display(), error = %e, "cannot watch the credential provider configuration");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

struct Watch {
    fd: AsyncFd<OwnedFd>,
    dirs: Vec<PathBuf>,
    /// A watched directory was removed.
    gone: bool,
}

/// Returns the directory of the path, and the one it refers to through links; and the additional one, if it exists.
fn dirs(path: &Path, beside: Option<&Path>) -> Vec<PathBuf> {
    let parent = |p: &Path| p.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let mut dirs = vec![parent(path)];
    if let Ok(real) = path.canonicalize() {
        dirs.push(if real.is_dir() { real } else { parent(&real) });
    }
    if let Ok(real) = dirs[0].canonicalize() {
        dirs[0] = real;
    }
    dirs.extend(beside.and_then(|d| d.canonicalize().ok()).filter(|d| d.is_dir()));
    let mut seen = Vec::new();
    dirs.retain(|d| {
        !seen.contains(d) && {
            seen.push(d.clone());
            true
        }
    });
    dirs
}

/// Asks the kernel for notices of the directories.
fn notices(path: &Path, beside: Option<&Path>) -> std::io::Result<(OwnedFd, Vec<PathBuf>)> {
    let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    let dirs = dirs(path, beside);
    let what = inotify::WatchFlags::CLOSE_WRITE
        | inotify::WatchFlags::CREATE
        | inotify::WatchFlags::DELETE
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::MOVED_FROM
        | inotify::WatchFlags::ATTRIB
        | inotify::WatchFlags::DELETE_SELF
        | inotify::WatchFlags::MOVE_SELF;
    for dir in &dirs {
        inotify::add_watch(&fd, dir, what)?;
    }
    Ok((fd, dirs))
}

impl Watch {
    async fn open(path: &Path, beside: Option<&PathBuf>) -> std::io::Result<Self> {
        let (path, beside) = (path.to_owned(), beside.cloned());
        let opened = FILES.run(move || notices(&path, beside.as_deref())).await;
        let (fd, dirs) = opened.map_err(std::io::Error::other)??;
        Ok(Self { fd: crate::readable::readable(fd)?, dirs, gone: false })
    }

    /// Whether the paths still lead where it looks.
    async fn is_of(&self, path: &Path, beside: Option<&PathBuf>) -> bool {
        let (path, beside) = (path.to_owned(), beside.cloned());
        FILES.run(move || dirs(&path, beside.as_deref())).await.is_ok_and(|now| now == self.dirs)
    }

    /// Returns when something changed and then nothing for [`SETTLE`].
    async fn next(&mut self) -> std::io::Result<()> {
        self.drain().await?;
        let latest = tokio::time::Instant::now() + SETTLE_MAX;
        while let Ok(more) = tokio::time::timeout(SETTLE, self.drain()).await {
            more?;
            if tokio::time::Instant::now() >= latest {
                break;
            }
        }
        Ok(())
    }

    /// Waits for events and reads all that are there.
    async fn drain(&mut self) -> std::io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        loop {
            let mut ready = self.fd.readable().await?;
            let mut any = false;
            let mut reader = inotify::Reader::new(ready.get_inner(), &mut buffer);
            let error = loop {
                match reader.next() {
                    Ok(event) => {
                        any = true;
                        let gone = inotify::ReadFlags::DELETE_SELF
                            | inotify::ReadFlags::MOVE_SELF
                            | inotify::ReadFlags::IGNORED;
                        self.gone |= event.events().intersects(gone);
                    }
                    Err(e) => break e,
                }
            };
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error.into());
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }
}
