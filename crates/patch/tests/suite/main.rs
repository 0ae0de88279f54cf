//! Tests of the public interface: strategic merge, apply, managed fields across versions, cost.

mod across;
mod apply;
mod common;
mod cost;
mod strategic;
