//! Kelson client: one client, in-process or over the network; informers, queues, events.
