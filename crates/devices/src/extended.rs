//! Extended resources that device classes provide (KEP-5004). The requests of a pod's containers become the requests
//! of one claim, with a mapping from container to request.
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::claim::{ClaimSpec, DeviceClaim, DeviceRequest, DeviceRequestSpec};
use crate::names::IMPLICIT_EXTENDED_RESOURCE;

/// The request of a container for one extended resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExtendedAsk {
    /// The index of the container, counted over init containers and then containers.
    pub index: usize,
    /// The name of the container.
    pub container: Box<str>,
    /// Whether the container ends before later ones start, so that they can use its devices.
    pub passes: bool,
    /// The name of the resource.
    pub resource: Box<str>,
    /// The index of the resource among the requests of the container, sorted by name.
    pub place: usize,
    /// The number of devices.
    pub count: i64,
}

/// Returns whether a name is an extended resource, which device drivers may provide.
pub fn is_extended(name: &str) -> bool {
    name.starts_with(IMPLICIT_EXTENDED_RESOURCE)
        || (name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests."))
}

/// The claim for all extended resources of a pod that device classes provide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedClaim {
    requests: Vec<ClassRequest>,
    mappings: Vec<Mapping>,
}

/// A number of devices of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClassRequest {
    name: String,
    class: String,
    count: i64,
}

/// The request whose devices a container uses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    container: Box<str>,
    resource: Box<str>,
    request: String,
}

impl ExtendedClaim {
    /// Creates the claim for the resources with a class in `classes`. `asks` must be in the order of the containers.
    pub fn new(asks: &[ExtendedAsk], classes: &BTreeMap<Box<str>, String>) -> Self {
        let mut out = Self::default();
        for (resource, class) in classes {
            out.add(asks.iter().filter(|a| a.resource == *resource && a.count > 0).collect(), class);
        }
        out.requests.sort_by(|a, b| a.name.cmp(&b.name));
        out
    }

    /// Adds the requests for one resource. Concurrent containers get different devices. A container that ends before
    /// later ones start uses their devices. Only what it needs beyond them is requested, once for all such containers.
    fn add(&mut self, asks: Vec<&ExtendedAsk>, class: &str) {
        let own = |a: &ExtendedAsk, count: i64| ClassRequest {
            name: format!("container-{}-request-{}", a.index, a.place),
            class: class.to_owned(),
            count,
        };
        let mapping = |a: &ExtendedAsk, request: &str| Mapping {
            container: a.container.clone(),
            resource: a.resource.clone(),
            request: request.to_owned(),
        };
        let (passing, staying): (Vec<&ExtendedAsk>, Vec<&ExtendedAsk>) = asks.into_iter().partition(|a| a.passes);
        let stays: Vec<(usize, ClassRequest)> = staying.iter().map(|a| (a.index, own(a, a.count))).collect();
        self.mappings.extend(staying.iter().zip(&stays).map(|(a, (_, wanted))| mapping(a, &wanted.name)));
        let (mut shared, mut beyond) = (Vec::new(), Vec::new());
        for a in passing {
            let mut had = 0;
            for (_, wanted) in stays.iter().filter(|(index, _)| *index >= a.index) {
                if had >= a.count {
                    break;
                }
                had += wanted.count;
                shared.push((a, Some(wanted.name.clone())));
            }
            if had < a.count {
                beyond.push(own(a, a.count - had));
                shared.push((a, None));
            }
        }
        // Takes the first of the containers with the largest request.
        let most = beyond.into_iter().reduce(|most, next| if next.count > most.count { next } else { most });
        let name_of_most = most.as_ref().map_or("", |m| m.name.as_str());
        self.mappings.extend(shared.iter().map(|(a, of)| mapping(a, of.as_deref().unwrap_or(name_of_most))));
        self.requests.extend(most);
        self.requests.extend(stays.into_iter().map(|(_, wanted)| wanted));
    }

    /// Returns whether the claim has no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the claim in the form for the allocator.
    pub fn spec(&self) -> ClaimSpec {
        let one = |w: &ClassRequest| DeviceRequest {
            name: w.name.clone(),
            exactly: Some(DeviceRequestSpec {
                device_class_name: w.class.clone(),
                allocation_mode: "ExactCount".into(),
                count: w.count,
                ..DeviceRequestSpec::default()
            }),
            first_available: Vec::new(),
        };
        let requests = self.requests.iter().map(one).collect();
        ClaimSpec { devices: DeviceClaim { requests, ..DeviceClaim::default() } }
    }

