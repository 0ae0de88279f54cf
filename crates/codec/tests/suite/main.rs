//! Tests of the codec's public interface: all encodings of all kinds, negotiation, damaged input.

mod damage;
mod json;
mod kinds;
mod media;
mod normalize;
mod proto;
