//! Kelson kubelet: the node agent.
