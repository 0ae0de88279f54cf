//! The results for the claims: devices, configuration for their drivers, and the nodes where they are usable.
use serde_json::{Map, Value, json};

use super::search::{Chosen, Search};
use super::wish::ClaimRequest;
use crate::inventory::Host;
use crate::names::ALTERNATIVES_MAX;

/// The allocated devices of all claims.
#[derive(Debug)]
pub struct Solution<'a> {
    host: Host<'a>,
    wishes: &'a [ClaimRequest<'a>],
    search: Search<'a>,
}

impl<'a> Solution<'a> {
    pub(super) fn new(host: Host<'a>, wishes: &'a [ClaimRequest<'a>], search: Search<'a>) -> Self {
        Self { host, wishes, search }
    }

    /// Returns a score of the chosen alternatives. Alternatives that a request lists earlier score higher.
    pub fn score(&self) -> i64 {
        let requests = self.search.requests.iter().zip(&self.search.options);
        let lists = requests.flat_map(|(requests, options)| requests.iter().zip(options).filter(|(r, _)| r.is_list));
        lists.map(|(_, option)| ALTERNATIVES_MAX.saturating_sub(*option) as i64).sum()
    }

    /// Returns the `AllocationResult` of each claim. `share_id` creates the UID of each share of a device.
    pub fn results(&self, mut share_id: impl FnMut() -> String) -> Vec<Value> {
        let claims = 0..self.wishes.len();
        claims.map(|claim| self.result(claim, &mut share_id)).collect()
    }

    fn result(&self, claim: usize, share_id: &mut impl FnMut() -> String) -> Value {
        let chosen = &self.search.chosen[claim];
        let results: Vec<Value> = chosen.iter().map(|c| granted(c, share_id)).collect();
        let mut out = json!({"devices": {"results": results}});
        let mut config = self.config_of_classes(claim);
        config.extend(self.config_of_claim(claim));
        if !config.is_empty() {
            out["devices"]["config"] = config.into();
        }
        if let Some(selector) = self.node_selector(chosen) {
            out["nodeSelector"] = selector;
        }
        out
    }

    /// Returns the configuration of each class, once for all requests of the class.
    fn config_of_classes(&self, claim: usize) -> Vec<Value> {
        let mut of_class: Vec<(&str, Vec<String>, &[Value])> = Vec::new();
        for (request, option) in self.search.requests[claim].iter().zip(&self.search.options[claim]) {
            let option = &request.options[*option];
            let (class, name) = (option.class.metadata.name.as_str(), full_name(request.name, option.alternative));
            match of_class.iter_mut().find(|(known, ..)| *known == class) {
                Some((_, requests, _)) => requests.push(name),
                None => of_class.push((class, vec![name], &option.class.spec.config)),
            }
        }
        let each = of_class.iter().flat_map(|(_, requests, config)| config.iter().map(move |c| (requests, c)));
        each.map(|(requests, config)| sourced("FromClass", config, Some(json!(requests)))).collect()
    }

    /// Returns the configuration of the claim that applies to all requests, or to one of the chosen requests.
    fn config_of_claim(&self, claim: usize) -> Vec<Value> {
        let mut out = Vec::new();
        for config in &self.wishes[claim].spec.devices.config {
            let named: Vec<&str> =
                config["requests"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let requests = self.search.requests[claim].iter().zip(&self.search.options[claim]);
            let meant = requests.filter(|(r, option)| {
                let full = full_name(r.name, r.options[**option].alternative);
                named.iter().any(|n| *n == r.name || *n == full)
            });
            let times = if named.is_empty() { 1 } else { meant.count() };
            out.extend((0..times).map(|_| sourced("FromClaim", config, None)));
        }
        out
    }

    /// Returns the node selector for all of the devices, or `None` if they are usable on every node.
    fn node_selector(&self, chosen: &[Chosen<'_>]) -> Option<Value> {
        let (mut fields, mut expressions): (Vec<Value>, Vec<Value>) = Default::default();
        for c in chosen {
            let (slice, device) = (&c.slice.spec, c.device);
            let (name, selector) = if slice.per_device_node_selection == Some(true) {
                (&device.node_name, &device.node_selector)
            } else {
                (&slice.node_name, &slice.node_selector)
            };
            if name.is_some() || device.binds_to_node == Some(true) {
                let here = json!({"key": "metadata.name", "operator": "In", "values": [self.host.name]});
                return Some(json!({"nodeSelectorTerms": [{"matchFields": [here]}]}));
            }
            // Validation allows exactly one term.
            let term = selector.iter().filter_map(|s| s.wire["nodeSelectorTerms"].get(0));
            for term in term {
                for (list, field) in [(&mut fields, "matchFields"), (&mut expressions, "matchExpressions")] {
                    for requirement in term[field].as_array().into_iter().flatten() {
                        if !list.contains(requirement) {
                            list.push(requirement.clone());
                        }
                    }
                }
            }
        }
        let lists = [("matchFields", fields), ("matchExpressions", expressions)];
        let term: Map<String, Value> =
            lists.into_iter().filter(|(_, l)| !l.is_empty()).map(|(name, l)| (name.to_owned(), l.into())).collect();
        (!term.is_empty()).then(|| json!({"nodeSelectorTerms": [term]}))
    }
}

fn full_name(request: &str, alternative: Option<&str>) -> String {
    alternative.map_or_else(|| request.to_owned(), |a| format!("{request}/{a}"))
}

fn sourced(source: &str, config: &Value, requests: Option<Value>) -> Value {
    let mut out = config.clone();
    out["source"] = source.into();
    if let Some(requests) = requests {
        out["requests"] = requests;
    }
    out
}

fn granted(c: &Chosen<'_>, share_id: &mut impl FnMut() -> String) -> Value {
    let mut out = json!({
        "request": full_name(c.request, c.alternative),
        "driver": c.slice.spec.driver, "pool": c.slice.spec.pool.name, "device": c.device.name,
    });
    if c.asked.admin_access == Some(true) {
        out["adminAccess"] = true.into();
    }
    if !c.asked.tolerations.is_empty() {
        out["tolerations"] = json!(c.asked.tolerations);
    }
    for (field, list) in [
        ("bindingConditions", &c.device.binding_conditions),
        ("bindingFailureConditions", &c.device.binding_failure_conditions),
    ] {
        if !list.is_empty() {
            out[field] = json!(list);
        }
    }
    if let Some(share) = &c.share {
        out["shareID"] = share_id().into();
        if !share.is_empty() {
            out["consumedCapacity"] = json!(share);
        }
    }
    out
}
