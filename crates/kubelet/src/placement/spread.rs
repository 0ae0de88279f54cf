//! Distribution of a container's CPUs over several NUMA nodes. Pure.
use std::collections::BTreeMap;

use super::numa::combinations;

/// Standard deviation of the free CPUs, rounded to three decimal places.
fn deviation(left: &BTreeMap<u32, usize>) -> f64 {
    let to_three = |x: f64| (x * 1000.0).round() / 1000.0;
    let values: Vec<f64> = left.values().map(|n| *n as f64).collect();
    let count = values.len() as f64;
    let mean = to_three(values.iter().sum::<f64>() / count);
    to_three((values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt())
}

/// Selects `count` NUMA nodes that give the same number each, and those of them that give the remainder, group by group, such that the free
/// CPUs are most even. `None` if that is impossible.
pub fn best(
    nodes: &[u32],
    left: &BTreeMap<u32, usize>,
    (wanted, group): (usize, usize),
    count: usize,
) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut best: Option<(f64, Vec<u32>, Vec<u32>)> = None;
    combinations(nodes, count, &mut |chosen| {
        if best.as_ref().is_some_and(|(balance, ..)| *balance == 0.0) {
            return false;
        }
        let each = wanted / chosen.len() / group * group;
        let groups: usize = chosen.iter().map(|n| left[n] / group).sum();
        if groups * group < wanted || chosen.iter().any(|n| left[n] < each) {
            return true;
        }
        let mut after = left.clone();
        chosen.iter().for_each(|n| *after.entry(*n).or_default() -= each);
        let remainder = wanted - each * chosen.len();
        let found =
            if remainder == 0 { Some((deviation(&after), Vec::new())) } else { rest(chosen, &after, remainder, group) };
        if let Some((balance, rest)) = found
            && best.as_ref().is_none_or(|(b, ..)| balance < *b)
        {
            best = Some((balance, chosen.to_vec(), rest));
        }
        true
    });
    best.map(|(_, chosen, rest)| (chosen, rest))
}

/// Selects the nodes that give the remainder, such that the free CPUs are most even; nodes with more free CPUs first.
fn rest(chosen: &[u32], after: &BTreeMap<u32, usize>, remainder: usize, group: usize) -> Option<(f64, Vec<u32>)> {
    let able: Vec<u32> = chosen.iter().copied().filter(|n| after[n] >= group).collect();
    let mut best: Option<(f64, Vec<u32>)> = None;
    for size in (1..=able.len()).rev() {
        combinations(&able, size, &mut |some| {
            let (mut after, mut remainder) = (after.clone(), remainder);
            if some.iter().map(|n| after[n] / group).sum::<usize>() * group < remainder {
                return true;
            }
            while remainder > 0 {
                for node in some {
                    let of_it = after.entry(*node).or_default();
                    if remainder > 0 && *of_it >= group {
                        *of_it -= group;
                        remainder = remainder.saturating_sub(group);
                    }
                }
            }
            let balance = deviation(&after);
            if best.as_ref().is_none_or(|(b, _)| balance < *b) {
                best = Some((balance, some.to_vec()));
            }
            true
        });
    }
    best
}
