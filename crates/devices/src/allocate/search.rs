//! The search: it takes one device after the other and returns it, until all requests of all claims are satisfied.
use std::collections::HashMap;

use super::counters::CountersLeft;
use super::fault::{ClaimError, DEVICES_MAX, RequestName};
use super::wish::{Allocator, Choice, ClaimRequest, DevicePosition, Request};
use crate::capacity::{Amounts, share};
use crate::claim::DeviceRequestSpec;
use crate::constraint::Constraint;
use crate::device_id::DeviceId;
use crate::inventory::Host;
use crate::names::RESULTS_MAX;
use crate::pool::{Pool, PoolState};
use crate::slice::{DeviceView, ResourceSliceView};

/// The maximum number of device checks for one pod on one node (upstream stops after ten seconds).
const LOOKS_MAX: usize = 200_000;

/// The position of the search: claim, request, option and number of the device within the option.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    claim: usize,
    request: usize,
    option: usize,
    device: usize,
}

/// The reasons to stop the search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// A claim would exceed its maximum number of devices. Another alternative may need fewer.
    TooMany,
    /// The limit of checks is reached.
    Late,
    /// A claim or class is invalid.
    Fault(ClaimError),
}

/// A device that the search has taken.
#[derive(Debug)]
pub(super) struct Chosen<'a> {
    pub request: &'a str,
    pub alternative: Option<&'a str>,
    pub asked: &'a DeviceRequestSpec,
    pub slice: &'a ResourceSliceView,
    pub device: &'a DeviceView,
    place: DevicePosition,
    /// The consumed capacity, if the device can be shared.
    pub share: Option<Amounts>,
    counted: bool,
}

/// The state of a backtracking search for the devices of all claims of a pod on one node. It holds the requests and
/// constraints, the devices taken so far, and a cache of selector results. A device that leads to no solution is
/// returned, and the next one is tried, up to [`LOOKS_MAX`] checks.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub allocator: Allocator<'a>,
    host: Host<'a>,
    pub pools: Vec<Pool<'a>>,
    pub wishes: &'a [ClaimRequest<'a>],
    /// The requests of each claim.
    pub requests: Vec<Vec<Request<'a>>>,
    /// The constraints on the devices of each claim.
    constraints: Vec<Vec<Constraint<'a>>>,
    /// The devices taken so far, by claim.
    pub chosen: Vec<Vec<Chosen<'a>>>,
    /// The chosen option, by claim and request.
    pub options: Vec<Vec<usize>>,
    /// Whether a device matches an option of a request. The result does not depend on the taken devices.
    verdicts: HashMap<(usize, *const DeviceRequestSpec, DevicePosition), bool>,
    /// The claims that take a device exclusively, or with admin access.
    taking: HashMap<DevicePosition, Vec<usize>>,
    /// The shares of each device that claims take.
    sharing: HashMap<DevicePosition, Vec<Amounts>>,
    counters: CountersLeft<'a>,
    looks: usize,
}

