//! Prepared claims of this node and the pods that use them. Pure.
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};

use super::messages::{ClaimDevice, ClaimName};
use crate::pod;

/// A device of a claim as its driver described it, in the format of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ReadyDevice {
    /// Pool of the device.
    pub pool_name: String,
    /// Name of the device in its pool.
    pub device_name: String,
    /// ID of the share, for a shared device.
    #[serde(rename = "ShareID", default)]
    pub share_id: Option<String>,
    /// Names of the claim's requests that the device is for; all if `None`.
    #[serde(default)]
    pub request_names: Option<Vec<String>>,
    /// CDI names of the device.
    #[serde(rename = "CDIDeviceIDs", default)]
    pub cdi_device_ids: Option<Vec<String>>,
}

/// Devices that one driver prepared for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ReadyByDriver {
    /// The devices of the claim.
    #[serde(default)]
    pub devices: Option<Vec<ReadyDevice>>,
}

/// A claim that pods of this node use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct KnownClaim {
    /// UID of the claim.
    #[serde(rename = "ClaimUID")]
    pub uid: String,
    /// Name of the claim.
    #[serde(rename = "ClaimName")]
    pub name: String,
    /// Namespace of the claim.
    pub namespace: String,
    /// UIDs of pods that use it; Go serializes a set as a map of empty objects.
    #[serde(rename = "PodUIDs", default)]
    pub pods: BTreeMap<String, EmptyObject>,
    /// All drivers with devices for the claim.
    #[serde(rename = "DriverState", default)]
    pub drivers: BTreeMap<String, ReadyByDriver>,
    /// Whether all drivers have prepared it since this kubelet started. Claims that an earlier kubelet prepared are prepared again.
    #[serde(skip)]
    pub is_ready: bool,
}

/// Value of each member of a set in Go's JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyObject {}

impl KnownClaim {
    /// Creates the record of an allocated claim that is not prepared yet.
    ///
    /// # Errors
    /// The claim is not allocated.
    pub fn of(claim: &ResourceClaim) -> Result<Self, String> {
        let meta = &claim.metadata;
        let name = meta.name.clone().unwrap_or_default();
        let given = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
        let given = given.ok_or_else(|| format!("ResourceClaim {name}: not allocated"))?;
        let results = given.devices.as_ref().and_then(|d| d.results.as_ref()).into_iter().flatten();
        Ok(Self {
            uid: meta.uid.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name,
            drivers: results.map(|r| (r.driver.clone(), ReadyByDriver::default())).collect(),
            ..Self::default()
        })
    }

    /// Identity of the claim for calls to drivers.
    pub fn named(&self) -> ClaimName {
        ClaimName { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }

    /// Records the devices that a driver prepared, replacing its earlier ones.
    pub fn made_ready(&mut self, driver: &str, devices: Vec<ClaimDevice>) {
        let some = |list: Vec<String>| Some(list).filter(|l| !l.is_empty());
        let device = |d: ClaimDevice| ReadyDevice {
            pool_name: d.pool_name,
            device_name: d.device_name,
            share_id: d.share_id,
            request_names: some(d.request_names),
            cdi_device_ids: some(d.cdi_device_ids),
        };
        let of_driver = self.drivers.entry(driver.to_owned()).or_default();
        of_driver.devices = Some(devices.into_iter().map(device).collect());
    }

    /// Returns the devices of one request, or of all for `None`. A request that was satisfied by an alternative matches
    /// `REQUEST/ALTERNATIVE`.
    pub fn devices(&self, request: Option<&str>) -> impl Iterator<Item = (&str, &ReadyDevice)> {
        let all = self.drivers.iter();
        let all = all.flat_map(|(driver, s)| s.devices.iter().flatten().map(move |d| (driver.as_str(), d)));
        let is_for = |named: &String, request: &str| named.split('/').next() == Some(request);
        all.filter(move |(_, d)| match (request, &d.request_names) {
            (Some(request), Some(names)) => names.iter().any(|n| is_for(n, request)),
            _ => true,
        })
    }
}

/// Returns a pod's claims: name in the pod, name of the claim, and whether the claim was generated for this pod. Claims that are not needed
/// are omitted.
///
/// # Errors
/// A claim was not generated yet.
pub fn claims_of(pod: &Pod) -> Result<Vec<(String, String, bool)>, String> {
    let spec = pod.spec.as_ref();
    let made = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_ref());
    let mut out = Vec::new();
    for c in spec.iter().flat_map(|s| s.resource_claims.iter().flatten()) {
        if let Some(name) = &c.resource_claim_name {
            out.push((c.name.clone(), name.clone(), false));
            continue;
        }
        let found = made.into_iter().flatten().find(|s| s.name == c.name);
        let found = found.ok_or_else(|| {
            let name = pod::name(pod);
            format!("pod {name:?}: pod claim {:?}: ResourceClaim not created yet", c.name)
        })?;
        out.extend(found.resource_claim_name.clone().map(|name| (c.name.clone(), name, true)));
    }
    Ok(out)
}

