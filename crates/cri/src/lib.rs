//! Kelson cri: the container runtime interface: messages and client.
