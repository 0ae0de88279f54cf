//! The health of a key service, and the seed for new values: the service is checked every minute while it is healthy,
//! every ten seconds while it is not, and sooner when the health check is read.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use zeroize::Zeroizing;

use super::proto::{EncryptRequest, EncryptedObject, HKDF_SEED, StatusResponse};
use super::provider::{Kms, seed_name, validate, validate_key_id};
use super::state::{State, WRITE_MAX};
use crate::metrics::{digest, now_s};
use crate::transform::{ExtendedNonce, SEED_BYTES, Transform, TransformError, random};

/// The interval between two checks of a healthy service (upstream `kmsv2PluginHealthzPositiveInterval`).
const WELL_EVERY: Duration = Duration::from_secs(60);
/// The interval between two checks of an unhealthy service.
const ILL_EVERY: Duration = Duration::from_secs(10);
/// The age from which a status is outdated, so that reading the health check starts a new check.
const WELL_KNOWN: Duration = Duration::from_secs(20);
const ILL_KNOWN: Duration = Duration::from_secs(3);

impl Kms {
    /// Checks the service while the provider is in use.
    pub(super) async fn follow(&self) {
        loop {
            let pause = if self.checked.lock().fault.is_none() { WELL_EVERY } else { ILL_EVERY };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.asked.notified() => {}
            }
            self.probe().await;
        }
    }

    /// Returns the last status of the service.
    pub fn check(&self) -> Result<(), String> {
        let checked = self.checked.lock();
        let known = if checked.fault.is_none() { WELL_KNOWN } else { ILL_KNOWN };
        if checked.at.is_none_or(|at| at.elapsed() > known) {
            self.asked.notify_one();
        }
        checked.fault.clone().map_or(Ok(()), Err)
    }

    /// Requests the status of the service, and a new seed if its key has changed.
    pub async fn probe(&self) {
        // The time at which writing ends counts from before the question.
        let expires = Instant::now() + WRITE_MAX;
        let fault = match self.service.status().await {
            Err(e) => Some(format!(
                "failed to perform status section of the healthz check for KMS Provider {}, error: {e}",
                self.name
            )),
            Ok(status) => {
                // It answers: seeds that are not in memory are worth asking for again.
                *self.silent.lock() = None;
                let faults = self.judge(status, expires).await;
                let why = if faults.len() == 1 { faults[0].clone() } else { format!("[{}]", faults.join(", ")) };
                (!faults.is_empty()).then(|| format!("kmsv2 Provider {} is not healthy, error: {why}", self.name))
            }
        };
        if let Some(fault) = &fault {
            tracing::warn!(provider = self.name, fault, "KMS plugin is unhealthy");
        }
        let mut checked = self.checked.lock();
        checked.at = Some(Instant::now());
        checked.fault = fault;
    }

    async fn judge(&self, status: StatusResponse, expires: Instant) -> Vec<String> {
        let mut faults = Vec::new();
        if status.healthz != "ok" {
            faults.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            faults.push(format!("expected KMSv2 API version v2, got {}", status.version));
        } else {
            let mut checked = self.checked.lock();
            if checked.version.is_empty() {
                checked.version.clone_from(&status.version);
            }
            if checked.version != status.version {
                faults.push(format!(
                    "KMSv2 API version should not change after the initial status response version {}, got {}",
                    checked.version, status.version
                ));
            }
        }
        match validate_key_id(&status.key_id) {
            Err((word, why)) => {
                self.metrics.invalid_key(&self.name, word);
                faults.push(format!("got invalid KMSv2 KeyID hash {:?}: {why}", digest(status.key_id.as_bytes())));
            }
            Ok(()) => {
                self.metrics.named_key(&self.name, &status.key_id, now_s());
                faults.extend(self.rotate(&status.key_id, expires).await.err().map(|e| e.to_string()));
            }
        }
        faults
    }

    /// Continues with the seed of the service's current key, or requests one. If that fails, the previous seed stays in
    /// use until it expires.
    async fn rotate(&self, key_id: &str, expires: Instant) -> Result<(), TransformError> {
        if let Some(state) = self.state.write().as_mut()
            && state.object.key_id == key_id
        {
            state.expires = expires;
            return Ok(());
        }
        let seed: Zeroizing<[u8; SEED_BYTES]> = Zeroizing::new(random()?);
        let uid = uuid::Uuid::new_v4().to_string();
        let request = EncryptRequest { plaintext: seed.to_vec(), uid: uid.clone() };
        let answer = self.service.encrypt(request).await;
        let answer = answer.map_err(|e| TransformError::Invalid(format!("failed to encrypt DEK, error: {e}")))?;
        let object = EncryptedObject {
            encrypted_data: Vec::new(),
            key_id: answer.key_id,
            encrypted_dek_source: answer.ciphertext,
            annotations: answer.annotations,
            encrypted_dek_source_type: HKDF_SEED,
        };
        validate(&object)?;
        if object.key_id != key_id {
            return Err(TransformError::Invalid(format!(
                "failed to rotate DEK uid={uid:?}, statusKeyIDHash={:?}, encryptKeyIDHash={:?}",
                digest(key_id.as_bytes()),
                digest(object.key_id.as_bytes())
            )));
        }
        let seed: Arc<dyn Transform> = Arc::new(ExtendedNonce::new(&seed[..])?);
        self.keep_seed(seed_name(&object), Arc::clone(&seed));
        tracing::info!(
            provider = self.name,
            key = digest(key_id.as_bytes()),
            "KMS key changed; new values are encrypted with the new key"
        );
        *self.state.write() = Some(State { object, seed, expires });
        Ok(())
    }
}
