//! Kelson controllers: one module per controller.
