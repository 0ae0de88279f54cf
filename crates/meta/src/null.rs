//! Decoding of JSON `null` for fields that Go leaves out.
use serde::Deserialize;

/// Decodes `null` as the default value: Go's encoders write null for empty values without `omitempty`.
///
/// # Errors
/// Returns the error of decoding the value.
pub fn null_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}
