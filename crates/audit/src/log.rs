//! The log output: lines in a rotated file or on standard output. Lines of concurrent requests are written together by
//! one of them.
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use kelson_meta::Clock;
use kelson_tasks::{FILES, Lane, OnPanic, Tasks};
use kelson_transport::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::event::Event;
use crate::file::{LogFile, Rotation, tidy};
use crate::options::Format;
use crate::output::{Entry, Output, logged};

/// The lane for audit log files: one writer, separate from other file work, so that neither delays the other.
static WRITING: Lane = Lane::new("audit log", 1);

/// Writes events as lines to a rotated file or to standard output.
#[derive(Clone)]
pub struct Log(Arc<Parts>);

struct Parts {
    format: Format,
    clock: Arc<dyn Clock>,
    waiting: Mutex<Waiting>,
    /// The number of lines written, and the result of the last one; locked by the writer.
    turn: tokio::sync::Mutex<(u64, Result<(), String>)>,
    to: Arc<Mutex<To>>,
    rotated: Arc<Notify>,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<Bytes>,
    /// The number of lines that were ever submitted.
    last: u64,
}

enum To {
    Stdout,
    File(LogFile),
}

impl To {
    fn write(&mut self, lines: &[u8], clock: &dyn Clock) -> io::Result<bool> {
        match self {
            Self::File(file) => file.write(lines, clock.now()),
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush().map(|()| false)
            }
        }
    }
}

impl Log {
    /// Creates a log on standard output.
    pub fn to_stdout(format: Format, clock: Arc<dyn Clock>) -> Self {
        Self::new(format, clock, To::Stdout)
    }

    /// Creates a log in a file. A task removes rotated files.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn to_file(
        format: Format,
        clock: Arc<dyn Clock>,
        path: PathBuf,
        rotation: Rotation,
        tasks: &Tasks,
    ) -> io::Result<Self> {
        let file = LogFile::new(&path, rotation)?;
        let log = Self::new(format, Arc::clone(&clock), To::File(file));
        let rotated = Arc::clone(&log.0.rotated);
        tasks.spawn("audit-log-tidy", OnPanic::Contain, async move {
            loop {
                let (path, now) = (path.clone(), clock.now());
                match FILES.run(move || tidy(&path, &rotation, now)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "compressing or removing old audit logs failed"),
                    Err(_) => return,
                }
                rotated.notified().await;
            }
        });
        Ok(log)
    }

    fn new(format: Format, clock: Arc<dyn Clock>, to: To) -> Self {
        Self(Arc::new(Parts {
            format,
            clock,
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::new((0, Ok(()))),
            to: Arc::new(Mutex::new(to)),
            rotated: Arc::default(),
        }))
    }
}

impl Parts {
    /// Writes everything up to the line with this number, unless another caller has done so meanwhile.
    async fn write_up_to(&self, number: u64) -> Result<(), String> {
        let mut turn = self.turn.lock().await;
        if turn.0 >= number {
            return turn.1.clone();
        }
        let (lines, last) = {
            let mut waiting = self.waiting.lock();
            (std::mem::take(&mut waiting.lines), waiting.last)
        };
        let (to, clock, rotated) = (Arc::clone(&self.to), Arc::clone(&self.clock), Arc::clone(&self.rotated));
        let written = WRITING.run(move || {
            let written = to.lock().write(&lines.concat(), &*clock);
            if matches!(written, Ok(true)) {
                rotated.notify_one();
            }
            written.map(drop).map_err(|e| e.to_string())
        });
        let result = written.await.unwrap_or_else(|e| Err(e.to_string()));
        *turn = (last, result.clone());
        result
    }
}

impl Output for Log {
    fn name(&self) -> &'static str {
        "log"
    }
    fn entry(&self, event: &Event, item: &Bytes) -> Entry {
        logged(self.0.format, event, item)
    }
    fn write(&self, batch: Vec<Entry>) -> BoxFuture<Result<(), String>> {
        let parts = Arc::clone(&self.0);
        let number = {
            let mut waiting = parts.waiting.lock();
            waiting.last += batch.len() as u64;
            waiting.lines.extend(batch.into_iter().map(|entry| entry.0));
            waiting.last
        };
        Box::pin(async move { parts.write_up_to(number).await })
    }
    /// Writes the lines of requests that ended while they waited.
    fn flush(&self) -> BoxFuture<()> {
        let parts = Arc::clone(&self.0);
        Box::pin(async move {
            let last = parts.waiting.lock().last;
            let _ = parts.write_up_to(last).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::sample;
    use kelson_meta::SystemClock;

    #[tokio::test]
    async fn lines_that_wait_together_are_all_there_once() {
        let dir = tempfile::tempdir().unwrap();
        let (path, tasks) = (dir.path().join("audit.log"), Tasks::root("test"));
        let rotation = Rotation { bytes_max: None, backups_max: 0, age_max: None, compress: false };
        let log = Log::to_file(Format::Json, Arc::new(SystemClock), path.clone(), rotation, &tasks).unwrap();
        let writes = (0..50).map(|n| {
            let mut event = sample::full();
            event.audit_id = format!("id-{n}");
            let item = event.json();
            log.write(vec![log.entry(&event, &item)])
        });
        let writes: Vec<_> = writes.collect();
        // The cancelled request has already submitted its line.
        let mut writes = writes.into_iter();
        drop(writes.next());
        for write in writes {
            write.await.expect("written");
        }
        log.flush().await;
        let text = std::fs::read_to_string(&path).unwrap();
        let mut ids: Vec<String> = text
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["auditID"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids.dedup();
        assert_eq!((text.lines().count(), ids.len()), (50, 50));
    }
}
