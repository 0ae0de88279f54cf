//! The first read: the current records, and the recent history.

use std::sync::Arc;

use crate::connection::CallError;
use crate::core::Core;
use crate::follow::replay;
use crate::load::{LoadError, load};

/// The numbers of revisions before the current one from which a start reads the history. Larger ones are tried first,
/// since etcd may have compacted them. They cover an interruption of half a minute at hundreds of writes a second.
const HISTORY: [u64; 4] = [10_000, 3_000, 1_000, 100];

/// Fills the mirror for the first time; returns the revision that it shows, and the one from which watches can start.
///
/// What happened shortly before is shown as events, as far as etcd still has it. So a client whose server was replaced or
/// restarted continues its watch here, and need not list everything again.
///
/// # Errors
/// See [`load`].
pub(crate) async fn fill(core: &Arc<Core>) -> Result<(u64, u64), LoadError> {
    let now = core.connection.revision().await?;
    for span in HISTORY {
        let from = now.saturating_sub(span).max(1);
        match load(core, Some(from)).await {
            Ok(loaded) if loaded.locked.is_empty() => {
                loaded.show(core);
                if replay(core, now).await {
                    return Ok((core.mirror.revision(), from));
                }
                break;
            }
            Err(LoadError::Call(CallError::Compacted)) => {}
            // What was there before cannot be read. What is there now perhaps can.
            Ok(_) | Err(_) => break,
        }
    }
    let loaded = load(core, None).await?;
    let revision = loaded.revision;
    loaded.show(core);
    Ok((revision, revision))
}
