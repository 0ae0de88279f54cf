//! `--token-auth-file`: a CSV of `token,user,uid[,"group1,group2"]`. Tokens are stored as digests.
use std::collections::HashMap;
use std::fmt;

use sha2::{Digest, Sha256};

use super::{Authenticated, Rejected, TokenAuthenticator};
use crate::UserInfo;

/// The tokens of a file.
#[derive(Default)]
pub struct TokenFile {
    users: HashMap<[u8; 32], Authenticated>,
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile").field("tokens", &self.users.len()).finish()
    }
}

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFileError {
    /// Fewer than three columns.
    #[error("token file must have at least 3 columns (token, user name, user uid), found {found} in record {record}")]
    Columns {
        /// The number of the record, from 1.
        record: usize,
        /// The number of its columns.
        found: usize,
    },
    /// A quote that does not end, or is not allowed at its position.
    #[error("token file: bad quotes in record {0}")]
    Quotes(usize),
}

impl TokenFile {
    /// Parses the content of the file. A later line with the same token is used; empty tokens are skipped.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut users = HashMap::new();
        for (i, line) in text.lines().filter(|l| !l.trim().is_empty()).enumerate() {
            let fields = split(line).ok_or(TokenFileError::Quotes(i + 1))?;
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                return Err(TokenFileError::Columns { record: i + 1, found: fields.len() });
            };
            if token.is_empty() {
                tracing::warn!(record = i + 1, "empty token in the token file");
                continue;
            }
            let groups = rest.first().map(|g| g.split(',').map(str::to_owned).collect()).unwrap_or_default();
            let user = UserInfo { name: name.clone(), uid: uid.clone(), groups, extra: Default::default() };
            if users.insert(Sha256::digest(token).into(), Authenticated::new(user)).is_some() {
                tracing::warn!(record = i + 1, "duplicate token in the token file");
            }
        }
        Ok(Self { users })
    }
}

/// Splits a CSV record (RFC 4180, without line breaks inside quotes).
fn split(line: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut rest = line.trim_end_matches('\r');
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut value = String::new();
            let mut chars = quoted.char_indices().peekable();
            let end = loop {
                match chars.next()? {
                    (_, '"') if chars.peek().is_some_and(|(_, c)| *c == '"') => {
                        chars.next();
                        value.push('"');
                    }
                    (at, '"') => break at + 1,
                    (_, c) => value.push(c),
                }
            };
            fields.push(value);
            rest = &quoted[end..];
            match rest.strip_prefix(',') {
                Some(r) => rest = r,
                None if rest.is_empty() => return Some(fields),
                None => return None,
            }
        } else {
            let (field, more) = rest.split_once(',').map_or((rest, None), |(f, r)| (f, Some(r)));
            if field.contains('"') {
                return None;
            }
            fields.push(field.to_owned());
            match more {
                Some(r) => rest = r,
                None => return Some(fields),
            }
        }
    }
}

impl TokenAuthenticator for TokenFile {
    fn authenticate_token(&self, token: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        Ok(self.users.get(&digest).cloned())
    }
}
