//! Taints of devices, and who tolerates them (KEP-5055).
use serde::{Deserialize, Serialize};

/// `resource.k8s.io/v1` DeviceTaint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaint {
    /// `taints[].key`.
    pub key: String,
    /// `taints[].value`.
    pub value: String,
    /// `NoSchedule`, `NoExecute`, or another that nobody need heed.
    pub effect: String,
    /// RFC 3339; since when pods that use the device are to go.
    pub time_added: Option<String>,
}

/// `resource.k8s.io/v1` DeviceToleration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceToleration {
    /// Empty matches every key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `Exists`, or `Equal`, which empty means.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// `tolerations[].value`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Empty matches every effect.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// How long pods may go on under a taint with `NoExecute`; absent is for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

impl DeviceTaint {
    /// Whether pods that use the device are to go.
    pub fn evicts(&self) -> bool {
        self.effect == "NoExecute"
    }
    /// Whether the device is not to be given to those who do not tolerate this.
    pub fn keeps_away(&self) -> bool {
        self.evicts() || self.effect == "NoSchedule"
    }
}

impl DeviceToleration {
    /// Whether who has this may have a device with that taint.
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
