//! `AuthorizationConfiguration` (`apiserver.config.k8s.io`, KEP-3221): the authorizers in their order, including
//! webhooks with match conditions.
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::modes::Mode;
use super::webhook::{FailurePolicy, WebhookOptions, conditions};

const GROUP: &str = "apiserver.config.k8s.io";
/// Upstream's maximum timeout of a call.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// The maximum number of match conditions of one webhook.
const CONDITIONS_MAX: usize = 64;

/// A validated entry of `authorizers`.
#[derive(Clone, Debug)]
pub enum Configured {
    /// An authorizer without settings.
    Mode(Mode),
    /// An authorizer that asks a webhook.
    Webhook(WebhookConfig),
}

/// A webhook with its location.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// The settings of its reviews.
    pub options: WebhookOptions,
    /// The kubeconfig with its address and credentials.
    pub kubeconfig: PathBuf,
    /// The timeout of one review.
    pub timeout: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuthorizationDocument {
    api_version: String,
    kind: String,
    #[serde(default)]
    authorizers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    name: String,
    webhook: Option<Webhook>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Webhook {
    #[serde(rename = "authorizedTTL")]
    authorized_ttl: Option<String>,
    cache_authorized_requests: Option<bool>,
    #[serde(rename = "unauthorizedTTL")]
    unauthorized_ttl: Option<String>,
    cache_unauthorized_requests: Option<bool>,
    timeout: Option<String>,
    subject_access_review_version: String,
    match_condition_subject_access_review_version: String,
    failure_policy: String,
    connection_info: Connection,
    match_conditions: Vec<MatchCondition>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Connection {
    #[serde(rename = "type")]
    kind: String,
    kube_config_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchCondition {
    expression: String,
}

/// Reads and validates the file; `duration` parses Go's durations.
///
/// # Errors
/// All errors, each with the path of its field.
pub fn parse(text: &[u8], duration: fn(&str) -> Option<Duration>) -> Result<Vec<Configured>, Vec<String>> {
    let (tree, duplicates) = kelson_codec::yaml::to_value(text).map_err(|e| vec![e.to_string()])?;
    if let Some(duplicate) = duplicates.first() {
        return Err(vec![duplicate.to_string()]);
    }
    let document: AuthorizationDocument = serde_json::from_value(tree).map_err(|e| vec![e.to_string()])?;
    let mut faults = Vec::new();
    let known = ["v1", "v1beta1", "v1alpha1"].iter().any(|v| document.api_version == format!("{GROUP}/{v}"));
    if !known || document.kind != "AuthorizationConfiguration" {
        faults.push(format!("{} {} is not {GROUP}/v1 AuthorizationConfiguration", document.api_version, document.kind));
    }
    if document.authorizers.is_empty() {
        faults.push("authorizers: Required value: at least one authorization mode must be defined".to_owned());
    }
    let mut found = Vec::new();
    let (mut kinds, mut names): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for (i, entry) in document.authorizers.iter().enumerate() {
        let at = format!("authorizers[{i}]");
        if entry.kind != "Webhook" && kinds.contains(&entry.kind.as_str()) {
            faults.push(format!("{at}.type: Duplicate value: {:?}", entry.kind));
        }
        kinds.push(&entry.kind);
        match entry.name.as_str() {
            "" => faults.push(format!("{at}.name: Required value")),
            name if names.contains(&name) => faults.push(format!("{at}.name: Duplicate value: {name:?}")),
            name if kelson_meta::is_dns1123_subdomain(name).is_err() => {
                faults.push(format!("{at}.name: Invalid value: {name:?}: authorizer name is invalid"));
            }
            _ => {}
        }
        names.push(&entry.name);
        match (entry.kind.as_str(), &entry.webhook) {
            ("Webhook", Some(webhook)) => {
                let judged =
                    Judge { at: format!("{at}.webhook"), duration, faults: &mut faults }.webhook(&entry.name, webhook);
                found.push(Configured::Webhook(judged));
            }
            ("Webhook", None) => faults.push(format!("{at}.webhook: Required value: required when type=Webhook")),
            (kind, webhook) => {
                if webhook.is_some() {
                    faults.push(format!("{at}.webhook: Invalid value: may only be specified when type=Webhook"));
                }
                match kind.parse() {
                    Ok(mode) => found.push(Configured::Mode(mode)),
                    Err(_) => faults.push(format!("{at}.type: Unsupported value: {kind:?}")),
                }
            }
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

struct Judge<'a> {
    at: String,
    duration: fn(&str) -> Option<Duration>,
    faults: &'a mut Vec<String>,
}

impl Judge<'_> {
    fn fault(&mut self, field: &str, why: impl std::fmt::Display) {
        self.faults.push(format!("{}.{field}: {why}", self.at));
    }

    fn time(&mut self, field: &str, given: Option<&String>, default: Option<Duration>) -> Duration {
        let Some(text) = given else {
            if default.is_none() {
                self.fault(field, "Required value");
            }
            return default.unwrap_or_default();
        };
        match (self.duration)(text) {
            Some(time) if !time.is_zero() => time,
            _ => {
                self.fault(field, format!("Invalid value: {text:?}: must be > 0s"));
                Duration::ZERO
            }
        }
    }

    fn connection(&mut self, connection: &Connection) -> PathBuf {
        match (connection.kind.as_str(), &connection.kube_config_file) {
            ("KubeConfigFile", Some(file)) if file.is_absolute() => file.clone(),
            ("KubeConfigFile", Some(_)) => {
                self.fault("connectionInfo.kubeConfigFile", "Invalid value: must be an absolute path");
                PathBuf::new()
            }
            ("KubeConfigFile", None) => {
                self.fault("connectionInfo.kubeConfigFile", "Required value");
                PathBuf::new()
            }
            (other, _) => {
                // A server that does not run in a pod has no service account to use.
                self.fault(
                    "connectionInfo.type",
                    format!("Unsupported value: {other:?}: supported values: \"KubeConfigFile\""),
                );
                PathBuf::new()
            }
        }
    }

    fn conditions(&mut self, given: &[MatchCondition]) -> Vec<String> {
        if given.len() > CONDITIONS_MAX {
            self.fault(
                "matchConditions",
                format!("Too many: {}: must have at most {CONDITIONS_MAX} items", given.len()),
            );
        }
        let sources: Vec<String> = given.iter().map(|c| c.expression.clone()).collect();
        for (i, source) in sources.iter().enumerate() {
            if let Err(why) = conditions(std::slice::from_ref(source)) {
                self.fault(&format!("matchConditions[{i}].expression"), format!("Invalid value: {why}"));
            }
        }
        sources
    }

    fn webhook(mut self, name: &str, w: &Webhook) -> WebhookConfig {
        let timeout = self.time("timeout", w.timeout.as_ref(), None);
        if timeout > TIMEOUT_MAX {
            self.fault("timeout", format!("Invalid value: {timeout:?}: must be <= 30s"));
        }
        let authorized = self.time("authorizedTTL", w.authorized_ttl.as_ref(), Some(Duration::from_secs(300)));
        let unauthorized = self.time("unauthorizedTTL", w.unauthorized_ttl.as_ref(), Some(Duration::from_secs(30)));
        let version = match w.subject_access_review_version.as_str() {
            "v1" => "v1",
            "v1beta1" => "v1beta1",
            "" => {
                self.fault("subjectAccessReviewVersion", "Required value");
                "v1"
            }
            other => {
                self.fault(
                    "subjectAccessReviewVersion",
                    format!("Unsupported value: {other:?}: supported values: \"v1\", \"v1beta1\""),
                );
                "v1"
            }
        };
        match (w.match_condition_subject_access_review_version.as_str(), w.match_conditions.is_empty()) {
            ("v1", _) | ("", true) => {}
            ("", false) => self.fault(
                "matchConditionSubjectAccessReviewVersion",
                "Required value: required if match conditions are specified",
            ),
            (other, _) => {
                self.fault(
                    "matchConditionSubjectAccessReviewVersion",
                    format!("Unsupported value: {other:?}: supported values: \"v1\""),
                );
            }
        }
        let failure_policy = match w.failure_policy.as_str() {
            "NoOpinion" => FailurePolicy::NoOpinion,
            "Deny" => FailurePolicy::Deny,
            other => {
                self.fault(
                    "failurePolicy",
                    format!("Unsupported value: {other:?}: supported values: \"Deny\", \"NoOpinion\""),
                );
                FailurePolicy::Deny
            }
        };
        let kubeconfig = self.connection(&w.connection_info);
        let sources = self.conditions(&w.match_conditions);
        let kept = |cache: Option<bool>, ttl: Duration| if cache == Some(false) { Duration::ZERO } else { ttl };
        let options = WebhookOptions {
            name: name.to_owned(),
            version,
            authorized_ttl: kept(w.cache_authorized_requests, authorized),
            unauthorized_ttl: kept(w.cache_unauthorized_requests, unauthorized),
            failure_policy,
            match_conditions: sources,
        };
        WebhookConfig { options, kubeconfig, timeout }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<Duration> {
        text.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
    }

    fn read(authorizers: &str) -> Result<Vec<Configured>, String> {
        let text = format!("apiVersion: {GROUP}/v1\nkind: AuthorizationConfiguration\nauthorizers: [{authorizers}]\n");
        parse(text.as_bytes(), seconds).map_err(|faults| faults.join("; "))
    }

    const GOOD: &str = "timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, \
        failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: /etc/w}";

    #[test]
    fn authorizers_in_their_order() {
        let webhook = format!(
            "{{type: Webhook, name: w, webhook: {{{GOOD}, unauthorizedTTL: 9s, cacheAuthorizedRequests: false, \
             matchConditions: [{{expression: \"request.user != 'admin'\"}}]}}}}"
        );
        let found = read(&format!("{{type: Node, name: node}}, {webhook}, {{type: RBAC, name: rbac}}")).unwrap();
        let [Configured::Mode(Mode::Node), Configured::Webhook(w), Configured::Mode(Mode::Rbac)] = found.as_slice()
        else {
            panic!("{found:?}");
        };
        assert_eq!((w.timeout.as_secs(), w.options.unauthorized_ttl.as_secs()), (3, 9));
        assert_eq!((w.options.authorized_ttl.as_secs(), w.options.failure_policy), (0, FailurePolicy::Deny));
        assert_eq!(w.kubeconfig, PathBuf::from("/etc/w"));
    }

    #[test]
    fn every_fault_is_said() {
        let webhook = |fields: &str| format!("{{type: Webhook, name: w, webhook: {{{fields}}}}}");
        for (authorizers, part) in [
            (String::new(), "at least one"),
            ("{type: RBAC}".into(), "name: Required"),
            ("{type: Other, name: a}".into(), "type: Unsupported"),
            ("{type: RBAC, name: a}, {type: RBAC, name: b}".into(), "type: Duplicate"),
            ("{type: RBAC, name: a}, {type: Node, name: a}".into(), "name: Duplicate"),
            ("{type: RBAC, name: a, webhook: {}}".into(), "may only be specified"),
            ("{type: Webhook, name: a}".into(), "webhook: Required"),
            (webhook(&GOOD.replace("3s", "31s")), "timeout"),
            (webhook(&GOOD.replace("timeout: 3s,", "")), "timeout: Required"),
            (webhook(&GOOD.replace("Version: v1, match", "Version: v2, match")), "subjectAccessReviewVersion"),
            (webhook(&GOOD.replace("Deny", "Maybe")), "failurePolicy"),
            (webhook(&GOOD.replace("/etc/w", "etc")), "absolute"),
            (webhook(&GOOD.replace("KubeConfigFile,", "InClusterConfig,")), "connectionInfo.type"),
            (webhook(&format!("{GOOD}, matchConditions: [{{expression: '1'}}]")), "matchConditions[0]"),
            (webhook(&format!("{GOOD}, authorizedTTL: x")), "authorizedTTL"),
            (webhook(&format!("{GOOD}, more: 1")), "unknown field"),
        ] {
            let said = read(&authorizers).expect_err(&authorizers);
            assert!(said.contains(part), "{authorizers}: {said}");
        }
    }

    #[test]
    fn every_version_is_read_and_a_misspelt_field_at_any_level_is_refused() {
        let webhook = serde_json::json!({"timeout": "3s", "subjectAccessReviewVersion": "v1",
            "matchConditionSubjectAccessReviewVersion": "v1", "failurePolicy": "Deny",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": "/etc/w"},
            "matchConditions": [{"expression": "true"}]});
        let of = |version: &str| {
            serde_json::json!({"apiVersion": format!("{GROUP}/{version}"), "kind": "AuthorizationConfiguration",
                "authorizers": [{"type": "Webhook", "name": "w", "webhook": webhook}]})
        };
        let parsed = |document: &serde_json::Value| parse(document.to_string().as_bytes(), seconds);
        for version in ["v1", "v1beta1", "v1alpha1"] {
            assert!(parsed(&of(version)).is_ok(), "{version}: {:?}", parsed(&of(version)).err());
        }
        assert!(parsed(&of("v2")).is_err());
        for (at, misspelt) in kelson_codec::strict::misspelt(&of("v1")) {
            let why = parsed(&misspelt).map(drop).expect_err(&at).join(" ");
            assert!(why.contains("misspelt"), "{at}: {why}");
        }
    }
}
