//! The keys with which requests are signed. They come from a file or from variables, never from a command line, which
//! other users of the machine can read.

use rusty_s3::Credentials;

use crate::error::S3Error;

/// The profile of a credentials file that is used.
const PROFILE: &str = "default";

/// An access key with its secret. The secret is never printed, and erased from memory when dropped.
#[derive(Clone, Debug)]
pub struct S3Keys(pub(crate) Credentials);

impl S3Keys {
    /// Reads the variables of Amazon's programs: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    ///
    /// # Errors
    /// One of the first two is missing.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, S3Error> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        match (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
            (Some(key), Some(secret)) => Ok(Self::new(key, secret, get("AWS_SESSION_TOKEN"))),
            _ => Err(S3Error::Options("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set".to_owned())),
        }
    }

    /// Reads a credentials file of Amazon's programs: `aws_access_key_id`, `aws_secret_access_key` and
    /// `aws_session_token` of the profile `default`, or without a profile.
    ///
    /// # Errors
    /// One of the first two is missing.
    pub fn from_file(text: &str) -> Result<Self, S3Error> {
        let mut profile = PROFILE;
        let [mut key, mut secret, mut token] = [None, None, None];
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                profile = name.trim();
                continue;
            }
            let Some((name, value)) = line.split_once('=').filter(|_| profile == PROFILE) else { continue };
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match name.trim() {
                "aws_access_key_id" => key = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
        match (key, secret) {
            (Some(key), Some(secret)) => Ok(Self::new(key, secret, token)),
            _ => Err(S3Error::Options(
                "must have the lines aws_access_key_id = ID and aws_secret_access_key = KEY".to_owned(),
            )),
        }
    }

    fn new(key: String, secret: String, token: Option<String>) -> Self {
        Self(match token {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(keys: Result<S3Keys, S3Error>) -> Option<(String, String, Option<String>)> {
        let S3Keys(keys) = keys.ok()?;
        Some((keys.key().to_owned(), keys.secret().to_owned(), keys.token().map(str::to_owned)))
    }

    #[test]
    fn keys_come_from_a_file_or_from_variables() {
        let keys = |token: Option<&str>| Some(("ID".to_owned(), "KEY=".to_owned(), token.map(str::to_owned)));
        let file = |text: &str| shown(S3Keys::from_file(text));
        assert_eq!(file("aws_access_key_id=ID\naws_secret_access_key = KEY=\n"), keys(None));
        let profiles = "# mine\n[other]\naws_access_key_id = X\naws_secret_access_key = X\n[default]\r\n\
                        aws_access_key_id = ID\r\naws_secret_access_key = KEY=\r\naws_session_token = T\r\nregion = x\n";
        assert_eq!(file(profiles), keys(Some("T")));
        for missing in
            ["", "ID KEY", "[other]\naws_access_key_id=ID\naws_secret_access_key=KEY", "aws_access_key_id=ID"]
        {
            assert_eq!(file(missing), None, "{missing:?}");
        }
        let variables = |set: &'static [(&'static str, &'static str)]| {
            let find = move |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            shown(S3Keys::from_variables(find))
        };
        assert_eq!(variables(&[("AWS_ACCESS_KEY_ID", "ID"), ("AWS_SECRET_ACCESS_KEY", "KEY=")]), keys(None));
        assert_eq!(variables(&[("AWS_ACCESS_KEY_ID", "ID"), ("AWS_SECRET_ACCESS_KEY", "")]), None);
    }

    #[test]
    fn a_secret_is_not_printed() {
        let keys = S3Keys::from_file("aws_access_key_id=ID\naws_secret_access_key=hush").unwrap();
        assert!(!format!("{keys:?}").contains("hush"));
    }
}
