//! Streaming calls.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for the disk")]

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::exchange::Requests;
use super::face::Face;
use super::options::CLUSTER_VERSION;
use crate::disk::DISK;
use crate::error::Error;
use crate::export::Export;
use crate::proto::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, SnapshotRequest, SnapshotResponse, WatchRequest, WatchResponse,
};
use crate::watch::{self, WatchOptions};

/// The maximum size of an answer in addition to the request limit before it is split, as in etcd.
const OVERHEAD_BYTES: usize = 512 << 10;

pub(super) fn watch(
    face: &Face,
    requests: Requests<WatchRequest>,
) -> impl Stream<Item = Result<WatchResponse, Status>> + Send + use<> {
    let shared = Arc::clone(face.store.shared());
    let options = WatchOptions {
        progress_every: face.options.watch_progress_every,
        response_bytes_max: shared.limits().request_bytes_max.saturating_add(OVERHEAD_BYTES),
    };
    watch::watch(shared, requests, options, face.tasks.token().clone())
}

/// Renews a lease for each request, until the client ends its stream.
pub(super) fn keep_alive(
    face: &Arc<Face>,
    requests: Requests<LeaseKeepAliveRequest>,
) -> impl Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send + use<> {
    let (face, stop) = (Arc::clone(face), face.tasks.token().clone());
    let answers = requests.map(move |request| {
        let id = request?.id;
        // The revision is read first: a client must not consider the lease alive at a revision that ended it.
        let header = Some(face.store.shared().header(face.store.revision()));
        let ttl = match face.store.renew(id) {
            Ok(ttl) => ttl,
            Err(Error::LeaseNotFound) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(LeaseKeepAliveResponse { header, id, ttl })
    });
    answers.take_until(async move { stop.cancelled().await })
}

/// The size of one piece of a snapshot, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// A snapshot that is being sent.
struct Sending {
    file: File,
    left: u64,
    sum: Sha256,
    _turn: OwnedSemaphorePermit,
}

/// Sends the data in etcd's file format, followed by its SHA-256, which clients store at the end of the file.
pub(super) fn snapshot(
    face: &Face,
    _: SnapshotRequest,
) -> impl Stream<Item = Result<SnapshotResponse, Status>> + Send + use<> {
    let shared = face.store.shared();
    let header = Some(shared.header(face.store.revision()));
    let export = shared.read(|state| Export::of(state, shared.commits()));
    let dir = face.store.data_dir().map(std::path::Path::to_path_buf);
    let turn = Arc::clone(&face.snapshots).try_acquire_owned();
    let begin = async move {
        let turn = turn.map_err(|_| Status::from(Error::TooManyRequests))?;
        let sending = in_lane(move || {
            let mut file = match dir {
                Some(dir) => tempfile::tempfile_in(dir)?,
                None => tempfile::tempfile()?,
            };
            let left = export.write(&mut file)?;
            Ok(Sending { file, left, sum: Sha256::new(), _turn: turn })
        });
        sending.await.map(Some)
    };
    let answer = move |remaining_bytes, blob| {
        Ok(SnapshotResponse { header, remaining_bytes, blob, version: CLUSTER_VERSION.to_owned() })
    };
    let pieces = move |sending: Sending| {
        futures::stream::unfold(Some(sending), move |sending| async move {
            let sending = sending?;
            if sending.left == 0 {
                let sum = Bytes::copy_from_slice(&sending.sum.finalize());
                return Some((answer(0, sum), None));
            }
            match in_lane(|| piece(sending)).await {
                Ok((sending, blob)) => Some((answer(sending.left, blob), Some(sending))),
                Err(status) => Some((Err(status), None)),
            }
        })
    };
    futures::stream::once(begin).flat_map(move |begun| match begun {
        Ok(sending) => futures::stream::iter(sending).flat_map(pieces).boxed(),
        Err(status) => futures::stream::iter([Err(status)]).boxed(),
    })
}

fn piece(mut sending: Sending) -> io::Result<(Sending, Bytes)> {
    let bytes = usize::try_from(sending.left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
    let mut blob = vec![0; bytes];
    sending.file.read_exact(&mut blob)?;
    sending.sum.update(&blob);
    sending.left -= bytes as u64;
    Ok((sending, blob.into()))
}

async fn in_lane<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Status> {
    let done = DISK.run(work).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|error| Status::internal(format!("copy the data: {error}")))
}
