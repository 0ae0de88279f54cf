//! Kelson scheduler: queue, cache, filter, score, bind.
