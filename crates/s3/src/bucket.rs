//! The files of a bucket.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, header};
use http_body_util::BodyExt as _;
use kelson_client::Transport;
use kelson_client::kubeconfig::{Config, Proxy};
use kelson_client::remote::{Plain, Remote};
use kelson_platform::files::private;
use kelson_tasks::FILES;
use percent_encoding::percent_decode_str;
use rusty_s3::actions::{CreateMultipartUpload, ListObjectsV2};
use rusty_s3::{Bucket, S3Action, UrlStyle};
use url::Url;

use crate::credentials::S3Keys;
use crate::error::{S3Error, file_at};
use crate::request::{fault, read, send};

/// How long a signature is valid. The clocks of both sides may differ by as much.
const SIGNED_FOR: Duration = Duration::from_secs(900);
/// The size of the parts of a larger file in bytes. One part is in memory at a time.
const PART_BYTES: u64 = 16 << 20;
/// The largest number of parts of a file (S3's limit).
const PARTS_MAX: u64 = 10_000;
/// The size in bytes of the pieces in which a file is written to the disk.
const PIECE_BYTES: usize = 1 << 20;
/// How long a server may be silent while it sends a file.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The largest number of pages of a list, each with up to a thousand files.
const PAGES_MAX: usize = 100;
/// The domain of Amazon's servers, where each bucket has a host name.
const AMAZON: &str = "amazonaws.com";

/// How a bucket is named in a URL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// The host name contains the bucket at Amazon, and the path contains it elsewhere.
    #[default]
    Auto,
    /// The host name contains the bucket: `https://BUCKET.ENDPOINT/FILE`.
    Dns,
    /// The path contains the bucket: `https://ENDPOINT/BUCKET/FILE`.
    Path,
}

/// A bucket and where it is.
#[derive(Clone, Debug, Default)]
pub struct BucketOptions {
    /// Host name, or URL with `http://` or `https://`; empty for Amazon's server of the region.
    pub endpoint: String,
    /// The PEM of the CA of the server; empty for the system's CAs.
    pub endpoint_ca: Vec<u8>,
    /// The name of the bucket.
    pub bucket: String,
    /// The folder in the bucket; empty for none.
    pub folder: String,
    /// The region of the bucket.
    pub region: String,
    /// How the bucket is named in a URL.
    pub lookup: Lookup,
}

/// A file in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The files in one folder of a bucket.
#[derive(Clone)]
pub struct S3Bucket {
    bucket: Arc<Bucket>,
    keys: S3Keys,
    /// The folder with a slash at its end, or nothing.
    prefix: String,
    transport: Arc<dyn Transport>,
}

impl S3Bucket {
    /// Creates a client of a bucket. Nothing is sent yet.
    ///
    /// # Errors
    /// An option is not valid.
    pub fn new(options: &BucketOptions, keys: S3Keys) -> Result<Self, S3Error> {
        let bucket = bucket(options)?;
        let url = bucket.base_url();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let authority = format!("{}{port}", url.host_str().unwrap_or_default());
        let invalid = |error: &dyn std::fmt::Display| S3Error::Options(format!("the endpoint {authority}: {error}"));
        let transport: Arc<dyn Transport> = match url.scheme() {
            "http" => Arc::new(Plain::new(authority.parse().map_err(|e: http::uri::InvalidUri| invalid(&e))?)),
            _ => {
                let server = format!("https://{authority}");
                let ca_pem = options.endpoint_ca.clone();
                let config = Config { server, ca_pem, proxy: Proxy::Environment, ..Config::default() };
                Arc::new(Remote::new(config).map_err(|e| invalid(&e))?)
            }
        };
        Self::over(options, keys, transport)
    }

    /// Creates a client of a bucket whose requests take this transport.
    ///
    /// # Errors
    /// An option is not valid.
    pub fn over(options: &BucketOptions, keys: S3Keys, transport: Arc<dyn Transport>) -> Result<Self, S3Error> {
        let bucket = Arc::new(bucket(options)?);
        let folder = options.folder.trim_matches('/');
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        Ok(Self { bucket, keys, prefix, transport })
    }

    /// Returns the URL of the bucket, which has no secret.
    #[must_use]
    pub fn base(&self) -> &str {
        self.bucket.base_url().as_str()
    }

