//! The cost and time limits of evaluation.
use std::time::{Duration, Instant};

/// The cost limit for one evaluation of one expression (`PerCallLimit` upstream).
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// The cost limit for all rules of a request or of a policy binding together (`RuntimeCELCostBudget` upstream).
pub const REQUEST_BUDGET: u64 = 10_000_000;
/// The cost limit for all match conditions of a webhook or policy together.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;

/// The remaining cost budget of a request. The limit for one call stops an evaluation. The caller checks after each evaluation whether
/// the whole budget is exhausted, because the message for that is the caller's.
#[derive(Clone, Debug)]
pub struct Budget {
    left: u64,
    spent: u64,
    per_call: u64,
    time: Option<Duration>,
    /// The end of the time limit. The time starts when a loop first checks it, since only loops take long.
    deadline: Option<Instant>,
}

impl Budget {
    /// Makes a budget with the usual limit for one call.
    pub fn new(total: u64) -> Budget {
        Budget { left: total, spent: 0, per_call: PER_CALL_LIMIT, time: None, deadline: None }
    }
    /// Sets the limit for one call.
    pub fn per_call(self, limit: u64) -> Budget {
        Budget { per_call: limit, ..self }
    }
    /// Sets a time after which loops are stopped.
    pub fn within(self, time: Duration) -> Budget {
        Budget { time: Some(time), ..self }
    }
    /// The cost that was spent so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }
    /// The cost that is left.
    pub fn left(&self) -> u64 {
        self.left.saturating_sub(self.spent)
    }
    /// Whether more was spent than the budget had.
    pub fn is_exhausted(&self) -> bool {
        self.spent > self.left
    }
    pub(crate) fn call_limit(&self) -> u64 {
        self.per_call
    }
    pub(crate) fn pay(&mut self, cost: u64) {
        self.spent = self.spent.saturating_add(cost);
    }
    pub(crate) fn is_late(&mut self) -> bool {
        let Some(time) = self.time else { return false };
        let now = Instant::now();
        now > *self.deadline.get_or_insert(now + time)
    }
}
