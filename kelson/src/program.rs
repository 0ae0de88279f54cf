//! Gives the pages of the program's file back that nothing has run for a while: at rest a cluster needs 1 MB of them, after
//! its start some 48 MB are in the process.
use std::time::Duration;

use kelson_platform::ProgramPages;
use kelson_tasks::{OnPanic, Tasks};

/// The start is over by then, also on a slow board; nobody gains from pages that are mapped twice during it.
const AFTER_START: Duration = Duration::from_secs(3);
/// A process that works maps the pages it needs within a few milliseconds, each time.
const EVERY: Duration = Duration::from_secs(30);

/// Starts the task, where the system tells what is mapped.
pub fn give_back_pages(tasks: &Tasks) {
    let pages = match ProgramPages::find() {
        Ok(pages) => pages,
        Err(e) => return tracing::debug!(error = %e, "cannot release unused program pages"),
    };
    tasks.spawn("program-pages", OnPanic::Contain, async move {
        tokio::time::sleep(AFTER_START).await;
        loop {
            if let Err(e) = pages.give_back() {
                return tracing::warn!(error = %e, "cannot release unused program pages");
            }
            tokio::time::sleep(EVERY).await;
        }
    });
}
