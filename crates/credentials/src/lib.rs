//! Kelson credentials: docker keyring and credential provider plugins.
