//! Address ranges of `ipBlock` rules: the union of blocks less their exceptions, as ranges that do not overlap, which
//! is the form of interval sets in nftables.

use std::net::IpAddr;

use ipnet::IpNet;
use kelson_net::Family;

/// An inclusive range of addresses, as numbers.
type Range = (u128, u128);

/// A set of addresses of one family, as sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ranges(Vec<Range>);

/// Returns the number of an address in its family.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // Numbers of this family come from 32-bit addresses.
        Family::V4 => IpAddr::from(u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes()),
        Family::V6 => IpAddr::from(number.to_be_bytes()),
    }
}

fn range(net: &IpNet) -> Range {
    (number(net.network()), number(net.broadcast()))
}

/// Sorts and joins ranges that overlap or touch.
fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut out: Vec<Range> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match out.last_mut() {
            Some(last) if start <= last.1.saturating_add(1) => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

impl Ranges {
    /// Returns the addresses of `family` in any of the blocks. A block is a network with excluded networks; an
    /// exception only applies to its own block.
    pub fn of_blocks(family: Family, blocks: &[(IpNet, Vec<IpNet>)]) -> Self {
        let mut all = Vec::new();
        for (net, except) in blocks.iter().filter(|(net, _)| Family::of(&net.addr()) == family) {
            let (mut start, end) = range(net);
            let left_out = except.iter().filter(|e| Family::of(&e.addr()) == family).map(range).collect();
            let mut open = true;
            for (from, to) in joined(left_out) {
                if to < start || from > end {
                    continue;
                }
                if from > start {
                    all.push((start, from - 1));
                }
                match to.checked_add(1).filter(|next| *next <= end) {
                    Some(next) => start = next,
                    None => open = false,
                }
            }
            if open {
                all.push((start, end));
            }
        }
        Self(joined(all))
    }

    /// Reports whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether an address of the same family is in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = number(ip);
        let after = self.0.partition_point(|(start, _)| *start <= ip);
        after > 0 && ip <= self.0[after - 1].1
    }

    /// Returns the ranges in nft's format: `10.0.0.0-10.0.0.9`, or a single address.
    pub fn elements(&self, family: Family) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(move |(start, end)| {
            let (first, last) = (address(family, *start), address(family, *end));
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(blocks: &[(&str, &[&str])], expected: &[&str]) {
        let blocks: Vec<(IpNet, Vec<IpNet>)> = blocks
            .iter()
            .map(|(net, except)| (net.parse().unwrap(), except.iter().map(|e| e.parse().unwrap()).collect()))
            .collect();
        for (family, of) in [(Family::V4, '.'), (Family::V6, ':')] {
            let found: Vec<String> = Ranges::of_blocks(family, &blocks).elements(family).collect();
            let wanted: Vec<&str> = expected.iter().copied().filter(|e| e.contains(of)).collect();
            assert_eq!(found, wanted, "{blocks:?}");
        }
    }

    #[test]
    fn exceptions_are_cut_out_and_neighbours_joined() {
        check(&[("10.0.0.0/24", &[])], &["10.0.0.0-10.0.0.255"]);
        check(&[("10.0.0.0/24", &["10.0.0.0/25"])], &["10.0.0.128-10.0.0.255"]);
        check(&[("10.0.0.0/24", &["10.0.0.128/25", "10.0.0.200/32"])], &["10.0.0.0-10.0.0.127"]);
        check(&[("10.0.0.0/30", &["10.0.0.1/32"])], &["10.0.0.0", "10.0.0.2-10.0.0.3"]);
        check(&[("10.0.0.0/24", &["10.0.0.0/24"])], &[]);
        check(&[("10.0.0.0/24", &["10.0.0.0/8"])], &[]);
        check(&[("10.0.0.0/25", &[]), ("10.0.0.128/25", &[])], &["10.0.0.0-10.0.0.255"]);
        check(&[("0.0.0.0/0", &["255.255.255.255/32"])], &["0.0.0.0-255.255.255.254"]);
        check(&[("::/0", &["8000::/1"])], &["::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]);
        check(&[("::/0", &[])], &["::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]);
    }

    #[test]
    fn an_exception_of_one_block_leaves_the_others_whole() {
        check(
            &[("10.0.0.0/24", &["10.0.0.0/25"]), ("10.0.0.0/26", &[])],
            &["10.0.0.0-10.0.0.63", "10.0.0.128-10.0.0.255"],
        );
    }

    #[test]
    fn every_range_contains_its_ends_alone() {
        let block = ("10.0.0.4/30".parse().unwrap(), vec!["10.0.0.5/32".parse().unwrap()]);
        let ranges = Ranges::of_blocks(Family::V4, &[block]);
        let found: Vec<u8> = (0..16).filter(|n| ranges.contains(IpAddr::from([10, 0, 0, *n]))).collect();
        assert_eq!(found, [4, 6, 7]);
    }
}
