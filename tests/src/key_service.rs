//! A key service (KMS v2) on a unix socket for tests: it "encrypts" by inverting bits.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures::{StreamExt as _, stream};
use hyper::body::Frame;
use prost::Message;

use crate::grpc::{Frames, GrpcServer, ended, framed};

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

/// The first field of requests with data, and the answer to one of them.
#[derive(Clone, PartialEq, Message)]
struct Carried {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Encrypted {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

/// A running service.
pub struct KeyService {
    key: Arc<Mutex<String>>,
    socket: PathBuf,
    _server: GrpcServer,
}

impl KeyService {
    /// Listens on a socket.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn start(socket: &Path) -> anyhow::Result<Self> {
        let key = Arc::new(Mutex::new("key-1".to_owned()));
        let used = Arc::clone(&key);
        let server = GrpcServer::at_socket(socket, move |path, message| {
            let key_id = used.lock().map(|key| key.clone()).unwrap_or_default();
            let sent = Carried::decode(message).unwrap_or_default().bytes;
            let turned: Vec<u8> = sent.iter().map(|b| b ^ 0xff).collect();
            answered(&match path.rsplit('/').next() {
                Some("Status") => Status { version: "v2".into(), healthz: "ok".into(), key_id }.encode_to_vec(),
                Some("Encrypt") => {
                    Encrypted { ciphertext: turned, key_id, annotations: BTreeMap::new() }.encode_to_vec()
                }
                _ => Carried { bytes: turned }.encode_to_vec(),
            })
        })?;
        Ok(Self { key, socket: socket.to_owned(), _server: server })
    }

    /// Returns it as a provider of an EncryptionConfiguration.
    pub fn provider(&self) -> serde_json::Value {
        let endpoint = format!("unix://{}", self.socket.display());
        serde_json::json!({"kms": {"apiVersion": "v2", "name": "tests", "endpoint": endpoint}})
    }

    /// Uses another key from now on.
    pub fn rotate(&self, key: &str) {
        if let Ok(mut used) = self.key.lock() {
            key.clone_into(&mut used);
        }
    }
}

fn answered(message: &[u8]) -> Frames {
    stream::iter([Frame::data(framed(message)), ended("0")]).boxed()
}
