//! What a provider writes with, and what was last seen of its key service.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::proto::EncryptedObject;
use crate::metrics::digest;
use crate::transform::{Transform, TransformError};

/// The time for which a seed is written with after the service was last well (upstream `kmsv2PluginWriteDEKSourceMaxTTL`): a key that
/// was rotated is out of use after that, or writes fail and say so.
pub(super) const WRITE_MAX: Duration = Duration::from_secs(180);

/// The seed and the key for new values.
pub(super) struct State {
    /// Everything but the data.
    pub object: EncryptedObject,
    pub seed: Arc<dyn Transform>,
    pub expires: Instant,
}

impl State {
    pub fn may_write(&self) -> Result<(), TransformError> {
        if Instant::now() <= self.expires {
            return Ok(());
        }
        Err(TransformError::Invalid(format!(
            "encryptedDEKSource with keyID hash {:?} expired {} seconds ago",
            digest(self.object.key_id.as_bytes()),
            self.expires.elapsed().as_secs()
        )))
    }
}

/// The last look at a service.
pub(super) struct Checked {
    pub at: Option<Instant>,
    pub fault: Option<String>,
    /// The protocol version it said first; it must not change.
    pub version: String,
}

impl Checked {
    pub fn never() -> Self {
        Self { at: None, fault: Some("no response yet".to_owned()), version: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::{ExtendedNonce, SEED_BYTES};

    #[tokio::test(start_paused = true)]
    async fn a_seed_is_written_with_for_three_minutes_after_the_service_was_last_well() {
        let seed = Arc::new(ExtendedNonce::new(&[7; SEED_BYTES]).unwrap());
        let object = EncryptedObject { key_id: "k".into(), ..EncryptedObject::default() };
        let state = State { object, seed, expires: Instant::now() + WRITE_MAX };
        tokio::time::advance(Duration::from_secs(179)).await;
        assert_eq!(state.may_write(), Ok(()));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(state.may_write().unwrap_err().to_string().contains("expired"));
    }
}
