//! Kelson auth: who are you, may you.
