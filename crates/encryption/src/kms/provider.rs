//! One provider: its current seed, and the seeds that it has decrypted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kelson_tasks::{OnPanic, Tasks};
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::proto::{AES_GCM_KEY, DecryptRequest, EncryptedObject, HKDF_SEED};
use super::service::{CallError, Service};
use super::state::{Checked, State};
use crate::metrics::Metrics;
use crate::transform::{AesGcm, ExtendedNonce, Opened, Transform, TransformError};

/// The maximum number of decrypted seeds. There is one for each key and start since all values were last rewritten.
const SEEDS_MAX: usize = 10_000;
const ANNOTATIONS_BYTES_MAX: usize = 32 << 10;
const KEY_ID_BYTES_MAX: usize = 1 << 10;
const SOURCE_BYTES_MAX: usize = 1 << 10;
/// The time for which an unresponsive service is not called again: decryptions in that time fail at once with the same
/// error.
const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// The options of a provider.
pub(crate) struct KmsOptions {
    pub name: String,
    pub endpoint: String,
    pub timeout: Duration,
}

/// A KMS v2 plugin behind its socket, and the key it last gave.
pub(crate) struct Kms {
    pub(super) name: String,
    pub(super) service: Service,
    pub(super) state: RwLock<Option<State>>,
    /// The seeds by a digest of all inputs of the encrypted seed.
    seeds: Mutex<HashMap<String, Arc<dyn Transform>>>,
    pub(super) checked: Mutex<Checked>,
    /// The time of the last missing answer, and the error.
    pub(super) silent: Mutex<Option<(Instant, CallError)>>,
    /// Notified when the health check is read and the last status is outdated.
    pub(super) asked: Notify,
    runtime: Handle,
    pub(super) metrics: Arc<Metrics>,
}

impl Kms {
    /// Starts to follow a service and waits for its first answer. An unavailable service is not an error.
    pub async fn start(options: KmsOptions, metrics: Arc<Metrics>, tasks: &Tasks) -> Result<Arc<Self>, String> {
        let service = Service::new(&options.name, &options.endpoint, options.timeout, Arc::clone(&metrics))?;
        let kms = Arc::new(Self {
            name: options.name,
            service,
            state: RwLock::new(None),
            seeds: Mutex::default(),
            checked: Mutex::new(Checked::never()),
            silent: Mutex::default(),
            asked: Notify::new(),
            runtime: Handle::current(),
            metrics,
        });
        kms.probe().await;
        let follower = Arc::clone(&kms);
        tasks.spawn("kms", OnPanic::Contain, async move { follower.follow().await });
        Ok(kms)
    }

    fn seed(&self, object: &EncryptedObject) -> Option<Arc<dyn Transform>> {
        self.seeds.lock().get(&seed_name(object)).cloned()
    }

    pub(super) fn keep_seed(&self, name: String, seed: Arc<dyn Transform>) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= SEEDS_MAX {
            seeds.clear();
        }
        seeds.insert(name, seed);
    }

    /// Requests the decryption of a seed or data key.
    fn fetch(&self, object: &EncryptedObject) -> Result<Arc<dyn Transform>, TransformError> {
        self.metrics.cache_missed();
        let unavailable = |e: CallError| TransformError::Unavailable(format!("failed to decrypt DEK, error: {e}"));
        if let Some((at, error)) = &*self.silent.lock()
            && at.elapsed() < SILENT_PAUSE
        {
            return Err(unavailable(error.clone()));
        }
        let request = DecryptRequest {
            ciphertext: object.encrypted_dek_source.clone(),
            uid: uuid::Uuid::new_v4().to_string(),
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        let key = match self.runtime.block_on(self.service.decrypt(request)) {
            Ok(answer) => Zeroizing::new(answer.plaintext),
            Err(error) => {
                if matches!(error.code, tonic::Code::Unavailable | tonic::Code::DeadlineExceeded) {
                    *self.silent.lock() = Some((Instant::now(), error.clone()));
                }
                return Err(unavailable(error));
            }
        };
        Ok(match object.encrypted_dek_source_type {
            HKDF_SEED => Arc::new(ExtendedNonce::new(&key)?),
            _ => Arc::new(AesGcm::new(&key)?),
        })
    }
}

impl Transform for Kms {
    fn seal(&self, plain: &[u8], path: &[u8]) -> Result<(Vec<u8>, String), TransformError> {
        let (mut object, seed) = {
            let state = self.state.read();
            let state = state.as_ref().ok_or("got unexpected nil transformer")?;
            state.may_write()?;
            (state.object.clone(), Arc::clone(&state.seed))
        };
        (object.encrypted_data, _) = seed.seal(plain, path)?;
        self.metrics.used_key(false, &self.name, &object.key_id);
        Ok((object.encode_to_vec(), object.key_id))
    }

    fn open(&self, stored: &[u8], path: &[u8]) -> Result<Opened, TransformError> {
        let object =
            EncryptedObject::decode(stored).map_err(|_| TransformError::from("the stored object does not decode"))?;
        if object.encrypted_data.is_empty() {
            return Err("encrypted data is empty".into());
        }
        validate(&object)?;
        let seed = match self.seed(&object) {
            Some(seed) => seed,
            None => {
                let seed = self.fetch(&object)?;
                self.keep_seed(seed_name(&object), Arc::clone(&seed));
                seed
            }
        };
        self.metrics.used_key(true, &self.name, &object.key_id);
        let plain = seed.open(&object.encrypted_data, path)?.plain;
        // A data key that was used as it is counts as another key: new writes derive theirs.
        let derived = object.encrypted_dek_source_type == HKDF_SEED;
        let key_id = if derived { object.key_id } else { format!("{} without derivation", object.key_id) };
        Ok(Opened { plain, key_id })
    }

