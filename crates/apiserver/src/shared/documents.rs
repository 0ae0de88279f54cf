//! Documents made from the catalog (aggregated discovery, OpenAPI), kept until the catalog changes.
use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Documents kept of those made; the rest is made again when asked for.
const KEPT_MAX: usize = 4;

/// Documents made so far, the last made at the end, each with its name and the catalog's generation it is of.
#[derive(Default)]
pub struct Documents {
    kept: Mutex<Vec<(String, u64, Document)>>,
    /// Held while a document is made, by its name: whoever asks for it too waits, and no thread with them.
    making: [tokio::sync::Mutex<()>; 8],
}

/// A document and the tag of its content.
#[derive(Clone)]
pub struct Document {
    pub body: Bytes,
    /// `ETag`: a digest of the content.
    pub etag: HeaderValue,
}

impl Documents {
    /// The document of this name and generation, if it was made.
    pub fn find(&self, name: &str, generation: u64) -> Option<Document> {
        among(&self.kept.lock(), name, generation)
    }
    /// The document of this name and generation, made by `make` unless it is there; `None` when `make` gives none.
    pub async fn get(&self, name: &str, generation: u64, make: impl FnOnce() -> Option<Bytes>) -> Option<Document> {
        if let Some(document) = self.find(name, generation) {
            return Some(document);
        }
        let slot = name.bytes().fold(0, |sum, b| sum + usize::from(b)) % self.making.len();
        let _making = self.making[slot].lock().await;
        if let Some(document) = self.find(name, generation) {
            return Some(document);
        }
        let body = make()?;
        let digest: String = Sha256::digest(&body).iter().map(|b| format!("{b:02X}")).collect();
        let etag = HeaderValue::try_from(format!("\"{digest}\"")).unwrap_or(HeaderValue::from_static("\"\""));
        let made = Document { body, etag };
        let mut kept = self.kept.lock();
        kept.retain(|(n, _, _)| n != name);
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push((name.to_owned(), generation, made.clone()));
        Some(made)
    }
}

fn among(kept: &[(String, u64, Document)], name: &str, generation: u64) -> Option<Document> {
    kept.iter().find(|(n, g, _)| n == name && *g == generation).map(|(.., document)| document.clone())
}
