//! Ends the process when its parent ends, even if that was killed. Only if requested by `KELSON_EXIT_WITH_PARENT`: a
//! server in the background must not end with its shell. The launchers of a test environment's assets request it.
use std::time::Duration;

use kelson_platform::process::{KNOWS_PARENT, parent};

/// The environment variable: `1`, or the parent's process ID as its own shell knows it; absent or `0` disables it.
pub const EXIT_WITH_PARENT: &str = "KELSON_EXIT_WITH_PARENT";
/// The interval at which the parent is checked.
const LOOK: Duration = Duration::from_millis(100);

/// The process to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    Nobody,
    Unknown,
    Gone,
    Process(u32),
}

/// Waits for the end of the parent if that is requested; otherwise never resolves. Must be called early: the parent is
/// the current one.
pub fn gone() -> impl Future<Output = ()> + Send {
    let asked = std::env::var(EXIT_WITH_PARENT).unwrap_or_default();
    let watched = watched(&asked, parent());
    if watched == Watched::Unknown {
        tracing::warn!("{EXIT_WITH_PARENT} has no effect: this system cannot report the exit of the parent process");
    }
    async move {
        match watched {
            Watched::Nobody | Watched::Unknown => std::future::pending().await,
            Watched::Gone => {}
            Watched::Process(parent) => ended(parent).await,
        }
        tracing::info!("parent process exited; stopping");
    }
}

/// Not Linux' parent death signal, which is sent at the end of the *thread* that started this process.
fn watched(asked: &str, parent: Option<u32>) -> Watched {
    let asked = match asked.trim() {
        "" | "0" | "false" => return Watched::Nobody,
        id => id.parse::<u32>().ok().filter(|id| *id > 1),
    };
    match (parent, asked) {
        (None, _) if !KNOWS_PARENT => Watched::Unknown,
        // The first process of a namespace has no parent, or one outside of it.
        (None, _) => Watched::Nobody,
        (Some(parent), Some(asked)) if parent != asked => Watched::Gone,
        (Some(parent), _) => Watched::Process(parent),
    }
}

/// The kernel reports the parent on every system; a new one means that the old one has ended.
async fn ended(watched: u32) {
    while parent() == Some(watched) {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_awaited_parent() {
        let rows = [
            ("", Some(7), Watched::Nobody),
            ("0", Some(7), Watched::Nobody),
            ("false", Some(7), Watched::Nobody),
            ("1", Some(7), Watched::Process(7)),
            ("true", Some(1), Watched::Process(1)),
            ("7", Some(7), Watched::Process(7)),
            ("7", Some(1), Watched::Gone),
            ("7", None, Watched::Nobody),
        ];
        for (asked, parent, want) in rows {
            assert_eq!(watched(asked, parent), want, "{asked:?} {parent:?}");
        }
    }

    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn another_parent_than_the_first_is_the_end_of_it() {
        let me = std::process::id();
        ended(me).await;
        let parent = parent().unwrap();
        let waited = tokio::time::timeout(LOOK * 10, ended(parent)).await;
        assert!(waited.is_err(), "it lives");
    }
}
