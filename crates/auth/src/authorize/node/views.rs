//! The fields of pods, nodes and volumes that the node authorizer reads: the names they refer to, with their kinds.
use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Kinds of objects that a node may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Secret,
    /// The resource `configmaps`.
    ConfigMap,
    /// The resource `persistentvolumeclaims`.
    Claim,
    /// The resource `persistentvolumes`.
    Volume,
    /// The resource `serviceaccounts`.
    ServiceAccount,
    /// The resource `resourceclaims`.
    ResourceClaim,
    Pod,
    /// The resource `volumeattachments`.
    VolumeAttachment,
    /// The resource `resourceslices`.
    ResourceSlice,
    /// The resource `podcertificaterequests`.
    PodCertificateRequest,
}

pub(super) type Key = (Kind, Arc<str>);

pub(super) fn path(namespace: &str, name: &str) -> Arc<str> {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() }
}

#[derive(Deserialize)]
pub(super) struct NodeNameView {
    #[serde(default)]
    pub(super) spec: NodeNameSpec,
}

#[derive(Deserialize, Default)]
pub(super) struct NodeNameSpec {
    #[serde(default, rename = "nodeName")]
    pub(super) node_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodView {
    pub(super) metadata: PodMeta,
    pub(super) spec: PodSpec,
    pub(super) status: Option<PodStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PodMeta {
    pub(super) uid: String,
    pub(super) annotations: Option<HashMap<String, IgnoredOrMirror>>,
}

/// Only the presence of annotations matters.
pub(super) type IgnoredOrMirror = IgnoredAny;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) service_account_name: Option<String>,
    pub(super) image_pull_secrets: Option<Vec<NameRef>>,
    pub(super) containers: Option<Vec<Container>>,
    pub(super) init_containers: Option<Vec<Container>>,
    pub(super) ephemeral_containers: Option<Vec<Container>>,
    pub(super) volumes: Option<Vec<Volume>>,
    pub(super) resource_claims: Option<Vec<PodClaim>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    pub(super) resource_claim_statuses: Option<Vec<ClaimStatus>>,
    pub(super) extended_resource_claim_status: Option<ExtendedClaim>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExtendedClaim {
    pub(super) resource_claim_name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimStatus {
    pub(super) name: String,
    pub(super) resource_claim_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodClaim {
    pub(super) name: String,
    pub(super) resource_claim_name: Option<String>,
    pub(super) resource_claim_template_name: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct NameRef {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    pub(super) env: Option<Vec<Env>>,
    pub(super) env_from: Option<Vec<EnvFrom>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Env {
    pub(super) value_from: Option<ValueFrom>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ValueFrom {
    pub(super) secret_key_ref: Option<NameRef>,
    pub(super) config_map_key_ref: Option<NameRef>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EnvFrom {
    pub(super) secret_ref: Option<NameRef>,
    pub(super) config_map_ref: Option<NameRef>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SecretSource {
    pub(super) secret_name: Option<String>,
    pub(super) secret_namespace: Option<String>,
    pub(super) secret_ref: Option<NameRef>,
    pub(super) node_publish_secret_ref: Option<NameRef>,
    pub(super) node_stage_secret_ref: Option<NameRef>,
    pub(super) node_expand_secret_ref: Option<NameRef>,
}

/// Every volume source that can refer to an object; pods and persistent volumes share most of them.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) secret: Option<SecretSource>,
    pub(super) config_map: Option<NameRef>,
    pub(super) projected: Option<Projected>,
    pub(super) persistent_volume_claim: Option<ClaimSource>,
    pub(super) ephemeral: Option<IgnoredAny>,
    pub(super) azure_file: Option<SecretSource>,
    pub(super) cephfs: Option<SecretSource>,
    pub(super) cinder: Option<SecretSource>,
    pub(super) flex_volume: Option<SecretSource>,
    pub(super) rbd: Option<SecretSource>,
    #[serde(rename = "scaleIO")]
    pub(super) scale_io: Option<SecretSource>,
    pub(super) iscsi: Option<SecretSource>,
    pub(super) storageos: Option<SecretSource>,
    pub(super) csi: Option<SecretSource>,
    pub(super) claim_ref: Option<ClaimRef>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ClaimRef {
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimSource {
    pub(super) claim_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Projected {
    pub(super) sources: Option<Vec<ProjectedSource>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProjectedSource {
    pub(super) secret: Option<NameRef>,
    pub(super) config_map: Option<NameRef>,
}

#[derive(Deserialize)]
pub(super) struct VolumeView {
    #[serde(default)]
    pub(super) spec: Volume,
}

impl Volume {
    pub(super) fn secret_sources(&self) -> impl Iterator<Item = &SecretSource> {
        [
            &self.azure_file,
            &self.cephfs,
            &self.cinder,
            &self.flex_volume,
            &self.rbd,
            &self.scale_io,
            &self.iscsi,
            &self.storageos,
            &self.csi,
        ]
        .into_iter()
        .flatten()
    }

    /// Returns the secrets a kubelet needs for this persistent volume; `namespace` is its claim's.
    pub(super) fn secrets(&self, namespace: &str) -> Vec<Arc<str>> {
        let mut out = Vec::new();
        for source in self.secret_sources() {
            if let Some(name) = &source.secret_name {
                out.push(path(source.secret_namespace.as_deref().unwrap_or(namespace), name));
            }
            let references = [
                &source.secret_ref,
                &source.node_publish_secret_ref,
                &source.node_stage_secret_ref,
                &source.node_expand_secret_ref,
            ];
            for r in references.into_iter().flatten() {
                let own = r.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(namespace);
                out.push(path(own, &r.name));
            }
        }
        out
    }
}

impl PodView {
    pub(super) fn claim_statuses(&self) -> Vec<(String, Option<String>)> {
        let statuses = self.status.as_ref().and_then(|s| s.resource_claim_statuses.as_ref());
        statuses.into_iter().flatten().map(|s| (s.name.clone(), s.resource_claim_name.clone())).collect()
    }

    pub(super) fn extended_claim(&self) -> Option<String> {
        self.status.as_ref()?.extended_resource_claim_status.as_ref().map(|e| e.resource_claim_name.clone())
    }

    /// Calls `add` with kind, namespace and name of everything the pod refers to.
    pub(super) fn references(&self, namespace: &str, pod_name: &str, mut add: impl FnMut(Kind, &str, &str)) {
        // A node must not be able to grant itself anything by a mirror pod it creates.
        let mirror = self.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"));
        if mirror {
            return;
        }
        let spec = &self.spec;
        let mut object = |kind, name: &str| add(kind, namespace, name);
        if let Some(name) = &spec.service_account_name {
            object(Kind::ServiceAccount, name);
        }
        for s in spec.image_pull_secrets.iter().flatten() {
            object(Kind::Secret, &s.name);
        }
        let containers = [&spec.init_containers, &spec.containers, &spec.ephemeral_containers];
        for c in containers.into_iter().flatten().flatten() {
            c.references(&mut object);
        }
        for v in spec.volumes.iter().flatten() {
            v.references(pod_name, &mut object);
        }
        let statuses = self.claim_statuses();
        for claim in spec.resource_claims.iter().flatten() {
            if let Some(name) = &claim.resource_claim_name {
                object(Kind::ResourceClaim, name);
            } else if claim.resource_claim_template_name.is_some() {
                for (_, made) in statuses.iter().filter(|(n, _)| *n == claim.name) {
                    object(Kind::ResourceClaim, made.as_deref().unwrap_or_default());
                }
            }
        }
        if let Some(name) = self.extended_claim() {
            object(Kind::ResourceClaim, &name);
        }
    }
}

impl Container {
    pub(super) fn references(&self, object: &mut impl FnMut(Kind, &str)) {
        for from in self.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            if let Some(s) = &from.secret_key_ref {
                object(Kind::Secret, &s.name);
            }
            if let Some(c) = &from.config_map_key_ref {
                object(Kind::ConfigMap, &c.name);
            }
        }
        for from in self.env_from.iter().flatten() {
            if let Some(s) = &from.secret_ref {
                object(Kind::Secret, &s.name);
            }
            if let Some(c) = &from.config_map_ref {
                object(Kind::ConfigMap, &c.name);
            }
        }
    }
}

impl Volume {
    pub(super) fn references(&self, pod_name: &str, object: &mut impl FnMut(Kind, &str)) {
        if let Some(name) = self.secret.as_ref().and_then(|s| s.secret_name.as_ref()) {
            object(Kind::Secret, name);
        }
        if let Some(c) = &self.config_map {
            object(Kind::ConfigMap, &c.name);
        }
        for source in self.projected.iter().filter_map(|p| p.sources.as_ref()).flatten() {
            if let Some(s) = &source.secret {
                object(Kind::Secret, &s.name);
            }
            if let Some(c) = &source.config_map {
                object(Kind::ConfigMap, &c.name);
            }
        }
        if let Some(c) = &self.persistent_volume_claim {
            object(Kind::Claim, &c.claim_name);
        } else if self.ephemeral.is_some() {
            object(Kind::Claim, &format!("{pod_name}-{}", self.name));
        }
        for source in self.secret_sources() {
            if let Some(name) = &source.secret_name {
                object(Kind::Secret, name);
            }
            for r in [&source.secret_ref, &source.node_publish_secret_ref].into_iter().flatten() {
                object(Kind::Secret, &r.name);
            }
        }
    }
}
