//! An interpreter of the part of nft's language that network policies use. It rejects what the kernel rejects (a
//! missing name, a duplicate element, deleting a set that a rule uses), and decides what happens to the first packet of
//! a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kelson_network_policy::Connection;

/// A table as created by transactions.
#[derive(Clone, Default)]
pub struct Kernel {
    sets: BTreeMap<String, BTreeMap<String, String>>,
    chains: BTreeMap<String, Vec<Vec<String>>>,
    counters: BTreeMap<String, u64>,
}

/// The decision of a chain.
#[derive(PartialEq)]
enum Outcome {
    Accept,
    Drop,
    Return,
}

fn words(line: &str) -> Vec<String> {
    line.replace('{', " { ")
        .replace('}', " } ")
        .replace([',', ';'], " ")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

impl Kernel {
    /// Applies a script as one transaction.
    pub fn apply(&mut self, script: &str) {
        let mut next = self.clone();
        let mut lines = script.lines();
        while let Some(line) = lines.next() {
            let w = words(line);
            let w: Vec<&str> = w.iter().map(String::as_str).collect();
            match w.as_slice() {
                ["add", "table", ..] => {}
                ["delete", "table", ..] => next = Self::default(),
                ["table", _, _, "{"] => next.block(&mut lines),
                ["add", "element", _, _, set, "{", .., "}"] => next.elements(line, set, true),
                ["delete", "element", _, _, set, "{", .., "}"] => next.elements(line, set, false),
                ["flush", "chain", _, _, chain] => next.chains.get_mut(*chain).expect(line).clear(),
                ["delete", "chain", _, _, chain] => {
                    assert!(next.chains.remove(*chain).expect(line).is_empty(), "{line}: not empty");
                    assert!(!next.leads_to(chain), "{line}: an element leads there");
                }
                ["delete", "set", _, _, set] => {
                    assert!(next.sets.remove(*set).is_some(), "{line}: there is none");
                    assert!(!next.names(&format!("@{set}")), "{line}: a rule names it");
                }
                ["delete", "counter", _, _, counter] => {
                    assert!(next.counters.remove(*counter).is_some(), "{line}: there is none");
                    assert!(!next.names(counter), "{line}: a rule names it");
                }
                _ => panic!("nft does not know: {line}"),
            }
        }
        *self = next;
    }

    fn leads_to(&self, chain: &str) -> bool {
        self.sets.values().flat_map(BTreeMap::values).any(|verdict| verdict == &format!("jump {chain}"))
    }

    fn names(&self, word: &str) -> bool {
        self.chains.values().flatten().flatten().any(|w| w == word)
    }

    fn block<'a>(&mut self, lines: &mut impl Iterator<Item = &'a str>) {
        while let Some(line) = lines.next() {
            let w = words(line);
            let w: Vec<&str> = w.iter().map(String::as_str).collect();
            match w.as_slice() {
                ["}"] => return,
                ["map" | "set", name, "{", .., "}"] => _ = self.sets.entry((*name).to_owned()).or_default(),
                ["counter", name, "{", "}"] => _ = self.counters.entry((*name).to_owned()).or_default(),
                ["chain", name, "{"] => {
                    let rules: Vec<_> = lines.by_ref().take_while(|l| l.trim() != "}").map(words).collect();
                    rules.iter().flatten().filter(|w| w.starts_with('@')).for_each(|w| {
                        assert!(self.sets.contains_key(&w[1..]), "{name}: no set {w}");
                    });
                    self.chains.entry((*name).to_owned()).or_default().extend(rules);
                }
                _ => panic!("nft does not know: {line}"),
            }
        }
        panic!("the block does not end");
    }

    fn elements(&mut self, line: &str, set: &str, added: bool) {
        let inside = line.split_once('{').unwrap().1.trim_end_matches([' ', '}']);
        for element in inside.split(',') {
            let (key, data) = element.split_once(" : ").unwrap_or((element, ""));
            if let Some(chain) = data.trim().strip_prefix("jump ") {
                assert!(self.chains.contains_key(chain), "{line}: no chain {chain}");
            }
            let content = self.sets.get_mut(set).unwrap_or_else(|| panic!("{line}: no such set"));
            let key = key.trim().to_owned();
            if added {
                let before = content.insert(key, data.trim().to_owned());
                assert!(before.is_none_or(|b| b == data.trim()), "{line}: another is there");
            } else {
                assert!(content.remove(&key).is_some(), "{line}: there is none");
            }
        }
    }

    /// Reports whether the first packet of a connection is forwarded.
    pub fn forwards(&self, connection: &Connection) -> bool {
        self.run("forward", connection) != Outcome::Drop
    }

    /// Returns the names of everything in the table, to find leftovers.
    pub fn objects(&self) -> BTreeSet<String> {
        self.sets.keys().chain(self.chains.keys()).chain(self.counters.keys()).cloned().collect()
    }

    fn run(&self, chain: &str, c: &Connection) -> Outcome {
        for rule in &self.chains[chain] {
            match self.rule(rule, c) {
                None | Some(Outcome::Return) if chain == "forward" => {}
                None => {}
                Some(outcome) => return outcome,
            }
        }
        Outcome::Return
    }

    /// Returns the decision of a rule; `None` when it does not match or only counts.
    fn rule(&self, rule: &[String], c: &Connection) -> Option<Outcome> {
        let mut w: &[String] = rule;
        let (protocol, port) = c.port.map_or((String::new(), None), |(p, n)| (p.to_string(), Some(n)));
        let side = |word: &str| if word == "saddr" { c.source } else { c.destination };
        loop {
            let words: Vec<&str> = w.iter().take(9).map(String::as_str).collect();
            let (matches, used) = match words.as_slice() {
                [] => return None,
                ["type" | "ct", ..] => return None,
                ["accept", ..] => return Some(Outcome::Accept),
                ["drop", ..] => return Some(Outcome::Drop),
                ["return", ..] => return Some(Outcome::Return),
                ["counter", "name", name, ..] => {
                    assert!(self.counters.contains_key(*name), "no counter {name}");
                    (true, 3)
                }
                ["ip" | "ip6", _, ".", "ip" | "ip6", _, set, ..] => {
                    (self.sets[&set[1..]].contains_key(&format!("{} . {}", c.source, c.destination)), 6)
                }
                ["ip" | "ip6", "daddr", ".", "th", "dport", set, ..] => {
                    let key = port.map(|port| format!("{} . {port}", c.destination));
                    (key.is_some_and(|key| self.sets[&set[1..]].contains_key(&key)), 6)
                }
                ["ip" | "ip6", word, "vmap", map, ..] => {
                    let verdict = self.sets[&map[1..]].get(&side(word).to_string())?;
                    return Some(self.run(verdict.strip_prefix("jump ").unwrap(), c));
                }
                ["ip" | "ip6", word, set, ..] => (has_address(&self.sets[&set[1..]], side(word)), 3),
                ["meta", "l4proto", name, ..] => (protocol == *name, 3),
                [name, "dport", "{", ..] => {
                    let end = w.iter().position(|w| w == "}").unwrap();
                    let within = |range: &String| {
                        let (first, last) = range.split_once('-').unwrap_or((range, range));
                        port.is_some_and(|p| (first.parse().unwrap()..=last.parse().unwrap()).contains(&p))
                    };
                    (protocol == *name && w[3..end].iter().any(within), end + 1)
                }
                _ => panic!("nft does not know: {rule:?}"),
            };
            if !matches {
                return None;
            }
            w = &w[used..];
        }
    }
}

fn has_address(set: &BTreeMap<String, String>, ip: IpAddr) -> bool {
    set.contains_key(&ip.to_string())
        || set
            .keys()
            .filter_map(|k| k.split_once('-'))
            .any(|(first, last)| (first.parse::<IpAddr>().unwrap()..=last.parse::<IpAddr>().unwrap()).contains(&ip))
}
