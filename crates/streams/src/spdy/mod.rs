//! SPDY/3.1 as Kubernetes speaks it: frames and header compression. What the frames mean is left to `mux`.

mod dictionary;
pub mod frame;
pub mod headers;
pub(crate) mod wire;

pub use frame::{Frame, FrameDecoder};
pub use headers::Headers;
