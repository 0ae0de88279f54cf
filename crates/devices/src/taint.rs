//! Taints and tolerations of devices (KEP-5055).
use serde::{Deserialize, Serialize};

/// A DeviceTaint of `resource.k8s.io/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaint {
    /// The key of the taint (`taints[].key`).
    pub key: String,
    /// The value of the taint (`taints[].value`).
    pub value: String,
    /// The effect: `NoSchedule`, `NoExecute`, or another value, which is ignored.
    pub effect: String,
    /// The time in RFC 3339 since which pods that use the device are evicted.
    pub time_added: Option<String>,
}

/// A DeviceToleration of `resource.k8s.io/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceToleration {
    /// The key to match. Empty matches every key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The operator: `Exists`, or `Equal`, which is the default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// The value to match (`tolerations[].value`).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The effect to match. Empty matches every effect.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// The seconds for which pods tolerate a `NoExecute` taint. `None` means without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

impl DeviceTaint {
    /// Returns whether the taint evicts pods that use the device.
    pub fn evicts(&self) -> bool {
        self.effect == "NoExecute"
    }
    /// Returns whether the taint prevents allocation to claims that do not tolerate it.
    pub fn keeps_away(&self) -> bool {
        self.evicts() || self.effect == "NoSchedule"
    }
}

impl DeviceToleration {
    /// Returns whether the toleration matches a taint.
    pub fn tolerates(&self, taint: &DeviceTaint) -> bool {
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && match self.operator.as_str() {
                "" | "Equal" => self.value == taint.value,
                "Exists" => true,
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_toleration_tolerates() {
        let taint = DeviceTaint { key: "k".into(), value: "v".into(), effect: "NoSchedule".into(), time_added: None };
        let of = |key: &str, operator: &str, value: &str, effect: &str| DeviceToleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
            toleration_seconds: None,
        };
        for (toleration, want) in [
            (of("k", "Equal", "v", "NoSchedule"), true),
            (of("k", "", "v", ""), true),
            (of("k", "Equal", "w", ""), false),
            (of("", "Exists", "", ""), true),
            (of("k", "Exists", "", "NoExecute"), false),
            (of("l", "Exists", "", ""), false),
            (of("k", "Gt", "v", ""), false),
        ] {
            assert_eq!(toleration.tolerates(&taint), want, "{toleration:?}");
        }
    }
}