    fn key_id(&self) -> Option<String> {
        self.state.read().as_ref().map(|state| state.object.key_id.clone())
    }
}

/// Returns a digest of all fields of an encrypted seed.
pub(super) fn seed_name(object: &EncryptedObject) -> String {
    let named = EncryptedObject { encrypted_data: Vec::new(), ..object.clone() };
    crate::metrics::digest(&named.encode_to_vec())
}

/// Checks that an answer of the service, which will be stored, respects the protocol's limits.
pub(super) fn validate(object: &EncryptedObject) -> Result<(), TransformError> {
    if !matches!(object.encrypted_dek_source_type, AES_GCM_KEY | HKDF_SEED) {
        return Err(TransformError::Invalid(format!(
            "unknown encryptedDEKSourceType: {}",
            object.encrypted_dek_source_type
        )));
    }
    let source = object.encrypted_dek_source.len();
    if source == 0 {
        return Err("failed to validate encrypted DEK source: encrypted DEK source is empty".into());
    }
    if source > SOURCE_BYTES_MAX {
        return Err(TransformError::Invalid(format!(
            "failed to validate encrypted DEK source: encrypted DEK source is {source} bytes, which exceeds the max size of {SOURCE_BYTES_MAX}"
        )));
    }
    validate_key_id(&object.key_id)
        .map_err(|(_, why)| TransformError::Invalid(format!("failed to validate key id: {why}")))?;
    validate_annotations(&object.annotations)
        .map_err(|why| TransformError::Invalid(format!("failed to validate annotations: {why}")))
}

/// Validates a key ID. The error is the label of the metric and the reason.
pub(super) fn validate_key_id(id: &str) -> Result<(), (&'static str, String)> {
    match id.len() {
        0 => Err(("empty", "keyID is empty".to_owned())),
        n if n > KEY_ID_BYTES_MAX => {
            Err(("too_long", format!("keyID is {n} bytes, which exceeds the max size of {KEY_ID_BYTES_MAX}")))
        }
        _ => Ok(()),
    }
}

fn validate_annotations(annotations: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    for key in annotations.keys() {
        if !key.contains('.') || kelson_meta::is_dns1123_subdomain(key).is_err() {
            return Err(format!(
                "annotations: Invalid value: {key:?}: should be a domain with at least two segments separated by dots"
            ));
        }
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > ANNOTATIONS_BYTES_MAX {
        return Err(format!(
            "total size of annotations is {size}, which exceeds the max size of {ANNOTATIONS_BYTES_MAX}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    #[test]
    fn a_value_as_the_reference_stores_it() {
        let stored = "Ck3IycrLzM3Oz9DR0tPU1dbX2Nna29zd3t/g4eLj5OXm52RlZmdoaWprbG1ub1jSoIfqegtxTsoUlv2cPOK0pHX0ytFZzBx2FWc1\
                      DL0OCxIFa2V5LTEaC3NlYWxlZC1zZWVkIhIKDWEuZXhhbXBsZS5jb20SAXgoAQ==";
        let stored = base64::engine::general_purpose::STANDARD.decode(stored).unwrap();
        let object = EncryptedObject::decode(&stored[..]).unwrap();
        assert_eq!(validate(&object), Ok(()));
        assert_eq!((object.key_id.as_str(), object.encrypted_dek_source.as_slice()), ("key-1", &b"sealed-seed"[..]));
        assert_eq!(
            (object.annotations["a.example.com"].as_slice(), object.encrypted_dek_source_type),
            (&b"x"[..], HKDF_SEED)
        );
        let seed: Vec<u8> = (0..32).collect();
        let seed = ExtendedNonce::new(&seed).unwrap();
        let opened = seed.open(&object.encrypted_data, b"/registry/secrets/default/s").unwrap();
        assert_eq!(opened.plain, br#"{"kind":"Secret"}"#);
        assert_eq!(object.encode_to_vec(), stored);
    }

    #[test]
    fn limits_of_the_protocol() {
        let good = EncryptedObject {
            encrypted_data: vec![1],
            key_id: "k".into(),
            encrypted_dek_source: vec![1],
            annotations: BTreeMap::new(),
            encrypted_dek_source_type: HKDF_SEED,
        };
        assert_eq!(validate(&good), Ok(()));
        let annotated = |key: &str, size: usize| BTreeMap::from([(key.to_owned(), vec![0; size])]);
        for bad in [
            EncryptedObject { key_id: String::new(), ..good.clone() },
            EncryptedObject { key_id: "k".repeat(1025), ..good.clone() },
            EncryptedObject { encrypted_dek_source: Vec::new(), ..good.clone() },
            EncryptedObject { encrypted_dek_source: vec![0; 1025], ..good.clone() },
            EncryptedObject { encrypted_dek_source_type: 2, ..good.clone() },
            EncryptedObject { annotations: annotated("plain", 1), ..good.clone() },
            EncryptedObject { annotations: annotated("a.b", 32 << 10), ..good.clone() },
        ] {
            assert!(validate(&bad).is_err(), "{bad:?}");
        }
    }
}
