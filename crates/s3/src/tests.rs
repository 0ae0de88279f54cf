//! A bucket against a server in memory, which records what it is asked, and Amazon's published example of a signature.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use kelson_client::{BoxFuture, Request, Response, Transport, TransportError, full_body};
use parking_lot::Mutex;
use rusty_s3::{Bucket, Credentials, S3Action as _, UrlStyle};

use crate::{BucketOptions, Lookup, S3Bucket, S3Error, S3Keys, StoredFile};

/// The size of the parts of a file in bytes.
const PART: usize = 16 << 20;

/// Answers with what was prepared, in order, and records method, target without signature, and size of the body.
#[derive(Default)]
struct Server {
    answers: Mutex<VecDeque<(u16, String, Option<&'static str>)>>,
    seen: Mutex<Vec<(String, usize)>>,
}

impl Server {
    fn prepare(self: Arc<Self>, answers: &[(u16, &str)]) -> Arc<Self> {
        let mut queue = self.answers.lock();
        queue.extend(answers.iter().map(|(status, body)| (*status, (*body).to_owned(), Some("\"tag\""))));
        drop(queue);
        self
    }

    fn bucket(self: &Arc<Self>, options: &BucketOptions) -> S3Bucket {
        let keys = S3Keys::from_file("aws_access_key_id=ID\naws_secret_access_key=hush").unwrap();
        S3Bucket::over(options, keys, self.clone()).unwrap()
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().iter().map(|(line, size)| format!("{line} {size}")).collect()
    }
}

impl Transport for Server {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let query = request.uri().query().unwrap_or_default();
        assert!(query.contains("X-Amz-Algorithm=AWS4-HMAC-SHA256") && query.contains("X-Amz-Expires=900"), "{query}");
        assert!(query.contains("X-Amz-Signature=") && query.contains("%2Fs3%2Faws4_request"), "{query}");
        let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("X-Amz-")).collect();
        let line = format!("{} {} {}", request.method(), request.uri().path(), rest.join("&"));
        let sends = ["PUT", "POST"].contains(&request.method().as_str());
        let length = request.headers().get(header::CONTENT_LENGTH).map(|length| length.to_str().unwrap().to_owned());
        assert_eq!(length, sends.then(|| request.body().len().to_string()), "{line}");
        self.seen.lock().push((line, request.body().len()));
        let answer = self.answers.lock().pop_front();
        Box::pin(async move {
            let Some((status, body, tag)) = answer else { return Err(TransportError("connection refused".into())) };
            let response = http::Response::builder().status(status).header(header::ETAG, tag.unwrap_or_default());
            response.body(full_body(Bytes::from(body))).map_err(TransportError::new)
        })
    }
}

fn options() -> BucketOptions {
    BucketOptions {
        endpoint: "http://127.0.0.1:9000".to_owned(),
        bucket: "backups".to_owned(),
        folder: "/a/b/".to_owned(),
        region: "us-east-1".to_owned(),
        ..BucketOptions::default()
    }
}

