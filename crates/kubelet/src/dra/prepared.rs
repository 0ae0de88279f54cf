//! Which claims are ready on this node, and for which pods. Pure.
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};

use super::messages::{ClaimDevice, ClaimName};
use crate::pod;

/// A device of a claim as its driver described it, in the form that it has on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ReadyDevice {
    /// The pool that has it.
    pub pool_name: String,
    /// Its name there.
    pub device_name: String,
    /// Which share of it.
    #[serde(rename = "ShareID", default)]
    pub share_id: Option<String>,
    /// The requests of the claim that it is for; all where there is none.
    #[serde(default)]
    pub request_names: Option<Vec<String>>,
    /// Names of it in the container device interface.
    #[serde(rename = "CDIDeviceIDs", default)]
    pub cdi_device_ids: Option<Vec<String>>,
}

/// What one driver made ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ReadyByDriver {
    /// The devices that it gives to the claim.
    #[serde(default)]
    pub devices: Option<Vec<ReadyDevice>>,
}

/// A claim that pods of this node use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct KnownClaim {
    /// Which object of this name.
    #[serde(rename = "ClaimUID")]
    pub uid: String,
    /// Its name in the namespace.
    #[serde(rename = "ClaimName")]
    pub name: String,
    /// Where it is.
    pub namespace: String,
    /// Pods that use it; a set is a map of nothings in Go's JSON.
    #[serde(rename = "PodUIDs", default)]
    pub pods: BTreeMap<String, EmptyObject>,
    /// All drivers whose devices were given to it.
    #[serde(rename = "DriverState", default)]
    pub drivers: BTreeMap<String, ReadyByDriver>,
    /// Whether all drivers have made it ready since this kubelet started. What an earlier one had made ready is asked for again.
    #[serde(skip)]
    pub is_ready: bool,
}

/// What stands for each member where Go writes a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyObject {}

impl KnownClaim {
    /// One that was given devices and is not ready yet.
    ///
    /// # Errors
    /// When it was given none.
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

    /// How drivers are told of it.
    pub fn named(&self) -> ClaimName {
        ClaimName { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }

    /// What a driver made ready of it; said again, it takes the place of what was said before.
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

    /// The devices for one of its requests; for all where that is not named. A request that was met by one of several alternatives is
    /// named with it (`REQUEST/ALTERNATIVE`).
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

/// What a pod uses: its own name of each claim, the claim's, and whether that was made for this pod alone. A claim that is not needed
/// has no name.
///
/// # Errors
/// When the claim that is to be made for it is not there yet.
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

/// The claim that was made for resources which the pod asks for as if they were a plugin's.
pub fn extended_claim_of(pod: &Pod) -> Option<&str> {
    let extended = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(extended.resource_claim_name.as_str())
}

/// What a container uses of which claims: the claim's name, and the request where it names one.
///
/// # Errors
/// As of [`claims_of`].
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

/// Whether the claim is the pod's to use.
///
/// # Errors
/// Why it is not.
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

/// All claims that are ready or about to be, by namespace and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownClaims(BTreeMap<(String, String), KnownClaim>);

impl KnownClaims {
    /// What an earlier kubelet knew.
    pub fn remembered(all: Vec<KnownClaim>) -> Self {
        Self(all.into_iter().map(|c| ((c.namespace.clone(), c.name.clone()), c)).collect())
    }
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &KnownClaim> {
        self.0.values()
    }
    /// By namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&KnownClaim> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }
    /// The same, to change.
    pub fn get_mut(&mut self, namespace: &str, name: &str) -> Option<&mut KnownClaim> {
        self.0.get_mut(&(namespace.to_owned(), name.to_owned()))
    }

    /// A pod uses a claim from now on; whether its drivers must be asked to make it ready.
    ///
    /// # Errors
    /// When another claim of this name is ready still.
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

    /// A pod has ended: what others use as well it uses no more; given back are the claims that nobody else uses, which are its own
    /// until their drivers have taken back that they are ready.
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

    /// A claim is ready no more.
    pub fn remove(&mut self, claim: &KnownClaim) {
        self.0.remove(&(claim.namespace.clone(), claim.name.clone()));
    }

    /// Pods that use claims and that nobody knows any more.
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
    fn what_a_pod_uses() {
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
    fn ready_until_the_last_pod_has_left() {
        let of = |uid| KnownClaim::of(&claim(uid)).expect("given");
        let mut all = KnownClaims::default();
        assert_eq!(all.uses("u", of("1")), Ok(true));
        assert_eq!(all.uses("v", of("1")), Ok(true), "nobody has made it ready yet");
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
