//! Cache of documents that are built from the catalog (aggregated discovery, OpenAPI), valid until the catalog changes.
use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Number of cached documents; others are built again on request.
const KEPT_MAX: usize = 5;

/// The cached documents with their names and the catalog's generation, the newest last.
#[derive(Default)]
pub struct Documents {
    kept: Mutex<Vec<(String, u64, Document)>>,
    /// Locks held while a document is built, by a hash of its name. A second request for it waits without blocking a thread.
    making: [tokio::sync::Mutex<()>; 8],
}

/// A document and its `ETag`.
#[derive(Clone)]
pub struct Document {
    pub body: Bytes,
    /// `ETag`: a digest of the content.
    pub etag: HeaderValue,
}

impl Documents {
    /// The cached document of this name and generation.
    pub fn find(&self, name: &str, generation: u64) -> Option<Document> {
        find_document(&self.kept.lock(), name, generation)
    }
    /// The document of this name and generation, built by `make` if it is not cached; `None` when `make` returns `None`.
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

fn find_document(kept: &[(String, u64, Document)], name: &str, generation: u64) -> Option<Document> {
    kept.iter().find(|(n, g, _)| n == name && *g == generation).map(|(.., document)| document.clone())
}
