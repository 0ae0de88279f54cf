//! Kelson meta: what every layer shares and no layer owns: Status, GVKs, selectors, quantities, names, time.
