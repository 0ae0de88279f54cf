//! Flags of a bucket of S3 for snapshots, of `kelson server` and `kelson snapshot`.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args};
use kelson_s3::{BucketOptions, Lookup, S3Bucket, S3Keys};

/// A bucket of S3 or of a compatible server. The keys are in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for temporary
/// ones, AWS_SESSION_TOKEN, or in --s3-credentials-file.
#[derive(Args, Debug, Clone)]
pub struct S3Args {
    /// Store snapshots in the bucket of --s3-bucket.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", action = ArgAction::Set)]
    pub s3: bool,
    /// Host name or URL of the S3 server [default: s3.REGION.amazonaws.com]
    #[arg(long, value_name = "HOST|URL", requires = "s3")]
    pub s3_endpoint: Option<String>,
    /// CA bundle for the certificate of the S3 server [default: the system's CAs]
    #[arg(long, value_name = "FILE", requires = "s3")]
    pub s3_endpoint_ca: Option<PathBuf>,
    /// Name of the S3 bucket.
    #[arg(long, value_name = "NAME", requires = "s3")]
    pub s3_bucket: Option<String>,
    /// How the bucket is named in requests: `dns` (in the host name), `path`, or `auto` (`dns` at Amazon, else `path`).
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = ["auto", "dns", "path"])]
    pub s3_bucket_lookup: String,
    /// Folder in the S3 bucket. Use one for snapshots of one cluster only.
    #[arg(long, value_name = "PATH", requires = "s3")]
    pub s3_folder: Option<String>,
    /// Region of the S3 bucket.
    #[arg(long, value_name = "NAME", default_value = "us-east-1")]
    pub s3_region: String,
    /// File with the S3 keys, in the format of ~/.aws/credentials (profile `default`) [default: the variables
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY]
    #[arg(long, value_name = "FILE", requires = "s3")]
    pub s3_credentials_file: Option<PathBuf>,
}

impl S3Args {
    /// Returns the bucket with --s3.
    ///
    /// # Errors
    /// The bucket has no name, a file cannot be read, or there are no keys.
    pub fn bucket(&self) -> anyhow::Result<Option<S3Bucket>> {
        self.bucket_by(|name| std::env::var(name).ok())
    }

    fn bucket_by(&self, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<S3Bucket>> {
        if !self.s3 {
            return Ok(None);
        }
        let Some(bucket) = self.s3_bucket.clone() else { bail!("--s3 needs --s3-bucket") };
        let keys = match &self.s3_credentials_file {
            Some(file) => {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("--s3-credentials-file {}", file.display()))?;
                S3Keys::from_file(&text).with_context(|| format!("--s3-credentials-file {}", file.display()))?
            }
            None => S3Keys::from_variables(variable).context("--s3 without --s3-credentials-file")?,
        };
        let ca = self
            .s3_endpoint_ca
            .as_ref()
            .map(|file| std::fs::read(file).with_context(|| format!("--s3-endpoint-ca {}", file.display())));
        let options = BucketOptions {
            endpoint: self.s3_endpoint.clone().unwrap_or_default(),
            endpoint_ca: ca.transpose()?.unwrap_or_default(),
            bucket,
            folder: self.s3_folder.clone().unwrap_or_default(),
            region: self.s3_region.clone(),
            lookup: match self.s3_bucket_lookup.as_str() {
                "dns" => Lookup::Dns,
                "path" => Lookup::Path,
                _ => Lookup::Auto,
            },
        };
        Ok(Some(S3Bucket::new(&options, keys).context("--s3")?))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        s3: S3Args,
        dir: Option<String>,
    }

    #[test]
    fn a_bucket_needs_a_name_and_keys() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        std::fs::write(&file, "aws_access_key_id = ID\naws_secret_access_key = hush\n").unwrap();
        let base = |words: &str, set: bool| {
            let line = Line::try_parse_from(["kelson"].into_iter().chain(words.split_whitespace()));
            let line = line.map_err(|error| error.to_string())?;
            let variable = |name: &str| set.then(|| name.to_owned());
            let bucket = line.s3.bucket_by(variable).map_err(|error| format!("{error:#}"))?;
            Ok::<_, String>(bucket.map(|bucket| bucket.base().to_owned()))
        };
        assert_eq!(base("", true), Ok(None));
        assert_eq!(base("--s3=false", true), Ok(None));
        let amazon = "https://b.s3.us-east-1.amazonaws.com/";
        assert_eq!(base("--s3 --s3-bucket b /backup", true), Ok(Some(amazon.to_owned())));
        let minio = "--s3 --s3-bucket b --s3-endpoint minio:9000 --s3-credentials-file";
        assert_eq!(base(&format!("{minio} {}", file.display()), false), Ok(Some("https://minio:9000/b/".to_owned())));
        for (words, set, why) in [
            ("--s3", true, "--s3 needs --s3-bucket"),
            ("--s3 --s3-bucket b", false, "AWS_ACCESS_KEY_ID"),
            ("--s3-bucket b", true, "--s3"),
            ("--s3 --s3-bucket b --s3-credentials-file /nonexistent", true, "--s3-credentials-file /nonexistent"),
            ("--s3 --s3-bucket b --s3-endpoint ftp://x", true, "--s3"),
        ] {
            let error = base(words, set).unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
        assert_eq!(Line::parse_from(["kelson", "--s3", "/backup"]).dir.as_deref(), Some("/backup"));
    }
}
