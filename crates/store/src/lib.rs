//! Kelson store: revisions, watch log and durability.
