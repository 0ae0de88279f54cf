//! Sets of CPUs in the kernel's list format (`0-2,7`).
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Upper bound of CPU numbers. A larger number is treated as an error in the input.
const CPU_MAX: u32 = 1 << 16;

/// A set of logical CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Returns whether the set contains `cpu`.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }
    /// Iterates in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
    /// Returns the union.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }
    /// Returns the CPUs of `self` that are not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
    /// Returns the intersection.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match runs.last_mut() {
                Some((_, end)) if *end + 1 == cpu => *end = cpu,
                _ => runs.push((cpu, cpu)),
            }
        }
        for (n, (start, end)) in runs.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match start == end {
                true => write!(f, "{comma}{start}")?,
                false => write!(f, "{comma}{start}-{end}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |n: &str| match n.parse::<u32>() {
            Ok(n) if n < CPU_MAX => Ok(n),
            _ => Err(format!("{n:?} is not a valid CPU number")),
        };
        let mut all = BTreeSet::new();
        if text.is_empty() {
            return Ok(Self(all));
        }
        for run in text.split(',') {
            match run.split_once('-') {
                None => drop(all.insert(number(run)?)),
                Some((start, end)) => {
                    let (start, end) = (number(start)?, number(end)?);
                    if start > end {
                        return Err(format!("invalid range {run:?} ({start} > {end})"));
                    }
                    all.extend(start..=end);
                }
            }
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        for (text, shown) in [("", ""), ("3", "3"), ("0-2,7", "0-2,7"), ("7,1,0", "0-1,7"), ("2-2", "2")] {
            assert_eq!(text.parse::<CpuSet>().map(|s| s.to_string()).as_deref(), Ok(shown), "{text}");
        }
        for text in ["a", "1,", "3-1", "-1", "1-", "0-4294967295", " 1", "99999"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }
}