    /// Returns the value for `spec.devices.requests`.
    pub fn requests(&self) -> Value {
        let one = |w: &ClassRequest| {
            let exactly = json!({"deviceClassName": w.class, "allocationMode": "ExactCount", "count": w.count});
            json!({"name": w.name, "exactly": exactly})
        };
        self.requests.iter().map(one).collect()
    }

    /// Returns the value for the pod's `status.extendedResourceClaimStatus.requestMappings`.
    pub fn mappings(&self) -> Value {
        let one =
            |m: &Mapping| json!({"containerName": m.container, "resourceName": m.resource, "requestName": m.request});
        self.mappings.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(index: usize, passes: bool, resource: &str, count: i64) -> ExtendedAsk {
        let container = format!("c{index}").into();
        ExtendedAsk { index, container, passes, resource: resource.into(), place: 1, count }
    }

    fn shown(claim: &ExtendedClaim) -> (Vec<String>, Vec<String>) {
        let request = |w: &ClassRequest| format!("{} {}x{}", w.name, w.count, w.class);
        let mapping = |m: &Mapping| format!("{}: {} by {}", m.container, m.resource, m.request);
        (claim.requests.iter().map(request).collect(), claim.mappings.iter().map(mapping).collect())
    }

    fn classes(of: &[(&str, &str)]) -> BTreeMap<Box<str>, String> {
        of.iter().map(|(resource, class)| ((*resource).into(), (*class).to_owned())).collect()
    }

    #[test]
    fn containers_side_by_side_have_their_own() {
        let asks = [ask(0, false, "a/b", 2), ask(1, false, "a/b", 1), ask(1, false, "x/y", 4), ask(2, false, "a/b", 0)];
        let (requests, mappings) = shown(&ExtendedClaim::new(&asks, &classes(&[("a/b", "gpu")])));
        assert_eq!(requests, ["container-0-request-1 2xgpu", "container-1-request-1 1xgpu"], "x/y has no class");
        assert_eq!(mappings, ["c0: a/b by container-0-request-1", "c1: a/b by container-1-request-1"]);
    }

    #[test]
    fn those_that_pass_use_what_comes_after_them() {
        let asks = [
            ask(0, true, "a/b", 1),
            ask(1, true, "a/b", 5),
            ask(2, true, "a/b", 7),
            ask(3, false, "a/b", 2),
            ask(4, false, "a/b", 1),
        ];
        let (requests, mappings) = shown(&ExtendedClaim::new(&asks, &classes(&[("a/b", "gpu")])));
        let expected = ["container-2-request-1 4xgpu", "container-3-request-1 2xgpu", "container-4-request-1 1xgpu"];
        assert_eq!(requests, expected, "of what the passing ones want beyond the others', the most");
        let of = |c: &str, r: usize| format!("{c}: a/b by container-{r}-request-1");
        let expected = [
            of("c3", 3),
            of("c4", 4),
            of("c0", 3),
            of("c1", 3),
            of("c1", 4),
            of("c1", 2),
            of("c2", 3),
            of("c2", 4),
            of("c2", 2),
        ];
        assert_eq!(mappings, expected);
    }

    #[test]
    fn a_sidecar_before_it_is_not_for_one_that_passes() {
        let asks = [ask(0, false, "a/b", 1), ask(1, true, "a/b", 1)];
        let (requests, _) = shown(&ExtendedClaim::new(&asks, &classes(&[("a/b", "gpu")])));
        assert_eq!(requests, ["container-0-request-1 1xgpu", "container-1-request-1 1xgpu"]);
    }

    #[test]
    fn names_that_drivers_may_stand_for() {
        for (name, expected) in [
            ("example.com/gpu", true),
            ("deviceclass.resource.kubernetes.io/gpu", true),
            ("kubernetes.io/gpu", false),
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("requests.example.com/gpu", false),
        ] {
            assert_eq!(is_extended(name), expected, "{name}");
        }
    }
}
