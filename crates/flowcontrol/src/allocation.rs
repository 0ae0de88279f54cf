//! The allocation of the server's seats to priority levels. The same factor scales the targets of all levels, within
//! the bounds of each level.

/// The bounds and the target of one level's seats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Want {
    pub min: f64,
    pub max: f64,
    /// The wanted number of seats; the allocation keeps it between the bounds.
    pub target: f64,
}

/// The minimum target, which avoids division by zero.
const TARGET_MIN: f64 = 0.001;

/// Returns the seats of each level and the factor, or `None` if the bounds cannot be met. `sum` is the number of seats
/// of all levels together.
pub fn allocate(sum: f64, wants: &[Want]) -> Option<(Vec<f64>, f64)> {
    let target = |w: &Want| w.target.max(TARGET_MIN);
    let at = |factor: f64| wants.iter().map(move |w| (factor * target(w)).clamp(w.min, w.max.max(w.min)));
    let total = |factor: f64| at(factor).sum::<f64>();
    // The total grows linearly with the factor between the factors at which a level reaches a bound.
    let mut bounds: Vec<f64> = wants.iter().flat_map(|w| [w.min / target(w), w.max / target(w)]).collect();
    bounds.sort_by(f64::total_cmp);
    const EPSILON: f64 = 1e-7;
    let (first, last) = (*bounds.first()?, *bounds.last()?);
    if total(0.0) > sum + EPSILON || total(last) < sum - EPSILON {
        return None;
    }
    let mut low = first.min(0.0);
    for high in bounds {
        let (below, above) = (total(low), total(high));
        if above >= sum {
            let factor = if above - below > EPSILON {
                low + (high - low) * (sum - below).max(0.0) / (above - below)
            } else {
                high
            };
            return Some((at(factor).collect(), factor));
        }
        low = high;
    }
    Some((at(last).collect(), last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sum: f64, wants: &[(f64, f64, f64)], expected: Option<&[f64]>) {
        let wants: Vec<Want> = wants.iter().map(|&(min, target, max)| Want { min, max, target }).collect();
        let got = allocate(sum, &wants).map(|(seats, _)| seats);
        match (&got, expected) {
            (None, None) => {}
            (Some(got), Some(expected)) if got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6) => {}
            _ => panic!("{sum} among {wants:?}: {got:?}, not {expected:?}"),
        }
    }

    #[test]
    fn shares() {
        check(30.0, &[(0.0, 10.0, 100.0), (0.0, 20.0, 100.0)], Some(&[10.0, 20.0]));
        check(60.0, &[(0.0, 10.0, 100.0), (0.0, 20.0, 100.0)], Some(&[20.0, 40.0]));
        check(60.0, &[(0.0, 10.0, 15.0), (0.0, 20.0, 100.0)], Some(&[15.0, 45.0]));
        check(20.0, &[(15.0, 15.0, 20.0), (0.0, 30.0, 100.0)], Some(&[15.0, 5.0]));
        check(10.0, &[(0.0, 0.0, 10.0), (0.0, 0.0, 10.0)], Some(&[5.0, 5.0]));
        check(5.0, &[(3.0, 3.0, 9.0), (2.0, 2.0, 9.0)], Some(&[3.0, 2.0]));
        check(18.0, &[(3.0, 3.0, 9.0), (2.0, 2.0, 9.0)], Some(&[9.0, 9.0]));
        check(4.0, &[(3.0, 3.0, 9.0), (2.0, 2.0, 9.0)], None);
        check(19.0, &[(3.0, 3.0, 9.0), (2.0, 2.0, 9.0)], None);
    }
}
