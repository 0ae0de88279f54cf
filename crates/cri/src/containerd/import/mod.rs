//! Imports images from archives into containerd, through its own API in the namespace of CRI: blobs into the content
//! store, then the image's record. containerd's CRI service sees the record and adds the image. Layers are unpacked
//! when a container first needs them. (containerd's api/services/{content,images,leases}/v1)
mod messages;

use std::collections::BTreeMap;
use std::io::{Read, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::uri::PathAndQuery;
use kelson_tasks::{FILES, Lane, scoped};
use prost::Message;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::ContainerdError;
use crate::channel::{connect, transport_error, unary};
use crate::image::Archive;
use crate::image::archive::{ArchivedImage, Blob, BlobContent, gc_labels};
use crate::proto::ImageSpec;
use crate::transfers::in_namespace;
use crate::{CriClient, CriError, CriResult, Limits, Runtime as _};

use messages::{
    AbortContent, CreateImage, CreateLease, DeleteLease, Empty, FieldMask, ImageRecord, Info, LeaseAnswer,
    TargetDescriptor, UpdateContent, UpdateImage, WriteAction, WriteAnswer, WriteContent,
};

/// The blocking pool for uploads: they wait for containerd between two reads, so they must not block other file work.
static UPLOADS: Lane = Lane::new("image-upload", 2);

/// The size of a message of an upload in bytes; the server accepts 16 MiB.
const CHUNK_BYTES: usize = 1 << 20;

/// The maximum number of queued messages of an upload.
const CHUNKS_QUEUED_MAX: usize = 2;

/// The timeout of a small call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that an upload may take before containerd may garbage-collect its content.
const LEASE_SECONDS: u64 = 24 * 3600;

/// The time that CRI may take to show a new image.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(15);

const NOTICE_INTERVAL: Duration = Duration::from_millis(20);

/// An imported image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedImage {
    /// Its full name.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
}

/// Imports images into one containerd.
#[derive(Debug, Clone)]
pub struct Importer {
    channel: Channel,
    cri: CriClient,
}

impl Importer {
    /// Creates an importer for the containerd at `endpoint` (see [`CriClient::new`]).
    ///
    /// # Errors
    /// The endpoint is not a unix socket.
    pub fn new(endpoint: &str) -> CriResult<Self> {
        Ok(Self { channel: connect(endpoint)?, cri: CriClient::new(endpoint, Limits::default())? })
    }

    /// Imports every image of an archive (OCI layout or `docker save`, plain or compressed; `-` for standard input)
    /// with all its names and digests, and returns when CRI shows them.
    ///
    /// # Errors
    /// The archive is invalid or containerd rejects it; images before the failed one stay.
    pub async fn import(&self, path: &Path) -> Result<Vec<ImportedImage>, ContainerdError> {
        let owned = path.to_path_buf();
        let read = move || -> Result<_, ContainerdError> {
            let archive = Archive::open(&owned)?;
            let images = archive.images()?;
            Ok((archive, images))
        };
        let read = FILES.run(read).await;
        let (archive, images) =
            read.map_err(|e| failed(path)(CriError::new("Import", Code::Internal, e.to_string())))??;
        let mut imported = Vec::new();
        for image in &images {
            imported.extend(self.send(&archive, image).await.map_err(failed(path))?);
        }
        Ok(imported)
    }

    /// Reports whether CRI has an image with this name.
    ///
    /// # Errors
    /// containerd does not answer.
    pub async fn has(&self, name: &str) -> CriResult<bool> {
        let spec = ImageSpec { image: name.to_owned(), ..Default::default() };
        Ok(self.cri.image_status(spec).await?.is_some())
    }

    async fn send(&self, archive: &Archive, image: &ArchivedImage) -> CriResult<Vec<ImportedImage>> {
        // The lease keeps the blobs until the record refers to them.
        let lease = self.create_lease().await?;
        let sent = self.send_leased(archive, image, &lease).await;
        let gone: CriResult<Empty> = self
            .call("/containerd.services.leases.v1.Leases/Delete", DeleteLease { id: lease.clone(), sync: false }, None)
            .await;
        if let Err(e) = gone {
            tracing::warn!(lease, error = %e, "deleting the import lease failed; it expires in 24h");
        }
        sent
    }

