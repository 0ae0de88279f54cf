//! Kelson resources: one file per kind: defaults, validation, update rules, subresources, table columns.
