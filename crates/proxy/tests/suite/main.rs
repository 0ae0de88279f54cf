//! Tests of the service proxy from outside: the rules it renders, and what the kernel makes of them.

mod kernel;
mod rules;
