//! Kelson net: the pod network: address allocation, bridge, CNI executable.
