//! Validates requests before the search, and determines their classes and numbers of devices.
use super::fault::{ClaimError, RequestName};
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
    pub(super) fn judge(&mut self, claim: usize, requests: &'a [DeviceRequest]) -> Result<(), ClaimError> {
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
            least += counts.min().ok_or_else(|| ClaimError::NoClass(self.named(claim, &request.name)))?;
        }
        if least > RESULTS_MAX {
            let claim = self.wishes[claim].claim.to_owned();
            return Err(ClaimError::TooManyDevices { claim, count: least });
        }
        Ok(())
    }

    fn option(
        &mut self,
        claim: usize,
        at: usize,
        asked: &'a DeviceRequestSpec,
        is_list: bool,
    ) -> Result<Choice<'a>, ClaimError> {
        let request = self.requests[claim][at].name;
        let name = self.named(claim, if is_list { &asked.name } else { request });
        if let Some(index) = asked.selectors.iter().position(String::is_empty) {
            return Err(ClaimError::EmptySelector { at: name, index });
        }
        if asked.device_class_name.is_empty() {
            return Err(ClaimError::NoClass(name));
        }
        let class = asked.device_class_name.as_str();
        let Some(found) = self.allocator.classes.get(class) else {
            return Err(ClaimError::UnknownClass { at: name, class: class.to_owned() });
        };
        let alternative = is_list.then_some(asked.name.as_str());
        let mut option = Choice { asked, alternative, class: found, count: 0, all: None };
        match asked.allocation_mode.as_str() {
            "ExactCount" => {
                let count = usize::try_from(asked.count);
                option.count = count.map_err(|_| ClaimError::CountTooLarge { at: name, count: asked.count })?;
            }
            "All" => {
                let all = self.all_of(claim, &option, &name)?;
                option.count = all.len();
                option.all = Some(all);
            }
            other => return Err(ClaimError::UnknownMode { at: name, mode: other.to_owned() }),
        }
        Ok(option)
    }

    /// Returns every device that matches an option. The pools must be complete, so that no device is missed.
    fn all_of(
        &mut self,
        claim: usize,
        option: &Choice<'a>,
        name: &RequestName,
    ) -> Result<Vec<DevicePosition>, ClaimError> {
        let mut all = Vec::new();
        for p in 0..self.pools.len() {
            let pool = &self.pools[p];
            let state = match pool.state {
                PoolState::Ready => None,
                PoolState::Incomplete => Some("being updated"),
                PoolState::Invalid => Some("invalid"),
            };
            if let Some(state) = state {
                let pool = format!("{}/{}", pool.driver, pool.name);
                return Err(ClaimError::PoolNotReady { at: name.clone(), pool, state });
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
