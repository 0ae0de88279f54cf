//! `AuthenticationConfiguration` (`apiserver.config.k8s.io`, KEP-3331): token issuers and the meaning of their claims,
//! and anonymous access. The `--oidc-*` flags describe one such issuer.
use std::sync::Arc;

use serde::Deserialize;

use super::claims::{Compiled, Rules};
use super::document::{ClaimRuleDocument, IssuerPart, Jwt, Mapping, Mappings};
use super::keys::ALGORITHMS;
use crate::authenticate::Anonymous;

/// The maximum number of issuers in a file, as upstream.
const ISSUERS_MAX: usize = 64;
const GROUP: &str = "apiserver.config.k8s.io";

/// A validated configuration.
#[derive(Debug)]
pub struct AuthenticationConfiguration {
    /// The token issuers, in order of evaluation.
    pub issuers: Vec<Arc<Issuer>>,
    /// The setting of anonymous requests; `None` if flags define it.
    pub anonymous: Option<Anonymous>,
}

/// A token issuer.
#[derive(Debug)]
pub struct Issuer {
    /// The `iss` claim of its tokens.
    pub url: String,
    /// The URL of its discovery document.
    pub discovery_url: String,
    /// The CAs of its server, PEM; empty uses the system's CAs.
    pub ca_pem: Vec<u8>,
    /// The accepted audiences; a token must have one of them.
    pub audiences: Vec<String>,
    /// The accepted signature algorithms.
    pub algorithms: Vec<String>,
    pub(super) rules: Rules,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuthenticationDocument {
    api_version: String,
    kind: String,
    #[serde(default)]
    jwt: Vec<Jwt>,
    anonymous: Option<AnonymousPart>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnonymousPart {
    #[serde(default)]
    enabled: bool,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    path: String,
}

/// The values of the `--oidc-*` flags.
#[derive(Clone, Debug, Default)]
pub struct OidcFlags {
    /// The value of `--oidc-issuer-url`.
    pub issuer_url: String,
    /// The value of `--oidc-client-id`.
    pub client_id: String,
    /// The content of `--oidc-ca-file`, PEM; empty uses the system's CAs.
    pub ca_pem: String,
    /// The value of `--oidc-username-claim`.
    pub username_claim: String,
    /// The value of `--oidc-username-prefix`; `-` means none, and without a value all claims but `email` are prefixed
    /// with the issuer.
    pub username_prefix: String,
    /// The value of `--oidc-groups-claim`.
    pub groups_claim: String,
    /// The value of `--oidc-groups-prefix`.
    pub groups_prefix: String,
    /// The value of `--oidc-signing-algs`.
    pub signing_algs: Vec<String>,
    /// The values of `--oidc-required-claim`, as key and value.
    pub required_claims: Vec<(String, String)>,
}

impl AuthenticationConfiguration {
    /// Reads and validates the file.
    ///
    /// # Errors
    /// All errors, each with the path of its field.
    pub fn parse(text: &[u8]) -> Result<Self, Vec<String>> {
        let read = kelson_codec::yaml::to_value(text).map_err(|e| vec![e.to_string()])?;
        let (tree, duplicates) = read;
        if let Some(duplicate) = duplicates.first() {
            return Err(vec![duplicate.to_string()]);
        }
        let document: AuthenticationDocument = serde_json::from_value(tree).map_err(|e| vec![e.to_string()])?;
        let known = ["v1", "v1beta1", "v1alpha1"].iter().any(|v| document.api_version == format!("{GROUP}/{v}"));
        let mut faults = Vec::new();
        if !known || document.kind != "AuthenticationConfiguration" {
            faults.push(format!(
                "{} {} is not {GROUP}/v1 AuthenticationConfiguration",
                document.api_version, document.kind
            ));
        }
        if document.jwt.len() > ISSUERS_MAX {
            faults.push(format!("jwt: Too many: {}: must have at most {ISSUERS_MAX} items", document.jwt.len()));
        }
        let mut issuers: Vec<Arc<Issuer>> = Vec::new();
        for (i, jwt) in document.jwt.iter().take(ISSUERS_MAX).enumerate() {
            let issuer = issuer(&format!("jwt[{i}]"), jwt, &mut faults);
            if issuers.iter().any(|other| other.url == issuer.url) {
                faults.push(format!("jwt[{i}].issuer.url: Duplicate value: {:?}", issuer.url));
            }
            if issuers.iter().any(|other| other.discovery_url == issuer.discovery_url) {
                faults.push(format!("jwt[{i}].issuer.discoveryURL: Duplicate value: {:?}", issuer.discovery_url));
            }
            issuers.push(Arc::new(issuer));
        }
        let anonymous = document.anonymous.map(|a| match (a.enabled, a.conditions.is_empty()) {
            (true, true) => Anonymous::Enabled,
            (true, false) => Anonymous::Paths(a.conditions.into_iter().map(|c| c.path).collect()),
            (false, true) => Anonymous::Disabled,
            (false, false) => {
                faults.push(
                    "anonymous.conditions: Invalid value: enabled should be set to true when conditions are defined"
                        .into(),
                );
                Anonymous::Disabled
            }
        });
        if faults.is_empty() { Ok(Self { issuers, anonymous }) } else { Err(faults) }
    }
}

impl Issuer {
    /// Creates the issuer described by flags.
    ///
    /// # Errors
    /// All errors in the flags.
    pub fn of_flags(flags: &OidcFlags) -> Result<Self, Vec<String>> {
        let prefix = match (flags.username_prefix.as_str(), flags.username_claim.as_str()) {
            ("-", _) | ("", "email") => String::new(),
            ("", _) => format!("{}#", flags.issuer_url),
            (prefix, _) => prefix.to_owned(),
        };
        let claim = |claim: &str, prefix: &str| Mapping {
            claim: claim.to_owned(),
            prefix: (!claim.is_empty()).then(|| prefix.to_owned()),
            expression: String::new(),
        };
        let required = |(claim, value): &(String, String)| ClaimRuleDocument {
            claim: claim.clone(),
            required_value: value.clone(),
            ..ClaimRuleDocument::default()
        };
        let jwt = Jwt {
            issuer: IssuerPart {
                url: flags.issuer_url.clone(),
                certificate_authority: flags.ca_pem.clone(),
                audiences: vec![flags.client_id.clone()],
                ..IssuerPart::default()
            },
            claim_validation_rules: flags.required_claims.iter().map(required).collect(),
            claim_mappings: Mappings {
                username: claim(&flags.username_claim, &prefix),
                groups: claim(&flags.groups_claim, &flags.groups_prefix),
                ..Mappings::default()
            },
            user_validation_rules: Vec::new(),
        };
        let mut faults = Vec::new();
        let mut issuer = issuer("--oidc", &jwt, &mut faults);
        for name in &flags.signing_algs {
            if !ALGORITHMS.contains(&name.as_str()) {
                faults.push(format!("--oidc-signing-algs: {name:?} is none of {}", ALGORITHMS.join(", ")));
            }
        }
        issuer.algorithms.clone_from(&flags.signing_algs);
        if faults.is_empty() { Ok(issuer) } else { Err(faults) }
    }
}

fn issuer(at: &str, jwt: &Jwt, faults: &mut Vec<String>) -> Issuer {
    let part = &jwt.issuer;
    let mut https = |field: &str, url: &str| {
        let parsed: Option<http::Uri> = url.parse().ok();
        let fine = parsed.as_ref().is_some_and(|u| u.scheme_str() == Some("https") && u.host().is_some());
        if !fine || url.contains(['#', '@']) || (field == "url" && url.contains('?')) {
            faults.push(format!(
                "{at}.issuer.{field}: Invalid value: {url:?}: must be an https URL without user, query and fragment"
            ));
        }
    };
    https("url", &part.url);
    let discovery_url = match part.discovery_url.as_str() {
        "" => super::means::well_known(&part.url),
        given => {
            https("discoveryURL", given);
            given.to_owned()
        }
    };
    if part.discovery_url == part.url && !part.url.is_empty() {
        faults.push(format!("{at}.issuer.discoveryURL: Invalid value: {:?}: must be different from URL", part.url));
    }
    if part.audiences.is_empty() || part.audiences.iter().any(String::is_empty) {
        faults.push(format!("{at}.issuer.audiences: Required value: at least one jwt[*].issuer.audiences is required"));
    }
    let policy = part.audience_match_policy.as_str();
    match (part.audiences.len(), policy) {
        (0 | 1, "" | "MatchAny") | (_, "MatchAny") => {}
        _ => faults.push(format!(
            "{at}.issuer.audienceMatchPolicy: Invalid value: {policy:?}: must be MatchAny for multiple audiences"
        )),
    }
    if !part.egress_selector_type.is_empty() {
        faults.push(format!("{at}.issuer.egressSelectorType: Forbidden: egress selectors are not supported"));
    }
    let ca = part.certificate_authority.as_str();
    if !ca.is_empty() && kelson_pki::certificates_from_pem(ca).is_err() {
        faults.push(format!("{at}.issuer.certificateAuthority: Invalid value: has no certificate"));
    }
    let rules = Rules::new(&mut Compiled { at, faults }, jwt);
    Issuer {
        url: part.url.clone(),
        discovery_url,
        ca_pem: ca.as_bytes().to_vec(),
        audiences: part.audiences.clone(),
        algorithms: ALGORITHMS.map(String::from).to_vec(),
        rules,
    }
}
