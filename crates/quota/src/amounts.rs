//! Amounts by the resource names of quotas (`requests.cpu`, `count/jobs.batch`).
use std::collections::BTreeMap;

use kelson_meta::Quantity;
use kelson_meta::tree::entries;
use serde_json::{Value, json};

/// A quantity for each resource name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Amounts(pub BTreeMap<String, Quantity>);

impl Amounts {
    /// Parses a resource list. Invalid quantities are left out.
    pub fn read(list: &Value) -> Self {
        let parse = |(name, v): (&String, &Value)| {
            let quantity = match v {
                Value::String(s) => s.parse().ok()?,
                Value::Number(n) => n.to_string().parse().ok()?,
                _ => return None,
            };
            Some((name.clone(), quantity))
        };
        Self(entries(list).filter_map(parse).collect())
    }

    /// Converts the amounts to a resource list.
    pub fn to_value(&self) -> Value {
        self.0.iter().map(|(k, v)| (k.clone(), json!(v.to_string()))).collect::<serde_json::Map<_, _>>().into()
    }

    /// Creates amounts of one for each of the names.
    pub fn one_each(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|n| (n, Quantity::from_i64(1))).collect())
    }

    /// Sets the amount of a name.
    pub fn set(&mut self, name: impl Into<String>, amount: Quantity) {
        self.0.insert(name.into(), amount);
    }

    /// Adds the amounts of each name.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let sum = self.0.get(name).copied().unwrap_or_default().plus(*amount);
            self.0.insert(name.clone(), sum);
        }
    }

    /// Raises each amount to at least the amount in `other`.
    pub fn raise_to(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let slot = self.0.entry(name.clone()).or_insert(*amount);
            if *slot < *amount {
                *slot = *amount;
            }
        }
    }

    /// Returns by how much each amount exceeds that in `other`. Smaller amounts count as zero.
    pub fn over(&self, other: &Self) -> Self {
        let rest = |(name, amount): (&String, &Quantity)| {
            let less = other.0.get(name).copied().unwrap_or_default();
            let rest = amount.minus(less);
            (name.clone(), if rest.signum() < 0 { Quantity::default() } else { rest })
        };
        Self(self.0.iter().map(rest).collect())
    }

    /// Returns the amounts whose names satisfy `keep`.
    pub fn only(&self, keep: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(name, _)| keep(name)).map(|(name, amount)| (name.clone(), *amount)).collect())
    }

    /// Returns the amounts that are not zero.
    pub fn not_zero(&self) -> Self {
        Self(self.0.iter().filter(|(_, amount)| !amount.is_zero()).map(|(n, a)| (n.clone(), *a)).collect())
    }

    /// Returns the resource names in sorted order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Formats the amounts for messages as `name=amount,name=amount`.
    pub fn words(&self) -> String {
        self.0.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
    }
}
