//! An API server with watches only, for components that read objects through informers. The test creates and deletes
//! objects, and the server records the writes of the component.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use kelson_transport::{BoxFuture, Request, Response, Transport, TransportError, full_body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The maximum number of changes that wait for a watcher. A slower watcher is disconnected, as by a real server, and
/// starts again.
const WAITING_MAX: usize = 1 << 16;

/// Answers watches with the objects of the test, and every other request with its own body.
///
/// A watch streams the objects of its resource in all namespaces, and then every change. Selectors are ignored.
#[derive(Default)]
pub struct WatchApi(Mutex<State>);

#[derive(Default)]
struct State {
    /// The objects by resource, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    watchers: Vec<(String, mpsc::Sender<Bytes>)>,
    revision: u64,
    written: Vec<(String, Value)>,
}

struct Frames(mpsc::Receiver<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = TransportError;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|b| Ok(Frame::data(b))))
    }
}

fn event(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

fn text(object: &Value, field: &str) -> String {
    object["metadata"][field].as_str().unwrap_or_default().to_owned()
}

impl Transport for WatchApi {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let plural = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let mut state = self.0.lock();
        if request.method() != Method::GET {
            let object = serde_json::from_slice(request.body()).unwrap_or_default();
            state.written.push((plural, object));
            let mut answer = http::Response::new(full_body(request.into_body()));
            *answer.status_mut() = http::StatusCode::CREATED;
            return Box::pin(async move { Ok(answer) });
        }
        let (sender, receiver) = mpsc::channel(state.objects.len() + WAITING_MAX);
        // The channel has space, and the receiver exists.
        let send = |line: Bytes| drop(sender.try_send(line));
        state.objects.iter().filter(|((of, ..), _)| *of == plural).for_each(|(_, o)| send(event("ADDED", o)));
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": state.revision.to_string(), "annotations": annotations});
        send(event("BOOKMARK", &json!({"metadata": metadata})));
        state.watchers.push((plural, sender));
        Box::pin(async move { Ok(http::Response::new(Frames(receiver).boxed_unsync())) })
    }
}

impl WatchApi {
    /// Creates or updates an object of a resource (`pods`) with the next resourceVersion.
    pub fn put(&self, plural: &str, mut object: Value) {
        let mut state = self.0.lock();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        let key = (plural.to_owned(), text(&object, "namespace"), text(&object, "name"));
        let known = state.objects.insert(key, object.clone()).is_some();
        state.report(plural, if known { "MODIFIED" } else { "ADDED" }, &object);
    }

    /// Deletes an object, if it exists. The namespace is empty for cluster-scoped objects.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.0.lock();
        if let Some(object) = state.objects.remove(&(plural.to_owned(), namespace.to_owned(), name.to_owned())) {
            state.report(plural, "DELETED", &object);
        }
    }

    /// Returns the names of the objects of a resource in a namespace.
    pub fn names(&self, plural: &str, namespace: &str) -> Vec<String> {
        let state = self.0.lock();
        let found = state.objects.keys().filter(|(of, within, _)| of == plural && within == namespace);
        found.map(|(.., name)| name.clone()).collect()
    }

    /// Returns the bodies of the write requests, by the last segment of their path: `events`.
    pub fn written(&self, plural: &str) -> Vec<Value> {
        self.0.lock().written.iter().filter(|(of, _)| of == plural).map(|(_, object)| object.clone()).collect()
    }
}

impl State {
    fn report(&mut self, plural: &str, kind: &str, object: &Value) {
        let line = event(kind, object);
        self.watchers.retain(|(of, watcher)| of != plural || watcher.try_send(line.clone()).is_ok());
    }
}
