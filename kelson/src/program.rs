//! Releases pages of the program's file that were not used recently: an idle cluster needs 1 MB of them, and about 48
//! MB are mapped after its start.
use std::time::Duration;

use kelson_platform::ProgramPages;
use kelson_tasks::{OnPanic, Tasks};

/// Time after which the start is complete, even on a slow machine; releasing pages during the start would map them
/// twice.
const AFTER_START: Duration = Duration::from_secs(3);
/// The interval of releases. A busy process maps the pages it needs again within milliseconds.
const EVERY: Duration = Duration::from_secs(30);

/// Starts the task, if the system reports mappings.
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
