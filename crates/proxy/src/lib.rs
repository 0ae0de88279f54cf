//! Kelson proxy: services to nftables.
