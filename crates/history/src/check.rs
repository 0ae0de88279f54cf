//! The check of a history, in one pass over the writes of each register.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use crate::line::{Answer, Call, Line, Version};

struct Operation {
    key: String,
    call: Call,
    called: usize,
    answered: Option<(usize, Answer)>,
}

/// A state of a register: the write that made it, and the earliest time of it.
#[derive(Clone, Debug)]
struct State {
    /// The revision, or 0 if it is not known because a later write hid it.
    revision: u64,
    value: Option<String>,
    /// The line of the call of its write.
    called: usize,
}

/// The operations and the watches of a history.
pub struct History {
    operations: BTreeMap<u64, Operation>,
    lines: Vec<Line>,
}

/// The content of the registers: the revision and the value of each that is not empty.
pub type Registers = BTreeMap<String, Version>;

/// The amount of checked data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The number of operations.
    pub operations: usize,
    /// The number of events of all watchers.
    pub events: usize,
    /// The number of writes without an answer that are known to have happened.
    pub recovered: usize,
}

impl std::ops::AddAssign for Checked {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.events += other.events;
        self.recovered += other.recovered;
    }
}

impl History {
    /// Reads the lines, which are in the order of time.
    ///
    /// # Panics
    /// Two operations have one number, or an answer has no call.
    pub fn new(lines: Vec<Line>) -> Self {
        let mut operations = BTreeMap::new();
        for (at, line) in lines.iter().enumerate() {
            match line {
                Line::Call { id, key, call } => {
                    let operation = Operation { key: key.clone(), call: call.clone(), called: at, answered: None };
                    assert!(operations.insert(*id, operation).is_none(), "two operations are {id}");
                }
                Line::Answer { id, answer } => {
                    let operation =
                        operations.get_mut(id).unwrap_or_else(|| panic!("{id} was answered and not called"));
                    operation.answered = Some((at, answer.clone()));
                }
                Line::Watch { .. } | Line::Event { .. } => {}
            }
        }
        Self { operations, lines }
    }

