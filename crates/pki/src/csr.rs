//! PKCS#10 certificate signing requests: creates them, and decodes the parts that signers need.
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

use crate::authority::{general_names, read_general_names, subject_names};
use crate::der::{self, oid};
use crate::foreign::{ForeignKey, Signed};
use crate::{Key, PkiError, PublicKey, San, pem};

/// The size limit of a request. It is far above the size of any useful request.
const REQUEST_MAX_BYTES: usize = 64 * 1024;

/// A parsed request whose self-signature has been verified.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// The subject's `CN`, a user's or node's name.
    pub common_name: String,
    /// `O` values in order.
    pub organizations: Vec<String>,
    /// Requested subject alternative names.
    pub sans: Vec<San>,
    /// The requester's public key.
    pub public: PublicKey,
    /// The subject as it was encoded, passed on unchanged.
    pub(crate) subject: Vec<u8>,
}

impl CertificateRequest {
    /// Reads `spec.request` of a CertificateSigningRequest (PEM) and verifies that the requester holds the key.
    pub fn parse(pem_text: &str) -> Result<Self, PkiError> {
        if pem_text.len() > REQUEST_MAX_BYTES {
            return Err(PkiError::Request("certificate request is too large".into()));
        }
        let first = pem::blocks(pem_text).ok().and_then(|b| b.into_iter().next());
        let Some((_, der)) = first.filter(|(label, _)| *label == "CERTIFICATE REQUEST") else {
            return Err(PkiError::Request("PEM block type must be CERTIFICATE REQUEST".into()));
        };
        let (rest, csr) = X509CertificationRequest::from_der(&der)
            .map_err(|e| PkiError::Request(format!("unable to parse certificate request: {e}")))?;
        if !rest.is_empty() {
            return Err(PkiError::Request("unable to parse certificate request: trailing data".into()));
        }
        let info = &csr.certification_request_info;
        if ForeignKey::of(&info.subject_pki).signature_of(&csr) != Signed::Well {
            return Err(PkiError::Request("unable to verify certificate request signature".into()));
        }
        let (common_name, organizations) = subject_names(&info.subject);
        let mut sans = Vec::new();
        for extension in csr.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                sans = read_general_names(&names.general_names);
            }
        }
        Ok(Self {
            common_name,
            organizations,
            sans,
            public: PublicKey::from_spki(info.subject_pki.raw)?,
            subject: info.subject.as_raw().to_vec(),
        })
    }

    pub(crate) fn has(&self, kind: impl Fn(&San) -> bool) -> bool {
        self.sans.iter().any(kind)
    }
}

/// Makes a request for `key` as PEM.
pub fn create_request(
    key: &Key,
    common_name: &str,
    organizations: &[String],
    sans: &[San],
) -> Result<String, PkiError> {
    let attributes = if sans.is_empty() {
        Vec::new()
    } else {
        let extensions = der::sequence(&[&der::extension(oid::SUBJECT_ALT_NAME, false, &general_names(sans))]);
        der::sequence(&[&der::object_id(oid::EXTENSION_REQUEST), &der::tlv(der::SET, &extensions)])
    };
    let info = der::sequence(&[
        &der::unsigned(&[0]),
        &der::name(common_name, organizations),
        key.public().spki(),
        &der::explicit(0, &attributes),
    ]);
    let signature = key.sign(&info)?;
    let der = der::sequence(&[&info, &key.algorithm(), &der::bits(&signature)]);
    Ok(pem::pem_block("CERTIFICATE REQUEST", &der))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_forgery() {
        let key = Key::generate().unwrap();
        let sans = [San::Dns("n1".into()), San::Ip("10.0.0.1".parse().unwrap())];
        let text = create_request(&key, "system:node:n1", &["system:nodes".into()], &sans).unwrap();
        let csr = CertificateRequest::parse(&text).unwrap();
        assert_eq!(csr.common_name, "system:node:n1");
        assert_eq!(csr.organizations, ["system:nodes"]);
        assert_eq!(csr.sans, sans);
        assert_eq!(&csr.public, key.public());
        let bare = create_request(&key, "x", &[], &[]).unwrap();
        assert!(CertificateRequest::parse(&bare).unwrap().sans.is_empty());

        let (_, mut der) = pem::blocks(&text).unwrap().remove(0);
        let at = der.windows(2).position(|w| w == b"n1").unwrap();
        der[at + 1] = b'2';
        let forged = CertificateRequest::parse(&pem::pem_block("CERTIFICATE REQUEST", &der));
        assert_eq!(forged.unwrap_err().to_string(), "unable to verify certificate request signature");
        for bad in ["", "junk", &pem::pem_block("CERTIFICATE", b"x")] {
            let e = CertificateRequest::parse(bad).unwrap_err().to_string();
            assert_eq!(e, "PEM block type must be CERTIFICATE REQUEST");
        }
    }
}