    /// Stores a file under a name. A file of that name is replaced when all of it has arrived.
    ///
    /// # Errors
    /// See [`S3Error`].
    pub async fn put(&self, name: &str, file: &Path) -> Result<(), S3Error> {
        let path = file.to_path_buf();
        let size = FILES.run(move || std::fs::metadata(path)).await?.map_err(file_at(file))?.len();
        if size > PART_BYTES * PARTS_MAX {
            return Err(S3Error::TooMuch(format!("{PARTS_MAX} parts of {PART_BYTES} bytes")));
        }
        let key = self.key(name);
        if size > PART_BYTES {
            return self.put_parts(&key, file, size).await;
        }
        let body = part(file, 0).await?;
        let keys = Some(&self.keys.0);
        let sign = || self.bucket.put_object(keys, &key).sign(SIGNED_FOR);
        read(send(&*self.transport, &Method::PUT, &body, sign).await?).await.map(drop)
    }

    /// Stores a file in several requests. If one fails, the parts are deleted.
    async fn put_parts(&self, key: &str, file: &Path, size: u64) -> Result<(), S3Error> {
        let keys = Some(&self.keys.0);
        let none = Bytes::new();
        let sign = || self.bucket.create_multipart_upload(keys, key).sign(SIGNED_FOR);
        let begun = read(send(&*self.transport, &Method::POST, &none, sign).await?).await?;
        let begun = CreateMultipartUpload::parse_response(&begun).map_err(|e| S3Error::Answer(e.to_string()))?;
        let upload = begun.upload_id();
        let stored = self.complete_parts(key, upload, file, size).await;
        if stored.is_err() {
            let sign = || self.bucket.abort_multipart_upload(keys, key, upload).sign(SIGNED_FOR);
            if let Err(error) = send(&*self.transport, &Method::DELETE, &none, sign).await {
                tracing::warn!(%error, "parts of a file remain in the S3 bucket; a lifecycle rule can delete them");
            }
        }
        stored
    }

    async fn complete_parts(&self, key: &str, upload: &str, file: &Path, size: u64) -> Result<(), S3Error> {
        let keys = Some(&self.keys.0);
        let mut tags: Vec<String> = Vec::new();
        for (number, offset) in (1..=u16::MAX).zip((0..size).step_by(usize::try_from(PART_BYTES).unwrap_or(usize::MAX)))
        {
            let body = part(file, offset).await?;
            let sign = || self.bucket.upload_part(keys, key, number, upload).sign(SIGNED_FOR);
            let answer = send(&*self.transport, &Method::PUT, &body, sign).await?;
            let tag = answer.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
            tags.push(tag.ok_or_else(|| S3Error::Answer("a part has no ETag".to_owned()))?);
            read(answer).await?;
        }
        let action = || self.bucket.complete_multipart_upload(keys, key, upload, tags.iter().map(String::as_str));
        let body = Bytes::from(action().body());
        let answer = send(&*self.transport, &Method::POST, &body, || action().sign(SIGNED_FOR)).await?;
        // The server answers 200 before it knows the result.
        let text = read(answer).await?;
        let text = String::from_utf8_lossy(&text);
        if text.contains("<Error>") { Err(fault(StatusCode::OK, &text)) } else { Ok(()) }
    }

