//! The parts of an APIService that are read, and its condition `Available`.
use jiff::Timestamp;
use kelson_meta::format_seconds;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An APIService (`apiregistration.k8s.io/v1`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApiService {
    pub metadata: ApiServiceMetadata,
    pub spec: ApiServiceSpec,
    pub status: ServiceStatus,
}

/// `metadata` of an APIService.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApiServiceMetadata {
    pub name: String,
    pub uid: String,
}

/// `spec` of an APIService.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServiceSpec {
    pub group: String,
    pub version: String,
    /// Absent for group versions that this server serves.
    pub service: Option<ServiceReference>,
    pub ca_bundle: String,
    #[serde(rename = "insecureSkipTLSVerify")]
    pub insecure_skip_tls_verify: bool,
    pub group_priority_minimum: i64,
    pub version_priority: i64,
}

/// `spec.service`: the service of the aggregated API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub port: Option<u16>,
}

/// `status` of an APIService.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceStatus {
    pub conditions: Vec<Availability>,
}

/// The condition `Available`, which decides whether requests are forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Availability {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
}

impl ServiceReference {
    /// The service's port; 443 if unset.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(443)
    }
}

impl ApiService {
    /// Whether the server was available at the last check.
    pub fn is_available(&self) -> bool {
        self.status.conditions.iter().any(|c| c.kind == "Available" && c.status == "True")
    }
}

impl Availability {
    /// A condition with this status.
    pub fn new(status: &str, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind: "Available".to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            last_transition_time: None,
        }
    }

    /// Writes the condition to an object. Returns whether it changed.
    pub fn write_to(mut self, object: &mut Value, now: Timestamp) -> bool {
        let mut list: Vec<Self> = Vec::deserialize(&object["status"]["conditions"]).unwrap_or_default();
        let have = list.iter().position(|c| c.kind == self.kind);
        let same = |c: &Self| (&c.status, &c.reason, &c.message) == (&self.status, &self.reason, &self.message);
        if have.is_some_and(|at| same(&list[at])) {
            return false;
        }
        let kept =
            have.filter(|at| list[*at].status == self.status).and_then(|at| list[at].last_transition_time.clone());
        self.last_transition_time = kept.or_else(|| Some(format_seconds(now)));
        match have {
            Some(at) => list[at] = self,
            None => list.push(self),
        }
        object["status"]["conditions"] = json!(list);
        true
    }
}
