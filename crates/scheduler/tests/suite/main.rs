//! Tests of the scheduler against an API server in this process.

mod binds;
mod extenders;
mod requeue;
