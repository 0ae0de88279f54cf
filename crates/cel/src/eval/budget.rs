//! How much evaluating may cost, and how long it may take.
use std::time::{Duration, Instant};

/// What one evaluation of one expression may cost (`PerCallLimit` upstream).
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// What all rules of a request, or of a policy binding, may cost together (`RuntimeCELCostBudget` upstream).
pub const REQUEST_BUDGET: u64 = 10_000_000;
/// What all match conditions of a webhook or policy may cost together.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;

/// What a request may still spend. An evaluation is stopped by the limit for one call; that the whole is used up is for the
/// caller to look at after each, because what is said then is the caller's.
#[derive(Clone, Debug)]
pub struct Budget {
    left: u64,
    spent: u64,
    per_call: u64,
    time: Option<Duration>,
    /// When the time ends; it begins when a loop first asks, since nothing else takes any.
    deadline: Option<Instant>,
}

impl Budget {
    /// A budget with the usual limit for one call.
    pub fn new(total: u64) -> Budget {
        Budget { left: total, spent: 0, per_call: PER_CALL_LIMIT, time: None, deadline: None }
    }
    /// With another limit for one call.
    pub fn per_call(self, limit: u64) -> Budget {
        Budget { per_call: limit, ..self }
    }
    /// With a time after which loops end.
    pub fn within(self, time: Duration) -> Budget {
        Budget { time: Some(time), ..self }
    }
    /// What was spent so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }
    /// What is left.
    pub fn left(&self) -> u64 {
        self.left.saturating_sub(self.spent)
    }
    /// Whether more was spent than there was.
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
