//! When an image that is on the node already must be shown credentials for (KEP-2535,
//! `imagePullCredentialsVerificationPolicy` and `preloadedImagesVerificationAllowlist` of the kubelet's configuration).
use std::collections::HashSet;

use crate::reference;

/// `imagePullCredentialsVerificationPolicy`: for which images on the node a pod must show credentials (KEP-2535).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Whatever is there may be used.
    NeverVerify,
    /// Images that the kubelet did not pull may be used.
    #[default]
    NeverVerifyPreloadedImages,
    /// Listed images may be used.
    NeverVerifyAllowlistedImages(Allowlist),
    /// Nothing may be used unshown.
    AlwaysVerify,
}

/// Images, and prefixes of images, without tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    images: HashSet<String>,
    prefixes: Vec<String>,
}

/// Why a policy is invalid; the message is that of a kubelet configuration error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not one of the four names.
    #[error("unknown image pull credential verification policy: {0}")]
    Unknown(String),
    /// A list where there may be none.
    #[error(
        "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\""
    )]
    ListUnused,
    /// A pattern of the list.
    #[error("invalid image pattern in `preloadedImagesVerificationAllowlist`: {0}")]
    Pattern(String),
}

impl Policy {
    /// Parses the two fields of the configuration; an empty name is the default.
    pub fn parse(name: &str, allowlist: &[String]) -> Result<Self, PolicyError> {
        if !allowlist.is_empty() && name != "NeverVerifyAllowlistedImages" {
            return Err(PolicyError::ListUnused);
        }
        match name {
            "NeverVerify" => Ok(Self::NeverVerify),
            "" | "NeverVerifyPreloadedImages" => Ok(Self::NeverVerifyPreloadedImages),
            "NeverVerifyAllowlistedImages" => Allowlist::parse(allowlist).map(Self::NeverVerifyAllowlistedImages),
            "AlwaysVerify" => Ok(Self::AlwaysVerify),
            other => Err(PolicyError::Unknown(other.to_owned())),
        }
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NeverVerify => "NeverVerify",
            Self::NeverVerifyPreloadedImages => "NeverVerifyPreloadedImages",
            Self::NeverVerifyAllowlistedImages(_) => "NeverVerifyAllowlistedImages",
            Self::AlwaysVerify => "AlwaysVerify",
        }
    }

    /// Whether credentials must be shown; `by_kubelet`: there is a record that the kubelet pulled it, or began to.
    pub fn verifies(&self, image: &str, by_kubelet: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => by_kubelet,
            Self::NeverVerifyAllowlistedImages(list) => !list.contains(image),
            Self::AlwaysVerify => true,
        }
    }
}

impl Allowlist {
    fn parse(patterns: &[String]) -> Result<Self, PolicyError> {
        let mut list = Self::default();
        for pattern in patterns {
            let bad = |why: String| Err(PolicyError::Pattern(why));
            if pattern.trim() != pattern {
                return bad(format!("leading/trailing spaces are not allowed: {pattern}"));
            }
            let wildcard = pattern.ends_with("/*");
            let bare = if wildcard { &pattern[..pattern.len() - 1] } else { pattern.as_str() };
            if bare.is_empty() {
                return bad(format!("the supplied pattern is too short: {pattern}"));
            }
            if bare.contains('*') {
                return bad(format!(
                    "not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
                ));
            }
            if wildcard {
                if bare == "/" {
                    return bad("at least registry hostname is required".to_owned());
                }
                list.prefixes.push(bare.to_owned());
                continue;
            }
            match reference::without_tag(bare) {
                Err(e) => return bad(format!("failed to parse as an image name: {e}")),
                Ok(image) if image != bare => {
                    return bad(format!("neither tag nor digest is accepted in an image reference: {pattern}"));
                }
                Ok(image) => drop(list.images.insert(image.to_owned())),
            }
        }
        Ok(list)
    }

    fn contains(&self, image: &str) -> bool {
        let bare = reference::without_tag(image).unwrap_or(image);
        self.images.contains(bare) || self.prefixes.iter().any(|p| bare.starts_with(p.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(patterns: &[&str]) -> Result<Policy, PolicyError> {
        let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
        Policy::parse("NeverVerifyAllowlistedImages", &patterns)
    }

    #[test]
    fn who_must_show() {
        let allow = list(&["r.io/a", "r.io/team/*"]).unwrap();
        for (policy, image, by_kubelet, want) in [
            (Policy::NeverVerify, "r.io/x:1", true, false),
            (Policy::default(), "r.io/x:1", true, true),
            (Policy::default(), "r.io/x:1", false, false),
            (Policy::AlwaysVerify, "r.io/x:1", false, true),
            (allow.clone(), "r.io/a:1", true, false),
            (allow.clone(), "r.io/a/b", true, true),
            (allow.clone(), "r.io/team/b:1", true, false),
            (allow, "r.io/teamwork:1", false, true),
        ] {
            assert_eq!(policy.verifies(image, by_kubelet), want, "{policy:?} {image}");
        }
    }

    #[test]
    fn faults() {
        for bad in [" a", "", "/*", "*", "r.io/*/x", "r.io/a:1", "r.io/a*", "r.io//"] {
            assert!(matches!(list(&[bad]), Err(PolicyError::Pattern(_))), "{bad:?}");
        }
        assert_eq!(Policy::parse("Sometimes", &[]), Err(PolicyError::Unknown("Sometimes".into())));
        assert_eq!(Policy::parse("AlwaysVerify", &["r.io/a".into()]), Err(PolicyError::ListUnused));
        assert_eq!(Policy::parse("", &[]), Ok(Policy::NeverVerifyPreloadedImages));
    }
}
