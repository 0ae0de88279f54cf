//! A key service over a unix socket, by hand: it "encrypts" by turning the bits around, and counts its calls.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::net::UnixListener;

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

/// The first field of all requests that matter here.
#[derive(Clone, PartialEq, prost::Message)]
struct First {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Encrypted {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Default)]
struct Inner {
    key: std::sync::Mutex<String>,
    refuses: AtomicBool,
    encrypted: AtomicUsize,
    decrypted: AtomicUsize,
}

/// A key service for tests, with a state that tests can change.
pub struct KeyService {
    inner: Arc<Inner>,
    socket: PathBuf,
}

impl KeyService {
    pub async fn start(socket: &Path) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let inner = Arc::new(Inner { key: "key-1".to_owned().into(), ..Inner::default() });
        let shared = Arc::clone(&inner);
        tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                let inner = Arc::clone(&shared);
                let answer = service_fn(move |request| serve(Arc::clone(&inner), request));
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(http.serve_connection(TokioIo::new(io), answer));
            }
        });
        Self { inner, socket: socket.to_path_buf() }
    }

    /// Returns the service as a provider of the configuration.
    pub fn provider(&self) -> String {
        format!("kms: {{apiVersion: v2, name: tests, endpoint: 'unix://{}'}}", self.socket.display())
    }

    /// Seeds encrypted and decrypted.
    pub fn calls(&self) -> (usize, usize) {
        (self.inner.encrypted.load(Ordering::SeqCst), self.inner.decrypted.load(Ordering::SeqCst))
    }

    pub fn rotate(&self, key: &str) {
        *self.inner.key.lock().unwrap() = key.to_owned();
    }

    pub fn refuse(&self, refuses: bool) {
        self.inner.refuses.store(refuses, Ordering::SeqCst);
    }
}

type Frames = futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;
type Body = StreamBody<Frames>;

async fn serve(inner: Arc<Inner>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let sent = request.into_body().collect().await.unwrap().to_bytes();
    let message = First::decode(&sent[5..]).unwrap_or_default().bytes;
    let turned: Vec<u8> = message.iter().map(|b| b ^ 0xff).collect();
    let key_id = inner.key.lock().unwrap().clone();
    let answer = match path.rsplit('/').next().unwrap() {
        "Status" => Status { version: "v2".into(), healthz: "ok".into(), key_id }.encode_to_vec(),
        "Encrypt" => {
            inner.encrypted.fetch_add(1, Ordering::SeqCst);
            let annotations = BTreeMap::from([("a.example.com".to_owned(), b"x".to_vec())]);
            Encrypted { ciphertext: turned, key_id, annotations }.encode_to_vec()
        }
        _ => {
            inner.decrypted.fetch_add(1, Ordering::SeqCst);
            First { bytes: turned }.encode_to_vec()
        }
    };
    let refused = inner.refuses.load(Ordering::SeqCst);
    let mut frames = Vec::new();
    if !refused {
        let mut data = BytesMut::new();
        data.put_u8(0);
        data.put_u32(answer.len() as u32);
        data.put_slice(&answer);
        frames.push(Frame::data(data.freeze()));
    }
    let mut trailers = HeaderMap::new();
    // 9 is FAILED_PRECONDITION, which clients do not retry.
    trailers.insert("grpc-status", if refused { "9" } else { "0" }.parse().unwrap());
    frames.push(Frame::trailers(trailers));
    let body = StreamBody::new(futures::stream::iter(frames.into_iter().map(Ok).collect::<Vec<_>>()));
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}
