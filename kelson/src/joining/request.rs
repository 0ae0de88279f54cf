//! Requests and answers of `POST /kelson/join`.

use kelson_meta::version;
use serde::{Deserialize, Serialize};

/// The path of the API.
pub const PATH: &str = "/kelson/join";
/// The largest difference between the minor versions of servers of one cluster (upstream: version skew policy).
const SKEW_MAX: u32 = 1;

/// A request of a joining server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// The minor version of Kubernetes of the joining server, as [`version::SHORT`].
    pub kubernetes_version: String,
    /// The pin of the token, `sha256:HEX`.
    pub pin: String,
    /// Whether it has a member only, and needs no other keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vote: bool,
    /// The member to add; without it the server requests the keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<JoiningMember>,
}

/// The etcd member of a joining server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoiningMember {
    /// The name of the member: that of the server's node.
    pub name: String,
    /// The URLs at which the other members reach it.
    pub peer_urls: Vec<String>,
}

/// The answer to a request for the keys.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealedKeys {
    /// A bundle, sealed with the token, in base64.
    pub sealed: String,
    /// The minor version of the etcd cluster, 5 for 3.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_minor: Option<u32>,
}

impl JoinRequest {
    /// Creates the request of this release.
    pub fn new(pin: String, member: Option<JoiningMember>) -> Self {
        Self { kubernetes_version: version::SHORT.to_owned(), pin, vote: false, member }
    }

    /// Creates the request of a vote for its keys.
    pub fn of_vote(pin: String) -> Self {
        Self { vote: true, ..Self::new(pin, None) }
    }

    /// Checks that the joining server may run beside this one.
    ///
    /// # Errors
    /// The versions differ too much; says what to do.
    pub fn check_version(&self) -> Result<(), String> {
        check_versions(version::SHORT, &self.kubernetes_version)
    }
}

fn check_versions(own: &str, joining: &str) -> Result<(), String> {
    let minor = |text: &str| text.strip_prefix("1.").and_then(|minor| minor.parse::<u32>().ok());
    let distance = minor(own).zip(minor(joining)).map(|(own, joining)| own.abs_diff(joining));
    match distance {
        Some(0..=SKEW_MAX) => Ok(()),
        _ => Err(format!(
            "the joining server has Kubernetes {joining} and this one {own}; they may be one minor version apart. Install the release of this server there"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_may_be_one_minor_version_apart() {
        for (own, joining, accepted) in [
            ("1.20", "1.20", true),
            ("1.20", "1.21", true),
            ("1.20", "1.19", true),
            ("1.20", "1.22", false),
            ("1.20", "1.18", false),
            ("1.20", "2.20", false),
            ("1.20", "", false),
        ] {
            assert_eq!(check_versions(own, joining).is_ok(), accepted, "{own} {joining}");
        }
        let rejected = check_versions("1.20", "1.40").unwrap_err();
        assert!(rejected.contains("Kubernetes 1.40 and this one 1.20"), "{rejected}");
        assert_eq!(JoinRequest::new(String::new(), None).check_version(), Ok(()));
    }
}
