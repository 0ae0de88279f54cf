//! Validates requests before the search, and determines their classes and numbers of devices.
use super::search::Search;
use super::wish::{Choice, DevicePosition, Request};
use crate::claim::{DeviceRequest, DeviceRequestSpec};
use crate::names::RESULTS_MAX;
use crate::pool::PoolState;

impl<'a> Search<'a> {
    /// Validates the requests of a claim.
    ///
    /// # Errors
    /// Returns why the claim cannot be satisfied on any node.
    pub(super) fn judge(&mut self, claim: usize, requests: &'a [DeviceRequest]) -> Result<(), String> {
        let mut least = 0;
        for request in requests {
            let is_list = !request.first_available.is_empty();
            let asked: Vec<&DeviceRequestSpec> = match &request.exactly {
                Some(exactly) if !is_list => vec![exactly],
                _ => request.first_available.iter().collect(),
            };
            let at = self.requests[claim].len();
            self.requests[claim].push(Request { name: &request.name, is_list, options: Vec::new() });
            for asked in asked {
                let option = self.option(claim, at, asked, is_list)?;
                self.requests[claim][at].options.push(option);
            }
            let counts = self.requests[claim][at].options.iter().map(|o| o.count);
            let fewest = counts.min().ok_or_else(|| {
                let (claim, name) = (self.wishes[claim].claim, &request.name);
                format!("claim {claim}, request {name}: missing device class name (unsupported request type?)")
            })?;
            least += fewest;
        }
        if least > RESULTS_MAX {
            let claim = self.wishes[claim].claim;
            let most = format!("exceeds the claim limit of {RESULTS_MAX}");
            return Err(format!("claim {claim}: number of requested devices {least} {most}"));
        }
        Ok(())
    }

    fn option(
        &mut self,
        claim: usize,
        at: usize,
        asked: &'a DeviceRequestSpec,
        is_list: bool,
    ) -> Result<Choice<'a>, String> {
        let request = self.requests[claim][at].name;
        let name = if is_list { &asked.name } else { request };
        let whose = format!("claim {}, request {name}", self.wishes[claim].claim);
        if let Some(i) = asked.selectors.iter().position(String::is_empty) {
            return Err(format!("{whose}, selector #{i}: CEL expression empty (unsupported selector type?)"));
        }
        if asked.device_class_name.is_empty() {
            return Err(format!("{whose}: missing device class name (unsupported request type?)"));
        }
        let class = asked.device_class_name.as_str();
        let found = self.allocator.classes.get(class).ok_or_else(|| {
            let why = format!("deviceclass.resource.k8s.io \"{class}\" not found");
            format!("{whose}: could not retrieve device class {class}: {why}")
        })?;
        let alternative = is_list.then_some(asked.name.as_str());
        let mut option = Choice { asked, alternative, class: found, count: 0, all: None };
        match asked.allocation_mode.as_str() {
            "ExactCount" => {
                let count = usize::try_from(asked.count);
                option.count = count.map_err(|_| format!("{whose}: exact count {} is too large", asked.count))?;
            }
            "All" => {
                let all = self.all_of(claim, &option, &whose)?;
                option.count = all.len();
                option.all = Some(all);
            }
            other => return Err(format!("{whose}: unsupported count mode {other}")),
        }
        Ok(option)
    }

    /// Returns every device that matches an option. The pools must be complete, so that no device is missed.
    fn all_of(&mut self, claim: usize, option: &Choice<'a>, whose: &str) -> Result<Vec<DevicePosition>, String> {
        let mut all = Vec::new();
        for p in 0..self.pools.len() {
            let pool = &self.pools[p];
            let what = match pool.state {
                PoolState::Ready => None,
                PoolState::Incomplete => Some("being updated"),
                PoolState::Invalid => Some("invalid"),
            };
            if let Some(what) = what {
                let pool = format!("{}/{}", pool.driver, pool.name);
                return Err(format!("{whose}: asks for all devices, but resource pool {pool} is currently {what}"));
            }
            for s in 0..self.pools[p].slices.len() {
                for d in 0..self.pools[p].slices[s].spec.devices.len() {
                    let place = DevicePosition { pool: p, slice: s, device: d };
                    if self.suits(claim, option, place)? && self.share(option, place).is_some() {
                        all.push(place);
                    }
                }
            }
        }
        Ok(all)
    }
}
