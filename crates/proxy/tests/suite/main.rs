//! Tests of the service proxy: the rendered rules, and their effect in the kernel.

mod kernel;
mod rules;