/// Returns the claim that was generated for the pod's extended resources.
pub fn extended_claim_of(pod: &Pod) -> Option<&str> {
    let extended = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(extended.resource_claim_name.as_str())
}

/// Returns the claims that a container uses: name of the claim, and the request if one is named.
///
/// # Errors
/// As for [`claims_of`].
pub fn used_by(pod: &Pod, c: &Container) -> Result<Vec<(String, Option<String>)>, String> {
    let claims = claims_of(pod)?;
    let mut out = Vec::new();
    for used in c.resources.iter().flat_map(|r| r.claims.iter().flatten()) {
        let found = claims.iter().find(|(own, ..)| *own == used.name);
        let request = used.request.clone().filter(|r| !r.is_empty());
        out.extend(found.map(|(_, claim, _)| (claim.clone(), request)));
    }
    let extended = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    if let Some(e) = extended {
        let of_it = e.request_mappings.iter().filter(|m| m.container_name == c.name);
        out.extend(of_it.map(|m| (e.resource_claim_name.clone(), Some(m.request_name.clone()))));
    }
    Ok(out)
}

/// Checks that the pod may use the claim.
///
/// # Errors
/// Why it may not.
pub fn may_use(pod: &Pod, claim: &ResourceClaim, made_for_it: bool) -> Result<(), String> {
    let (uid, name) = (pod::uid(pod), pod::name(pod));
    let meta = &claim.metadata;
    let (claim_name, claim_uid) = (meta.name.as_deref().unwrap_or_default(), meta.uid.as_deref().unwrap_or_default());
    let owns =
        |o: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| o.controller == Some(true) && o.uid == uid;
    if made_for_it && !meta.owner_references.iter().flatten().any(owns) {
        return Err(format!("ResourceClaim {claim_name} was not created for pod {name} (pod is not owner)"));
    }
    let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_ref());
    if !reserved.into_iter().flatten().any(|r| r.uid == uid) {
        return Err(format!("pod {name} ({uid}) is not allowed to use ResourceClaim {claim_name} ({claim_uid})"));
    }
    Ok(())
}

/// All recorded claims, by namespace and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownClaims(BTreeMap<(String, String), KnownClaim>);

impl KnownClaims {
    /// Creates it from a checkpoint.
    pub fn remembered(all: Vec<KnownClaim>) -> Self {
        Self(all.into_iter().map(|c| ((c.namespace.clone(), c.name.clone()), c)).collect())
    }
    /// Returns all claims.
    pub fn all(&self) -> impl Iterator<Item = &KnownClaim> {
        self.0.values()
    }
    /// Finds a claim by namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&KnownClaim> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }
    /// Finds a claim for modification.
    pub fn get_mut(&mut self, namespace: &str, name: &str) -> Option<&mut KnownClaim> {
        self.0.get_mut(&(namespace.to_owned(), name.to_owned()))
    }

    /// Records that a pod uses a claim. Returns whether its drivers must still prepare it.
    ///
    /// # Errors
    /// Another claim of this name is still recorded.
    pub fn uses(&mut self, pod: &str, claim: KnownClaim) -> Result<bool, String> {
        let known = self.0.entry((claim.namespace.clone(), claim.name.clone())).or_insert_with(|| claim.clone());
        if known.uid != claim.uid {
            return Err(format!(
                "old ResourceClaim with same name {} and different UID {} still exists (previous pod force-deleted?!)",
                claim.name, known.uid
            ));
        }
        known.pods.insert(pod.to_owned(), EmptyObject {});
        Ok(!known.is_ready)
    }

    /// Removes a pod from the claims that other pods use too. Returns the claims that only this pod uses; they stay recorded until their
    /// drivers unprepared them.
    pub fn leave(&mut self, pod: &str) -> Vec<KnownClaim> {
        let mut last = Vec::new();
        for claim in self.0.values_mut().filter(|c| c.pods.contains_key(pod)) {
            if claim.pods.len() > 1 {
                claim.pods.remove(pod);
            } else {
                last.push(claim.clone());
            }
        }
        last
    }

