//! Pins of a cluster's CA, as in `--token-ca-cert-hash`: a machine does not join a cluster with another CA.
use anyhow::{Context as _, bail};

/// Parses `--token-ca-cert-hash`.
///
/// # Errors
/// A value is not a SHA-256 of a public key.
pub fn pins(given: &[String]) -> anyhow::Result<Vec<String>> {
    let parse = |text: &String| {
        kelson_pki::parse_pin(text)
            .with_context(|| format!("--token-ca-cert-hash {text:?}: expected sha256: and 64 hexadecimal digits"))
    };
    given.iter().map(parse).collect()
}

/// Checks that one of the CA's certificates matches one of the pins, if there are any.
///
/// # Errors
/// None matches, or this is not a CA.
pub fn check_pins(ca_pem: &str, pins: &[String]) -> anyhow::Result<()> {
    if pins.is_empty() {
        return Ok(());
    }
    let mut seen = Vec::new();
    for certificate in kelson_pki::certificates_from_pem(ca_pem)? {
        let pin = kelson_pki::public_key_pin(&certificate)?;
        if pins.contains(&pin) {
            return Ok(());
        }
        seen.push(pin);
    }
    bail!("--token-ca-cert-hash: the cluster's CA is {}, which is none of those given", seen.join(", "))
}
