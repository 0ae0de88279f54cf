//! Values that belong to no resource that is served, and are therefore not mirrored: data that servers exchange. They
//! have the form of API objects, as upstream stores them, and are encrypted where the configuration names them.

use std::sync::Arc;

use bytes::Bytes;
use kelson_codec::{json, proto as protobuf};
use kelson_schema::TypeId;
use kelson_store::{Key, StoreError, Writer};
use serde_json::Value;

use crate::core::{Core, DECODE, SEALED};
use crate::value::MediaType;

/// A value in the form that is configured for the storage.
///
/// # Errors
/// [`StoreError::BadBody`]: it is none of its type.
pub(crate) fn encode(media: MediaType, ty: Option<TypeId>, tree: &Value) -> Result<Vec<u8>, StoreError> {
    if media == MediaType::Json {
        let mut bytes = kelson_codec::declared_json(tree);
        bytes.push(b'\n');
        return Ok(bytes);
    }
    protobuf::encode(ty.ok_or(StoreError::BadBody)?, tree).map_err(|_| StoreError::BadBody)
}

/// Decodes a value that is not encrypted, in either media type.
pub(crate) fn decode(ty: Option<TypeId>, plain: &[u8]) -> Option<Value> {
    if protobuf::is_protobuf(plain) {
        return Some(protobuf::decode_as(ty?, plain).ok()?.1);
    }
    Some(json::decode(None, plain, false).ok()?.value)
}

/// Reads a stored value; `None` for what cannot be decrypted or understood.
///
/// # Errors
/// The reading was broken off.
pub(crate) async fn read<T: Send + 'static>(
    core: &Arc<Core>,
    key: &Key,
    stored: Bytes,
    understand: fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, StoreError> {
    let (core, key) = (Arc::clone(core), key.clone());
    let read = move || {
        let opened = match core.mirror.at_rest() {
            Some(at_rest) if stored.starts_with(SEALED) => at_rest.open(&key, &stored).ok(),
            _ => None,
        };
        understand(opened.as_ref().map_or(&stored[..], |opened| &opened.plain[..]))
    };
    DECODE.run(read).await.map_err(|error| StoreError::Elsewhere(error.to_string()))
}

/// A value as it is stored.
///
/// # Errors
/// [`StoreError::Sealed`]: it cannot be encrypted now.
pub(crate) fn sealed(core: &Core, key: &Key, plain: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let Some(at_rest) = core.mirror.at_rest() else { return Ok(plain) };
    if at_rest.writer(key.resource) == Some(Writer::CLEAR) {
        return Ok(plain);
    }
    let sealed = at_rest.seal(key, &plain).map_err(StoreError::Sealed)?;
    Ok(sealed.map_or(plain, |sealed| sealed.bytes))
}
