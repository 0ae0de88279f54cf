//! PEM armour (RFC 7468), the little of it that is needed: labelled blocks of base64.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;

use crate::PkiError;

const LINE: usize = 64;

/// One PEM block with `label`, e.g. `CERTIFICATE`.
pub fn pem_block(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut out = String::with_capacity(body.len() + body.len() / LINE + 2 * label.len() + 40);
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in body.as_bytes().chunks(LINE) {
        out.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

/// All blocks: label and content. Text between blocks is skipped.
pub(crate) fn blocks(text: &str) -> Result<Vec<(&str, Vec<u8>)>, PkiError> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        rest = &rest[at + 11..];
        let (label, after) =
            rest.split_once("-----").ok_or_else(|| PkiError::malformed("PEM", "unterminated BEGIN line"))?;
        let end = format!("-----END {label}-----");
        let stop = after.find(&end).ok_or_else(|| PkiError::malformed("PEM", format!("no END line for {label}")))?;
        let body: String = after[..stop].lines().filter(|l| !l.contains(':')).flat_map(|l| l.trim().chars()).collect();
        let der = STANDARD.decode(body).map_err(|_| PkiError::malformed("PEM", format!("{label} is not base64")))?;
        out.push((label, der));
        rest = &after[stop + end.len()..];
    }
    Ok(out)
}

/// The certificates of a PEM bundle; at least one.
pub fn certificates_from_pem(text: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let certs: Vec<_> = blocks(text)?
        .into_iter()
        .filter(|(l, _)| *l == "CERTIFICATE")
        .map(|(_, der)| CertificateDer::from(der))
        .collect();
    if certs.is_empty() { Err(PkiError::malformed("PEM", "has no certificate")) } else { Ok(certs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_faults() {
        let der: Vec<u8> = (0..200).collect();
        let text = format!("noise\n{}{}", pem_block("A B", &der), pem_block("C", b""));
        let got = blocks(&text).unwrap();
        assert_eq!(got, vec![("A B", der), ("C", vec![])]);
        assert!(blocks("-----BEGIN X-----\n!!\n-----END X-----").is_err());
        assert!(blocks("-----BEGIN X-----\nAAAA").is_err());
        assert!(certificates_from_pem("").is_err());
    }
}