impl<'a> Search<'a> {
    /// Validates all claims and creates the search.
    ///
    /// # Errors
    /// Returns why a claim cannot be satisfied on any node.
    pub fn new(
        allocator: Allocator<'a>,
        host: Host<'a>,
        pools: Vec<Pool<'a>>,
        wishes: &'a [ClaimRequest<'a>],
    ) -> Result<Self, ClaimError> {
        let each = || 0..wishes.len();
        let mut me = Self {
            allocator,
            host,
            pools,
            wishes,
            requests: each().map(|_| Vec::new()).collect(),
            constraints: each().map(|_| Vec::new()).collect(),
            chosen: each().map(|_| Vec::new()).collect(),
            options: Vec::new(),
            verdicts: HashMap::new(),
            taking: HashMap::new(),
            sharing: HashMap::new(),
            counters: CountersLeft::default(),
            looks: 0,
        };
        for (i, wish) in wishes.iter().enumerate() {
            let devices = &wish.spec.devices;
            me.judge(i, &devices.requests)?;
            for (index, constraint) in devices.constraints.iter().enumerate() {
                let empty = || ClaimError::EmptyConstraint { claim: wish.claim.to_owned(), index };
                me.constraints[i].push(Constraint::new(constraint).ok_or_else(empty)?);
            }
            me.options.push(vec![0; devices.requests.len()]);
        }
        Ok(me)
    }

    /// Runs the search and returns whether all claims can be satisfied. The chosen devices are then in `chosen`.
    pub fn run(&mut self) -> Result<bool, Stop> {
        self.next(At::default(), false, DevicePosition::default())
    }

    /// Takes the current device and all after it. `within` means that the option is already chosen. Devices of one
    /// request are tried in rising order from `start`, so that no set of devices is tried twice.
    fn next(&mut self, mut at: At, mut within: bool, mut start: DevicePosition) -> Result<bool, Stop> {
        let mut crossed = false;
        // Completed requests and claims are skipped in a loop, without recursion.
        let is_list = loop {
            let Some(requests) = self.requests.get(at.claim) else { return Ok(true) };
            let Some(request) = requests.get(at.request) else {
                at = At { claim: at.claim + 1, ..At::default() };
                (within, start, crossed) = (false, DevicePosition::default(), true);
                continue;
            };
            if request.is_list && !within {
                break true;
            }
            let option = &request.options[at.option];
            if option.all.as_ref().is_some_and(Vec::is_empty) {
                return Ok(false);
            }
            if at.device < option.count {
                break false;
            }
            at = At { claim: at.claim, request: at.request + 1, ..At::default() };
            (within, start) = (false, DevicePosition::default());
        };
        let done = if is_list { self.alternatives(at) } else { self.device(at, within, start) };
        match done {
            // The error is about a later claim. Other devices for an earlier claim may allow a smaller alternative.
            Err(Stop::TooMany) if crossed => Ok(false),
            other => other,
        }
    }

    fn alternatives(&mut self, at: At) -> Result<bool, Stop> {
        let mut all_too_many = true;
        for option in 0..self.requests[at.claim][at.request].options.len() {
            match self.next(At { option, ..at }, true, DevicePosition::default()) {
                Err(Stop::TooMany) => {}
                Ok(false) => all_too_many = false,
                Ok(true) => {
                    self.options[at.claim][at.request] = option;
                    return Ok(true);
                }
                Err(stop) => return Err(stop),
            }
        }
        if all_too_many { Err(Stop::TooMany) } else { Ok(false) }
    }

    fn device(&mut self, at: At, within: bool, start: DevicePosition) -> Result<bool, Stop> {
        let option = &self.requests[at.claim][at.request].options[at.option];
        if self.chosen[at.claim].len() + option.count - at.device > RESULTS_MAX {
            return Err(Stop::TooMany);
        }
        if self.chosen.iter().map(Vec::len).sum::<usize>() >= DEVICES_MAX {
            let claim = self.wishes[at.claim].claim.to_owned();
            return Err(Stop::Fault(ClaimError::PodTooLarge { claim }));
        }
        let following = At { device: at.device + 1, ..at };
        if let Some(place) = option.all.as_ref().map(|all| all[at.device]) {
            return match self.take(at, place, true)? {
                false => Ok(false),
                true => self.or_give_back(following, within, DevicePosition::default()),
            };
        }
        for pool in start.pool..self.pools.len() {
            if self.pools[pool].state != PoolState::Ready {
                continue;
            }
            let first = if pool == start.pool { start.slice } else { 0 };
            for slice in first..self.pools[pool].slices.len() {
                let again = pool == start.pool && slice == start.slice;
                let devices = self.pools[pool].slices[slice].spec.devices.len();
                for device in if again { start.device } else { 0 }..devices {
                    let place = DevicePosition { pool, slice, device };
                    if !self.take(at, place, false)? {
                        continue;
                    }
                    if self.or_give_back(following, within, DevicePosition { device: device + 1, ..place })? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Continues the search. If it fails, the device that was taken last is returned.
    fn or_give_back(&mut self, at: At, within: bool, start: DevicePosition) -> Result<bool, Stop> {
        let done = self.next(at, within, start);
        if done != Ok(true) {
            self.give_back(at.claim);
        }
        done
    }

    /// Takes a device for a request, if it is available. `must` means that the request needs exactly this device.
    fn take(&mut self, at: At, place: DevicePosition, must: bool) -> Result<bool, Stop> {
        self.looks += 1;
        if self.looks > LOOKS_MAX {
            return Err(Stop::Late);
        }
        let requests = std::mem::take(&mut self.requests);
        let taken = self.take_for(&requests[at.claim][at.request], at, place, must);
        self.requests = requests;
        taken
    }

    fn take_for(&mut self, request: &Request<'a>, at: At, place: DevicePosition, must: bool) -> Result<bool, Stop> {
        let option = &request.options[at.option];
        let (slice, device) = self.at(place);
        let admin = option.is_admin();
        let in_use = if admin {
            !device.is_shared() && self.taking.get(&place).is_some_and(|claims| claims.contains(&at.claim))
        } else {
            self.taking.get(&place).is_some_and(|c| !c.is_empty()) || self.allocator.taken.is_taken(&self.id(place))
        };
        if in_use || !self.suits(at.claim, option, place).map_err(Stop::Fault)? {
            return Ok(false);
        }
        let Some(part) = self.share(option, place) else { return Ok(false) };
        let counted = self.counts(place, device);
        if counted && !self.counters.suffice(place.pool, &self.pools[place.pool], self.allocator.taken, device) {
            return Ok(false);
        }
        let tolerated = |t: &crate::DeviceTaint| option.asked.tolerations.iter().any(|by| by.tolerates(t));
        if device.taints.iter().any(|t| t.keeps_away() && !tolerated(t)) {
            return Ok(false);
        }
        if !self.constrain(at.claim, request.name, option.alternative, &slice.spec.driver, device) {
            if must {
                let name = self.named(at.claim, option.alternative.unwrap_or(request.name));
                return Err(Stop::Fault(ClaimError::Constrained { at: name, device: self.id(place) }));
            }
            return Ok(false);
        }
        let part = device.is_shared().then_some(part);
        match &part {
            Some(part) => self.sharing.entry(place).or_default().push(part.clone()),
            None => self.taking.entry(place).or_default().push(at.claim),
        }
        if counted {
            self.counters.take(place.pool, &self.pools[place.pool], self.allocator.taken, device);
        }
        self.chosen[at.claim].push(Chosen {
            request: request.name,
            alternative: option.alternative,
            asked: option.asked,
            slice,
            device,
            place,
            share: part,
            counted,
        });
        Ok(true)
    }

    fn give_back(&mut self, claim: usize) {
        let Some(chosen) = self.chosen[claim].pop() else { return };
        for c in self.constraints[claim].iter_mut().filter(|c| c.concerns(chosen.request, chosen.alternative)) {
            c.remove();
        }
        if chosen.share.is_some() {
            self.sharing.entry(chosen.place).or_default().pop();
        } else {
            self.taking.entry(chosen.place).or_default().pop();
        }
        if chosen.counted {
            self.counters.give_back(chosen.place.pool, chosen.device);
        }
    }

    /// Returns whether taking a device consumes counters. For a shared device, only the first share does.
    fn counts(&self, place: DevicePosition, device: &DeviceView) -> bool {
        let shared_already = || {
            self.sharing.get(&place).is_some_and(|s| !s.is_empty())
                || self.allocator.taken.consumed(&self.id(place)).is_some()
        };
        !device.consumes_counters.is_empty() && !(device.is_shared() && shared_already())
    }

    fn constrain(
        &mut self,
        claim: usize,
        request: &str,
        alternative: Option<&str>,
        driver: &str,
        device: &DeviceView,
    ) -> bool {
        let constraints = &mut self.constraints[claim];
        for i in 0..constraints.len() {
            let one = &mut constraints[i];
            if !one.concerns(request, alternative) || one.add(device.attribute(driver, one.attribute())) {
                continue;
            }
            constraints[..i].iter_mut().filter(|c| c.concerns(request, alternative)).for_each(Constraint::remove);
            return false;
        }
        true
    }

    /// Returns whether a device matches an option, regardless of other claims.
    pub fn suits(&mut self, claim: usize, option: &Choice<'a>, place: DevicePosition) -> Result<bool, ClaimError> {
        let key = (claim, std::ptr::from_ref(option.asked), place);
        if let Some(known) = self.verdicts.get(&key) {
            return Ok(*known);
        }
        let (slice, device) = self.at(place);
        let (driver, selectors) = (slice.spec.driver.as_str(), self.allocator.selectors);
        let (class, of) = (&option.class.spec.selectors, || format!("class {}", option.class.metadata.name));
        let name = self.wishes[claim].claim;
        let suits = selectors.all_match(class, driver, device, of)?
            && selectors.all_match(&option.asked.selectors, driver, device, || format!("claim {name}"))?
            && (slice.spec.per_device_node_selection != Some(true)
                || self.host.suits(device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref()));
        self.verdicts.insert(key, suits);
        Ok(suits)
    }

    /// Returns the name of a request of a claim, for messages.
    pub fn named(&self, claim: usize, request: &str) -> RequestName {
        RequestName { claim: self.wishes[claim].claim.to_owned(), request: request.to_owned() }
    }

    /// Returns the capacity that an option consumes, if the device has that much left.
    pub fn share(&self, option: &Choice<'a>, place: DevicePosition) -> Option<Amounts> {
        let (_, device) = self.at(place);
        let asked = &option.asked.capacity.requests;
        if device.capacity.is_empty() && asked.is_empty() {
            return Some(Amounts::new());
        }
        let id = self.id(place);
        let mut used: Vec<&Amounts> = self.sharing.get(&place).into_iter().flatten().collect();
        used.extend(self.allocator.taken.consumed(&id));
        share(asked, device, &used)
    }

    fn at(&self, place: DevicePosition) -> (&'a ResourceSliceView, &'a DeviceView) {
        let slice = self.pools[place.pool].slices[place.slice];
        (slice, &slice.spec.devices[place.device])
    }

    fn id(&self, place: DevicePosition) -> DeviceId {
        let (slice, device) = self.at(place);
        let (driver, pool) = (slice.spec.driver.clone(), slice.spec.pool.name.clone());
        DeviceId { driver, pool, device: device.name.clone() }
    }
}
