//! Tests of the credentials crate from outside: configuration, plugin processes, their shared runs, pulls.

mod concurrency;
mod configuration;
mod processes;
mod pulls;
