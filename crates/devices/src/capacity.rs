//! The capacity that a request consumes of a device that several claims share (KEP-5075).
use std::collections::BTreeMap;

use kelson_meta::Quantity;

use crate::slice::{DeviceCapacity, DeviceView, RequestPolicy, ValidRange};

/// The amounts by capacity name.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// Returns what a request consumes of a device. Returns `None` if the device lacks the capacity, its policy forbids
/// the amount, or too little is left besides `used`.
pub(crate) fn share(asked: &Amounts, device: &DeviceView, used: &[&Amounts]) -> Option<Amounts> {
    if !asked.keys().all(|name| device.capacity.contains_key(name)) {
        return None;
    }
    let mut out = Amounts::new();
    for (name, capacity) in &device.capacity {
        let amount = amount(asked.get(name).copied(), capacity);
        if capacity.request_policy.as_ref().is_some_and(|policy| violates(amount, policy)) {
            return None;
        }
        let sum = used.iter().filter_map(|u| u.get(name)).fold(amount, |sum, part| sum.plus(*part));
        if sum > capacity.value {
            return None;
        }
        out.insert(name.clone(), amount);
    }
    Some(out)
}

fn amount(asked: Option<Quantity>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(asked) = asked else {
        return policy.and_then(|p| p.default).unwrap_or(capacity.value);
    };
    match policy {
        Some(RequestPolicy { valid_range: Some(range @ ValidRange { min: Some(min), .. }), .. }) => {
            stepped(asked, *min, range.step)
        }
        Some(policy) => policy.valid_values.iter().copied().find(|v| asked <= *v).unwrap_or(asked),
        None => asked,
    }
}

/// Rounds up to a whole number of steps above the minimum.
fn stepped(asked: Quantity, min: Quantity, step: Option<Quantity>) -> Quantity {
    if asked < min {
        return min;
    }
    let Some(step) = step.map(Quantity::value).filter(|s| *s > 0) else { return asked };
    let above = asked.value().saturating_sub(min.value());
    let steps = above.div_euclid(step) + i64::from(above.rem_euclid(step) != 0);
    Quantity::binary(min.value().saturating_add(step.saturating_mul(steps)))
}

fn violates(amount: Quantity, policy: &RequestPolicy) -> bool {
    if policy.default == Some(amount) {
        return false;
    }
    if let Some(range) = &policy.valid_range {
        let min = range.min.unwrap_or_default().value();
        let off = |step: i64| step > 0 && amount.value().saturating_sub(min).rem_euclid(step) != 0;
        return range.max.is_some_and(|max| amount > max) || range.step.is_some_and(|s| off(s.value()));
    }
    !policy.valid_values.is_empty() && !policy.valid_values.contains(&amount)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(policy: Value, asked: Option<&str>, used: &[&str], expected: Option<&str>) {
        let device = json!({"name": "d", "capacity": {"memory": {"value": "10Gi", "requestPolicy": policy}}});
        let device: DeviceView = serde_json::from_value(device).unwrap();
        let of = |amount: &str| Amounts::from([("memory".to_owned(), amount.parse().unwrap())]);
        let used: Vec<Amounts> = used.iter().map(|u| of(u)).collect();
        let got = share(&asked.map(of).unwrap_or_default(), &device, &used.iter().collect::<Vec<_>>());
        assert_eq!(got.map(|a| a["memory"].to_string()).as_deref(), expected, "{policy} {asked:?} {used:?}");
    }

    #[test]
    fn shares_of_a_capacity() {
        let range = json!({"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "2Gi"}});
        let values = json!({"default": "2Gi", "validValues": ["2Gi", "4Gi"]});
        for (policy, asked, used, expected) in [
            (Value::Null, None, &[][..], Some("10Gi")),
            (Value::Null, None, &["1Gi"][..], None),
            (Value::Null, Some("4Gi"), &["1Gi", "5Gi"][..], Some("4Gi")),
            (Value::Null, Some("4Gi"), &["1Gi", "6Gi"][..], None),
            (range.clone(), None, &["9Gi"][..], Some("1Gi")),
            (range.clone(), Some("500Mi"), &[][..], Some("1Gi")),
            (range.clone(), Some("3500Mi"), &[][..], Some("5Gi")),
            (range.clone(), Some("7Gi"), &[][..], Some("7Gi")),
            (range, Some("8Gi"), &[][..], None),
            (values.clone(), None, &[][..], Some("2Gi")),
            (values.clone(), Some("3Gi"), &[][..], Some("4Gi")),
            (values, Some("5Gi"), &[][..], None),
        ] {
            check(policy, asked, used, expected);
        }
        let device: DeviceView = serde_json::from_value(json!({"name": "d"})).unwrap();
        let cores = Amounts::from([("cores".to_owned(), "1".parse().unwrap())]);
        assert_eq!(share(&cores, &device, &[]), None, "a capacity that the device has not");
    }
}