/// Amazon's documentation, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)".
#[test]
fn amazons_example_has_amazons_signature() {
    let keys = Credentials::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
    let endpoint = "https://s3.amazonaws.com".parse().unwrap();
    let bucket = Bucket::new(endpoint, UrlStyle::VirtualHost, "examplebucket", "us-east-1").unwrap();
    let at = "2013-05-24T00:00:00Z".parse().unwrap();
    let url = bucket.get_object(Some(&keys), "test.txt").sign_with_time(Duration::from_secs(86_400), &at);
    assert_eq!(url.host_str(), Some("examplebucket.s3.amazonaws.com"));
    let signature = url.query_pairs().find(|(name, _)| name == "X-Amz-Signature").unwrap().1.into_owned();
    assert_eq!(signature, "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
}

#[tokio::test(start_paused = true)]
async fn a_file_is_stored_listed_read_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::write(&from, "bundle").unwrap();
    let first = "<ListBucketResult><Contents><ETag>x</ETag><Key>a/b/z%20z</Key><LastModified/><Size>7</Size></Contents>\
                 <NextContinuationToken>t=1</NextContinuationToken></ListBucketResult>";
    let second = "<ListBucketResult><Contents><ETag>x</ETag><Key>a/b/</Key><LastModified/><Size>0</Size></Contents>\
                  <Contents><ETag>x</ETag><Key>a/b/c</Key><LastModified/><Size>6</Size></Contents></ListBucketResult>";
    let server = Arc::new(Server::default()).prepare(&[
        (503, "<Error><Code>SlowDown</Code></Error>"),
        (200, ""),
        (200, first),
        (200, second),
        (200, "bundle"),
        (200, "bundle"),
        (204, ""),
    ]);
    let bucket = server.bucket(&options());
    bucket.put("c", &from).await.unwrap();
    let file = |name: &str, bytes| StoredFile { name: name.to_owned(), bytes };
    assert_eq!(bucket.list().await.unwrap(), [file("c", 6), file("z z", 7)]);
    assert_eq!(bucket.get("c", &to, 6).await.unwrap(), 6);
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "bundle");
    assert!(matches!(bucket.get("c", &dir.path().join("more"), 5).await, Err(S3Error::TooMuch(_))));
    bucket.delete("c").await.unwrap();
    assert_eq!(
        server.seen(),
        [
            "PUT /backups/a/b/c  6",
            "PUT /backups/a/b/c  6",
            "GET /backups/ delimiter=%2F&encoding-type=url&list-type=2&prefix=a%2Fb%2F 0",
            "GET /backups/ continuation-token=t%3D1&delimiter=%2F&encoding-type=url&list-type=2&prefix=a%2Fb%2F 0",
            "GET /backups/a/b/c  0",
            "GET /backups/a/b/c  0",
            "DELETE /backups/a/b/c  0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_large_file_is_stored_in_parts() {
    const UPLOAD: &str = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(PART as u64 + 5).unwrap();
    let server = Arc::new(Server::default()).prepare(&[(200, UPLOAD), (200, ""), (200, ""), (200, "<Ok/>")]);
    server.bucket(&options()).put("c", &large).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0], "POST /backups/a/b/c uploads=1 0");
    assert_eq!(seen[1], format!("PUT /backups/a/b/c partNumber=1&uploadId=u {PART}"));
    assert_eq!(seen[2], "PUT /backups/a/b/c partNumber=2&uploadId=u 5");
    assert!(seen[3].starts_with("POST /backups/a/b/c uploadId=u "), "{seen:?}");
    // The result of the last request is in its answer, and a failed upload leaves no parts.
    let failed = "<Error><Code>InternalError</Code><Message>try again</Message></Error>";
    let server = Arc::new(Server::default()).prepare(&[(200, UPLOAD), (200, ""), (200, ""), (200, failed), (204, "")]);
    let error = server.bucket(&options()).put("c", &large).await.unwrap_err();
    assert_eq!(error.to_string(), "the server answered 200 InternalError: try again");
    assert_eq!(server.seen().last().unwrap(), "DELETE /backups/a/b/c uploadId=u 0");
}

#[tokio::test(start_paused = true)]
async fn errors_say_what_the_server_said_and_nothing_secret() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let denied = "<Error><Code>SignatureDoesNotMatch</Code><Message>the signature is wrong</Message>\
                  <StringToSign>hush</StringToSign></Error>";
    let check = async |answers: &[(u16, &str)], want: &str, attempts: usize| {
        let server = Arc::new(Server::default()).prepare(answers);
        let error = server.bucket(&options()).put("c", &file).await.unwrap_err().to_string();
        assert_eq!((error.as_str(), server.seen().len()), (want, attempts));
        assert!(!error.contains("hush") && !error.contains("X-Amz"), "{error}");
    };
    check(&[(403, denied)], "the server answered 403 SignatureDoesNotMatch: the signature is wrong", 1).await;
    check(&[(404, "no")], "the server answered 404 Not Found", 1).await;
    let moved =
        "the server answered 301 PermanentRedirect: the bucket is in another region; set --s3-region or --s3-endpoint";
    check(&[(301, "<Error><Code>PermanentRedirect</Code></Error>")], moved, 1).await;
    check(&[(500, ""); 9], "the server answered 500 Internal Server Error", 4).await;
    check(&[], "connection refused", 4).await;
    let missing = Arc::new(Server::default()).bucket(&options()).put("c", Path::new("/nonexistent/x")).await;
    assert!(matches!(missing, Err(S3Error::File { .. })));
}

