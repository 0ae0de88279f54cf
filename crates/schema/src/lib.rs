//! Kelson schema: what every built-in type looks like, as generated data.
