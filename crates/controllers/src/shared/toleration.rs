//! Matching of tolerations with taints. Upstream `component-helpers/scheduling/corev1`.
use crate::views::{Taint, Toleration};

/// Whether a toleration matches a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    if !toleration.effect.is_empty() && toleration.effect != taint.effect {
        return false;
    }
    if !toleration.key.is_empty() && toleration.key != taint.key {
        return false;
    }
    match toleration.operator.as_str() {
        "" | "Equal" => toleration.value == taint.value,
        "Exists" => true,
        "Lt" | "Gt" => match (toleration.value.parse::<i64>(), taint.value.parse::<i64>()) {
            (Ok(limit), Ok(value)) if toleration.operator == "Lt" => value < limit,
            (Ok(limit), Ok(value)) => value > limit,
            _ => false,
        },
        _ => false,
    }
}