    async fn send_leased(
        &self,
        archive: &Archive,
        image: &ArchivedImage,
        lease: &str,
    ) -> CriResult<Vec<ImportedImage>> {
        for blob in &image.children {
            self.upload(archive, blob, BTreeMap::new(), lease).await?;
        }
        let labels = gc_labels(image);
        self.upload(archive, &image.manifest, labels.clone(), lease).await?;
        // A manifest that existed before may not have its labels.
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let info = Info { digest: image.manifest.digest.clone(), labels };
        let update = UpdateContent { info: Some(info), update_mask: Some(FieldMask { paths }) };
        let _: Empty = self.call("/containerd.services.content.v1.Content/Update", update, Some(lease)).await?;
        let mut imported = Vec::new();
        for name in &image.names {
            self.record(name, image, lease).await?;
            imported.push(ImportedImage { name: name.clone(), digest: image.manifest.digest.clone() });
        }
        // Pods that pin a digest request the image by it.
        for name in &image.by_digest {
            self.record(name, image, lease).await?;
        }
        for name in &image.names {
            self.wait_for_cri(name, image).await?;
        }
        Ok(imported)
    }

    async fn record(&self, name: &str, image: &ArchivedImage, lease: &str) -> CriResult<()> {
        let target = TargetDescriptor {
            media_type: image.manifest.media_type.clone(),
            digest: image.manifest.digest.clone(),
            size: image.manifest.size as i64,
        };
        let record = ImageRecord { name: name.to_owned(), target: Some(target) };
        let create = CreateImage { image: Some(record.clone()) };
        let made: CriResult<Empty> =
            self.call("/containerd.services.images.v1.Images/Create", create, Some(lease)).await;
        match made {
            Err(e) if e.code == Code::AlreadyExists => {
                let update_mask = Some(FieldMask { paths: vec!["target".to_owned()] });
                let update = UpdateImage { image: Some(record), update_mask };
                let _: Empty = self.call("/containerd.services.images.v1.Images/Update", update, Some(lease)).await?;
                Ok(())
            }
            made => made.map(drop),
        }
    }

    /// Waits until CRI shows the image, which it learns by an event; until then a pod would not find it.
    async fn wait_for_cri(&self, name: &str, image: &ArchivedImage) -> CriResult<()> {
        let config = image.children.first().map(|c| c.digest.as_str()).unwrap_or_default();
        let noticed = async {
            loop {
                let spec = ImageSpec { image: name.to_owned(), ..Default::default() };
                match self.cri.image_status(spec).await? {
                    // CRI's image ID is the configuration's digest: an older image with the name does not count.
                    Some(found) if found.id == config => return Ok(()),
                    _ => tokio::time::sleep(NOTICE_INTERVAL).await,
                }
            }
        };
        match tokio::time::timeout(NOTICE_TIMEOUT, noticed).await {
            Ok(done) => done,
            Err(_) => {
                let message = format!("image {name} was imported, but CRI does not list it");
                Err(CriError::new("Import", Code::DeadlineExceeded, message))
            }
        }
    }

    async fn create_lease(&self) -> CriResult<String> {
        let end = SystemTime::now() + Duration::from_secs(LEASE_SECONDS);
        let request = CreateLease {
            id: unique("kelson-import"),
            labels: BTreeMap::from([("containerd.io/gc.expire".to_owned(), rfc3339(end))]),
        };
        let made: LeaseAnswer = self.call("/containerd.services.leases.v1.Leases/Create", request, None).await?;
        Ok(made.lease.unwrap_or_default().id)
    }

