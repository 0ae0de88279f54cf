//! Decisions: cached evaluations, choosing a node, and preemption.
pub mod memo;
pub mod nominations;
pub mod preempt;
pub mod select;
