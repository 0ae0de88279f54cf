//! Kelson admission: the admission chain and its plugins.
