//! Tests of a component's serving port against an API server in this process.

mod component;
mod rotation;
