//! JSON's `null` where Go leaves a value out.
use serde::Deserialize;

/// Reads `null` as the default: Go's encoders write null for empty values that have no `omitempty`.
///
/// # Errors
/// Whatever the value's own decoding finds.
pub fn null_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}
