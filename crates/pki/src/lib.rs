//! Kelson pki: keys, CSRs, certificate authority, kubeconfigs.