#[test]
fn a_bucket_is_a_host_name_at_amazon_and_a_path_elsewhere() {
    let server = Arc::new(Server::default());
    let keys = S3Keys::from_file("aws_access_key_id=ID\naws_secret_access_key=hush").unwrap();
    let made = |endpoint: &str, lookup| {
        let options = BucketOptions { endpoint: endpoint.to_owned(), lookup, ..options() };
        S3Bucket::over(&options, keys.clone(), server.clone()).map(|bucket| bucket.base().to_owned())
    };
    for (endpoint, lookup, want) in [
        ("", Lookup::Auto, "https://backups.s3.us-east-1.amazonaws.com/"),
        ("s3.eu-west-1.amazonaws.com", Lookup::Path, "https://s3.eu-west-1.amazonaws.com/backups/"),
        ("minio.example.org:9000", Lookup::Auto, "https://minio.example.org:9000/backups/"),
        ("http://minio.example.org", Lookup::Dns, "http://backups.minio.example.org/"),
    ] {
        assert_eq!(made(endpoint, lookup).unwrap(), want, "{endpoint}");
    }
    for invalid in ["ftp://x", "https://user:word@x", "https://x/path", "https://", "a b"] {
        assert!(matches!(made(invalid, Lookup::Auto), Err(S3Error::Options(_))), "{invalid}");
    }
    let nameless = BucketOptions { bucket: String::new(), ..options() };
    assert!(S3Bucket::over(&nameless, keys, server).is_err());
}

/// By hand: `KELSON_S3_ENDPOINT` is a server with the bucket `kelson-test`, the keys are in the variables of Amazon.
#[tokio::test]
#[ignore = "needs a server of S3, which KELSON_S3_ENDPOINT names"]
async fn a_real_server_takes_files_and_returns_them() {
    let endpoint = std::env::var("KELSON_S3_ENDPOINT").expect("KELSON_S3_ENDPOINT");
    let options = BucketOptions { endpoint, bucket: "kelson-test".to_owned(), ..options() };
    let keys = S3Keys::from_variables(|name| std::env::var(name).ok()).unwrap();
    let bucket = S3Bucket::new(&options, keys.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (name, size) in [("small one", 5), ("empty", 0), ("large", 2 * PART + 77)] {
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let bytes: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
        std::fs::write(&from, &bytes).unwrap();
        bucket.put(name, &from).await.unwrap();
        let listed = bucket.list().await.unwrap();
        assert_eq!(listed, [StoredFile { name: name.to_owned(), bytes: size as u64 }]);
        assert_eq!(bucket.get(name, &to, size as u64).await.unwrap(), size as u64);
        assert!(std::fs::read(&to).unwrap() == bytes, "{name}");
        std::fs::remove_file(&to).unwrap();
        bucket.delete(name).await.unwrap();
        assert!(matches!(bucket.get(name, &to, 1).await, Err(S3Error::Rejected { status: 404, .. })), "{name}");
    }
    assert!(bucket.list().await.unwrap().is_empty());
    let absent = BucketOptions { bucket: "kelson-absent".to_owned(), ..options };
    let error = S3Bucket::new(&absent, keys).unwrap().list().await.unwrap_err();
    assert!(matches!(&error, S3Error::Rejected { code, .. } if code == "NoSuchBucket"), "{error}");
}