    /// Writes a stored file to a new file of this machine, and returns its size in bytes.
    ///
    /// # Errors
    /// See [`S3Error`]; the file has more than `bytes_max` bytes. Then the new file is not complete.
    pub async fn get(&self, name: &str, to: &Path, bytes_max: u64) -> Result<u64, S3Error> {
        let key = self.key(name);
        let sign = || self.bucket.get_object(Some(&self.keys.0), &key).sign(SIGNED_FOR);
        let answer = send(&*self.transport, &Method::GET, &Bytes::new(), sign).await?;
        let path = to.to_path_buf();
        let open = move || private(OpenOptions::new().write(true).create_new(true)).open(path);
        let mut file = FILES.run(open).await?.map_err(file_at(to))?;
        let (mut body, mut piece, mut total) = (answer.into_body(), BytesMut::new(), 0);
        loop {
            let frame = tokio::time::timeout(SILENCE_MAX, body.frame()).await;
            let frame = frame.map_err(|_| S3Error::Unreachable(format!("silent for {} s", SILENCE_MAX.as_secs())))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| S3Error::Unreachable(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            total += data.len() as u64;
            if total > bytes_max {
                return Err(S3Error::TooMuch(format!("{bytes_max} bytes")));
            }
            piece.extend_from_slice(&data);
            if piece.len() >= PIECE_BYTES {
                file = append(file, piece.split().freeze(), to.to_path_buf()).await?;
            }
        }
        let file = append(file, piece.freeze(), to.to_path_buf()).await?;
        FILES.run(move || file.sync_all()).await?.map_err(file_at(to))?;
        Ok(total)
    }

    /// Returns the files of the folder, without those of folders in it, in the order of their names.
    ///
    /// # Errors
    /// See [`S3Error`].
    pub async fn list(&self) -> Result<Vec<StoredFile>, S3Error> {
        let mut files = Vec::new();
        let mut next = None;
        for _ in 0..PAGES_MAX {
            let sign = || {
                let mut action = self.bucket.list_objects_v2(Some(&self.keys.0));
                action.with_prefix(self.prefix.as_str());
                action.with_delimiter("/");
                if let Some(token) = &next {
                    action.with_continuation_token(String::clone(token));
                }
                action.sign(SIGNED_FOR)
            };
            let page = read(send(&*self.transport, &Method::GET, &Bytes::new(), sign).await?).await?;
            let page = ListObjectsV2::parse_response(&page).map_err(|e| S3Error::Answer(e.to_string()))?;
            for object in page.contents {
                let key = percent_decode_str(&object.key).decode_utf8_lossy().into_owned();
                match key.strip_prefix(&self.prefix).filter(|name| !name.is_empty()) {
                    Some(name) => files.push(StoredFile { name: name.to_owned(), bytes: object.size }),
                    None => tracing::debug!("the S3 server listed a file outside of the folder"),
                }
            }
            next = page.next_continuation_token.filter(|token| !token.is_empty());
            if next.is_none() {
                files.sort_by(|a, b| a.name.cmp(&b.name));
                return Ok(files);
            }
        }
        Err(S3Error::TooMuch(format!("{PAGES_MAX} pages of files; use a folder for snapshots only")))
    }

    /// Deletes a file. It is no error if there is none.
    ///
    /// # Errors
    /// See [`S3Error`].
    pub async fn delete(&self, name: &str) -> Result<(), S3Error> {
        let key = self.key(name);
        let sign = || self.bucket.delete_object(Some(&self.keys.0), &key).sign(SIGNED_FOR);
        read(send(&*self.transport, &Method::DELETE, &Bytes::new(), sign).await?).await.map(drop)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

fn bucket(options: &BucketOptions) -> Result<Bucket, S3Error> {
    let invalid = |why: String| S3Error::Options(why);
    if options.bucket.is_empty() || options.region.is_empty() {
        return Err(invalid("the name of the bucket and the region must not be empty".to_owned()));
    }
    let endpoint = match options.endpoint.as_str() {
        "" => format!("https://s3.{}.{AMAZON}", options.region),
        url if url.contains("://") => url.to_owned(),
        host => format!("https://{host}"),
    };
    let url = Url::parse(&endpoint).map_err(|e| invalid(format!("the endpoint {endpoint:?} is not a URL: {e}")))?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.path() == "/";
    if !is_plain {
        return Err(invalid("the endpoint must be a host name or a URL without path and user".to_owned()));
    }
    let at_amazon = url.host_str().is_some_and(|host| host.ends_with(&format!(".{AMAZON}")));
    let style = match options.lookup {
        Lookup::Dns => UrlStyle::VirtualHost,
        Lookup::Auto if at_amazon => UrlStyle::VirtualHost,
        Lookup::Auto | Lookup::Path => UrlStyle::Path,
    };
    let made = Bucket::new(url, style, options.bucket.clone(), options.region.clone());
    made.map_err(|error| invalid(format!("the endpoint {endpoint:?}: {error}")))
}

/// Reads the part of a file that begins at an offset.
async fn part(file: &Path, offset: u64) -> Result<Bytes, S3Error> {
    let path = file.to_path_buf();
    let read = FILES.run(move || -> std::io::Result<Vec<u8>> {
        let mut from = File::open(path)?;
        from.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        from.take(PART_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    read.await?.map(Bytes::from).map_err(file_at(file))
}

async fn append(mut file: File, piece: Bytes, path: PathBuf) -> Result<File, S3Error> {
    let written = FILES.run(move || file.write_all(&piece).map(|()| file)).await?;
    written.map_err(file_at(path))
}