    /// Checks the history, from the registers before it to the registers after it, which were read while there were no writes.
    ///
    /// # Errors
    /// Returns a description of what no single copy would have answered.
    pub fn check(&self, before: &Registers, after: &Registers) -> Result<Checked, String> {
        let mut checked = Checked { operations: self.operations.len(), ..Checked::default() };
        let mut states: HashMap<&str, Vec<State>> = HashMap::new();
        let mut keys: Vec<&str> = self.operations.values().map(|o| o.key.as_str()).collect();
        keys.extend(before.keys().chain(after.keys()).map(String::as_str));
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let of_key = self.states(key, before.get(key), after.get(key), &mut checked)?;
            states.insert(key, of_key);
        }
        self.order_of_writes()?;
        self.real_time(&states)?;
        self.watches(&states, &mut checked)?;
        Ok(checked)
    }

    /// The states of one register, in order.
    fn states(
        &self,
        key: &str,
        before: Option<&Version>,
        after: Option<&Version>,
        checked: &mut Checked,
    ) -> Result<Vec<State>, String> {
        let first = State { revision: before.map_or(0, |v| v.0), value: before.map(|v| v.1.clone()), called: 0 };
        let mut replay = Replay { key, states: vec![first], lost: self.lost(key), recovered: 0 };
        // All that was observed at a revision, acknowledged or not.
        let mut known: BTreeMap<u64, (Option<String>, Option<&Operation>)> = BTreeMap::new();
        for operation in self.operations.values().filter(|o| o.key == key) {
            match &operation.answered {
                Some((_, Answer::Written(at))) => {
                    let value = if let Call::Put(_, value) = &operation.call { Some(value.clone()) } else { None };
                    let other = known.insert(*at, (value.clone(), Some(operation)));
                    if other.is_some_and(|(seen, writer)| writer.is_some() || seen != value) {
                        return Err(format!("{key} was written twice at {at}"));
                    }
                }
                Some((_, Answer::Found(Some((at, value))))) => {
                    let seen = known.entry(*at).or_insert_with(|| (Some(value.clone()), None));
                    if seen.0.as_ref() != Some(value) {
                        return Err(format!("{key} at {at} is {value} to one and {:?} to another", seen.0));
                    }
                }
                _ => {}
            }
        }
        for line in &self.lines {
            if let Line::Event { revision, key: of, value, .. } = line
                && of == key
            {
                let seen = known.entry(*revision).or_insert_with(|| (value.clone(), None));
                if seen.0 != *value {
                    return Err(format!(
                        "{key} at {revision} is {value:?} to a watcher and {:?} to its writer",
                        seen.0
                    ));
                }
            }
        }
        if let Some((at, value)) = after {
            let seen = known.entry(*at).or_insert_with(|| (Some(value.clone()), None));
            if seen.0.as_ref() != Some(value) {
                return Err(format!("{key} at {at} became {value} from {:?}", seen.0));
            }
        }
        known.retain(|at, (_, writer)| writer.is_some() || before.is_none_or(|v| *at > v.0));
        for (at, (value, writer)) in known {
            match writer {
                Some(operation) => replay.write(at, value, operation)?,
                None => replay.seen(at, value)?,
            }
        }
        replay.end(after)?;
        checked.recovered += replay.recovered;
        Ok(replay.states)
    }

    /// The writes of a key without an answer.
    fn lost(&self, key: &str) -> Vec<&Operation> {
        let lost = |o: &&Operation| o.key == key && o.answered.is_none() && o.call != Call::Read;
        self.operations.values().filter(lost).collect()
    }

    /// Checks that revisions increase from each answered write to each later one.
    fn order_of_writes(&self) -> Result<(), String> {
        let mut floor = 0;
        let mut floors: HashMap<u64, u64> = HashMap::new();
        for line in &self.lines {
            match line {
                Line::Call { id, .. } => drop(floors.insert(*id, floor)),
                Line::Answer { id, answer: Answer::Written(at) } => {
                    if floors.get(id).is_some_and(|floor| at <= floor) {
                        return Err(format!("operation {id} was written at {at}, behind one that was answered before"));
                    }
                    floor = floor.max(*at);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that no answer is older than an answer before its call, or newer than itself.
    fn real_time(&self, states: &HashMap<&str, Vec<State>>) -> Result<(), String> {
        // The earliest state of each key that a later call must see.
        let mut least: HashMap<&str, usize> = HashMap::new();
        let mut begun: HashMap<u64, usize> = HashMap::new();
        for (now, line) in self.lines.iter().enumerate() {
            match line {
                Line::Call { id, key, .. } => {
                    begun.insert(*id, least.get(key.as_str()).copied().unwrap_or(0));
                }
                Line::Answer { id, answer } => {
                    let operation = &self.operations[id];
                    let (key, from) = (operation.key.as_str(), begun[id]);
                    let states = &states[key];
                    let is_it = |state: &State| match answer {
                        Answer::Written(at) => state.revision == *at,
                        Answer::Found(None) => state.value.is_none(),
                        Answer::Found(Some((at, _))) => state.revision == *at && state.value.is_some(),
                        Answer::Rejected => !meets(&operation.call, state),
                    };
                    let first = from + usize::from(matches!(answer, Answer::Written(_)) && from > 0);
                    let Some(index) = (first..states.len()).find(|i| is_it(&states[*i])) else {
                        return Err(format!(
                            "operation {id} on {key}, {answer:?}: older than what was answered before"
                        ));
                    };
                    if states[index].called > now {
                        return Err(format!("operation {id} on {key}, {answer:?}: seen before it was asked for"));
                    }
                    let least = least.entry(key).or_default();
                    *least = (*least).max(index);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that each watcher saw every write from its beginning to its last event, in order, and nothing else.
    fn watches(&self, states: &HashMap<&str, Vec<State>>, checked: &mut Checked) -> Result<(), String> {
        let mut writes: BTreeMap<u64, (&str, &Option<String>)> = BTreeMap::new();
        for (key, states) in states {
            writes.extend(states.iter().skip(1).filter(|s| s.revision > 0).map(|s| (s.revision, (*key, &s.value))));
        }
        // A delete between two writes whose revision was not observed: a watcher from before the first write has missed it.
        let mut unseen: HashMap<u64, u64> = HashMap::new();
        for three in states.values().flat_map(|states| states.windows(3)).filter(|three| three[1].revision == 0) {
            unseen.insert(three[2].revision, three[0].revision);
        }
        let mut at: HashMap<u64, u64> = HashMap::new();
        for line in &self.lines {
            match line {
                Line::Watch { watcher, from } => drop(at.insert(*watcher, *from)),
                Line::Event { watcher, revision, key, value } => {
                    checked.events += 1;
                    let position = at.get_mut(watcher).ok_or("an event of a watcher that never began")?;
                    let next = writes.range(*position + 1..).next();
                    let missed = unseen.get(revision).is_some_and(|written| *position <= *written);
                    if missed || next != Some((revision, &(key.as_str(), value))) {
                        let mut said = format!("watcher {watcher} at {position} saw {key} at {revision}");
                        let _ = write!(said, " and not {next:?}");
                        return Err(said);
                    }
                    *position = *revision;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a register in this state has what an operation expects of it.
fn meets(call: &Call, state: &State) -> bool {
    match call {
        Call::Put(None, _) => state.value.is_none(),
        Call::Put(Some(from), _) | Call::Delete(from) => state.value.is_some() && state.revision == *from,
        Call::Read => true,
    }
}

/// Replays the writes of one register and builds its states.
struct Replay<'a> {
    key: &'a str,
    states: Vec<State>,
    lost: Vec<&'a Operation>,
    recovered: usize,
}

impl<'a> Replay<'a> {
    fn now(&self) -> (u64, bool) {
        let last = &self.states[self.states.len() - 1];
        (last.revision, last.value.is_some())
    }

    fn push(&mut self, revision: u64, value: Option<String>, called: usize) {
        self.states.push(State { revision, value, called });
    }

    /// Applies a write that was answered.
    fn write(&mut self, at: u64, value: Option<String>, operation: &Operation) -> Result<(), String> {
        let key = self.key;
        match operation.call {
            Call::Put(None, _) => self.make_empty(),
            Call::Put(Some(from), _) | Call::Delete(from) if self.now() == (from, true) => Ok(()),
            _ => Err(format!("{:?} of {key} was done at {at}, over {:?}", operation.call, self.now())),
        }?;
        self.push(at, value, operation.called);
        Ok(())
    }

    /// Finds the earliest of the lost writes that fit. What fits it fits all of them.
    fn first_lost(&mut self, is_it: impl Fn(&Operation) -> bool) -> Option<&'a Operation> {
        let of = self.lost.iter().enumerate().filter(|(_, o)| is_it(o));
        let (at, _) = of.min_by_key(|(_, o)| o.called)?;
        self.recovered += 1;
        Some(self.lost.swap_remove(at))
    }

    /// Applies a value or an absence that was observed at a revision without an acknowledged write: a lost write made it.
    fn seen(&mut self, at: u64, value: Option<String>) -> Result<(), String> {
        let now = self.now();
        let wrote = |o: &Operation| match (&o.call, &value) {
            (Call::Put(_, put), Some(value)) => put == value,
            (Call::Delete(from), None) => now == (*from, true),
            _ => false,
        };
        let Some(operation) = self.first_lost(wrote) else {
            return Err(format!(
                "{} is {value:?} at {at}, which no client wrote, or whose write was rejected",
                self.key
            ));
        };
        self.write(at, value, operation)
    }

    /// Inserts a lost delete if the register is not empty and must be.
    fn make_empty(&mut self) -> Result<(), String> {
        let (at, there) = self.now();
        if !there {
            return Ok(());
        }
        let Some(operation) = self.first_lost(|o| o.call == Call::Delete(at)) else {
            return Err(format!("{} at {at} is gone, and no client deleted it", self.key));
        };
        self.push(0, None, operation.called);
        Ok(())
    }

    fn end(&mut self, after: Option<&Version>) -> Result<(), String> {
        match after {
            None => self.make_empty(),
            Some((at, _)) if self.now() == (*at, true) => Ok(()),
            Some((at, _)) => Err(format!("{} ends at {at}, and {:?} was acknowledged after it", self.key, self.now())),
        }
    }
}