    async fn upload(
        &self,
        archive: &Archive,
        blob: &Blob,
        labels: BTreeMap<String, String>,
        lease: &str,
    ) -> CriResult<()> {
        const CALL: &str = "Content/Write";
        let reader: Box<dyn Read + Send> = match &blob.content {
            BlobContent::Memory(bytes) => Box::new(std::io::Cursor::new(bytes.clone())),
            BlobContent::File(offset) => {
                let local = |e: std::io::Error| CriError::new(CALL, Code::Internal, e.to_string());
                let mut file = archive.reader().map_err(local)?;
                file.seek(SeekFrom::Start(*offset)).map_err(local)?;
                Box::new(file.take(blob.size))
            }
        };
        let (sender, receiver) = tokio::sync::mpsc::channel(CHUNKS_QUEUED_MAX);
        let upload =
            Upload { reference: unique("kelson"), digest: blob.digest.clone(), size: blob.size as i64, labels };
        let reference = upload.reference.clone();
        // Ends with the blob, or when the call drops the receiver.
        let feeder = scoped("image-upload", UPLOADS.run(move || upload.feed(reader, &sender)));
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|e| transport_error(CALL, &e))?;
        let path = PathAndQuery::from_static("/containerd.services.content.v1.Content/Write");
        let codec = ProstCodec::<WriteContent, WriteAnswer>::default();
        let request = in_namespace(Request::new(ReceiverStream::new(receiver)), Some(lease))?;
        let outcome = async {
            let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok::<_, tonic::Status>(())
        };
        let outcome = outcome.await;
        let fed = feeder.await;
        match outcome {
            // The blob exists already, perhaps as another image's layer.
            Err(status) if status.code() == Code::AlreadyExists => return Ok(()),
            Err(status) => {
                let abort = AbortContent { reference };
                let _: CriResult<Empty> =
                    self.call("/containerd.services.content.v1.Content/Abort", abort, Some(lease)).await;
                return Err(CriError::from_status(CALL, &status));
            }
            Ok(()) => {}
        }
        match fed {
            Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(CriError::new(CALL, Code::Internal, format!("read {}: {e}", blob.digest))),
            Some(Err(e)) => Err(CriError::new(CALL, Code::Internal, e.to_string())),
            None => Err(CriError::new(CALL, Code::Internal, "reading the upload panicked")),
        }
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q, lease: Option<&str>) -> CriResult<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let request = in_namespace(Request::new(request), lease)?;
        unary(&self.channel, path, path, Some(CALL_TIMEOUT), request).await
    }
}

/// One blob on its way.
struct Upload {
    reference: String,
    digest: String,
    size: i64,
    labels: BTreeMap<String, String>,
}

impl Upload {
    fn feed(self, mut reader: impl Read, to: &tokio::sync::mpsc::Sender<WriteContent>) -> std::io::Result<()> {
        let mut offset = 0;
        loop {
            let mut data = Vec::with_capacity(CHUNK_BYTES);
            let got = reader.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut data)?;
            let more = got > 0;
            let message = WriteContent {
                action: if more { WriteAction::Write } else { WriteAction::Commit } as i32,
                reference: self.reference.clone(),
                total: self.size,
                expected: self.digest.clone(),
                offset,
                data,
                labels: if more { BTreeMap::new() } else { self.labels.clone() },
            };
            offset += got as i64;
            // The receiver reports the error when it is gone.
            if to.blocking_send(message).is_err() || !more {
                return Ok(());
            }
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(CriError) -> ContainerdError {
    ContainerdError::call(format!("import {}", path.display()))
}

/// Returns a name that no other import has, of this process or an earlier one.
fn unique(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{prefix}-{}-{now}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Formats a time as UTC to the second, with Howard Hinnant's days-to-civil algorithm: no calendar library for one
/// label.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_calendar_times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_274_578, "2026-11-21T15:22:58Z"),
        ] {
            assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_blob_goes_in_order_and_ends_with_a_commit() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(8);
        let upload = Upload {
            reference: "r".into(),
            digest: "sha256:0".into(),
            size: CHUNK_BYTES as i64 + 1,
            labels: BTreeMap::from([("k".into(), "v".into())]),
        };
        let bytes = vec![1_u8; CHUNK_BYTES + 1];
        upload.feed(bytes.as_slice(), &sender).unwrap();
        let mut got = Vec::new();
        while let Ok(message) = receiver.try_recv() {
            got.push((message.action, message.offset, message.data.len(), message.labels.len()));
        }
        let chunk = CHUNK_BYTES as i64;
        assert_eq!(got, [(1, 0, CHUNK_BYTES, 0), (1, chunk, 1, 0), (2, chunk + 1, 0, 1)]);
    }
}