    /// Removes an unprepared claim.
    pub fn remove(&mut self, claim: &KnownClaim) {
        self.0.remove(&(claim.namespace.clone(), claim.name.clone()));
    }

    /// Returns the UIDs of unknown pods that use claims.
    pub fn strangers(&self, known: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let pods = self.0.values().flat_map(|c| c.pods.keys());
        pods.filter(|p| !known(p)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(uid: &str) -> ResourceClaim {
        let results = json!([{"request": "r", "driver": "d", "pool": "p", "device": "x"},
            {"request": "s", "driver": "e", "pool": "p", "device": "y"}]);
        let status = json!({"allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]});
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        let meta = json!({"name": "c", "namespace": "n", "uid": uid, "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": meta, "spec": {}, "status": status})).expect("a claim")
    }

    fn pod(uid: &str) -> Pod {
        let container = json!({"name": "a", "resources": {"claims": [{"name": "own", "request": "r"}]}});
        let spec = json!({"containers": [container, {"name": "b"}], "resourceClaims":
            [{"name": "own", "resourceClaimTemplateName": "t"}, {"name": "none", "resourceClaimTemplateName": "t"}]});
        let status = json!({"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "c"}, {"name": "none"}]});
        let meta = json!({"name": "p", "namespace": "n", "uid": uid});
        serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": status})).expect("a pod")
    }

    #[test]
    fn claims_used_by_a_pod() {
        let p = pod("u");
        assert_eq!(claims_of(&p), Ok(vec![("own".into(), "c".into(), true)]), "one is not needed");
        let c = &p.spec.as_ref().expect("a spec").containers;
        assert_eq!(used_by(&p, &c[0]), Ok(vec![("c".into(), Some("r".into()))]));
        assert_eq!(used_by(&p, &c[1]), Ok(vec![]));
        let bare = Pod { status: None, ..p.clone() };
        assert!(claims_of(&bare).is_err_and(|e| e.contains("ResourceClaim not created yet")));
        assert_eq!(may_use(&p, &claim("1"), true), Ok(()));
        let other = pod("v");
        let why = may_use(&other, &claim("1"), true).expect_err("another's");
        assert_eq!(why, "ResourceClaim c was not created for pod p (pod is not owner)");
        let why = may_use(&other, &claim("1"), false).expect_err("not reserved");
        assert_eq!(why, "pod p (v) is not allowed to use ResourceClaim c (1)");
        assert!(
            KnownClaim::of(&ResourceClaim { status: None, ..claim("1") }).is_err_and(|e| e.ends_with("not allocated"))
        );
    }

    #[test]
    fn a_claim_is_prepared_until_the_last_pod_ended() {
        let of = |uid| KnownClaim::of(&claim(uid)).expect("given");
        let mut all = KnownClaims::default();
        assert_eq!(all.uses("u", of("1")), Ok(true));
        assert_eq!(all.uses("v", of("1")), Ok(true), "it is not prepared yet");
        all.get_mut("n", "c").expect("known").is_ready = true;
        assert_eq!(all.uses("v", of("1")), Ok(false));
        assert!(all.uses("w", of("2")).is_err_and(|e| e.contains("different UID 1 still exists")));
        assert_eq!(all.leave("u"), [], "another uses it");
        assert_eq!(all.strangers(|_| false), BTreeSet::from(["v".to_owned()]));
        let last = all.leave("v");
        assert_eq!(last.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["c"]);
        assert!(all.get("n", "c").is_some(), "till its drivers have answered");
        all.remove(&last[0]);
        assert_eq!(all, KnownClaims::default());
    }

    #[test]
    fn devices_of_a_request() {
        let mut c = KnownClaim::of(&claim("1")).expect("given");
        let device = |name: &str, requests: &[&str]| ClaimDevice {
            request_names: requests.iter().map(|r| (*r).to_owned()).collect(),
            device_name: name.to_owned(),
            cdi_device_ids: vec![format!("d/x={name}")],
            ..ClaimDevice::default()
        };
        c.made_ready("d", vec![device("x", &["r"])]);
        c.made_ready("d", vec![device("x", &["r"]), device("z", &[])]);
        c.made_ready("e", vec![device("y", &["s/first"])]);
        let names = |request| c.devices(request).map(|(_, d)| d.device_name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(None), ["x", "z", "y"]);
        assert_eq!(names(Some("r")), ["x", "z"]);
        assert_eq!(names(Some("s")), ["z", "y"]);
    }
}
