//! SPDY/3.1 as Kubernetes uses it: frames and header compression. `mux` handles the frames.

mod dictionary;
pub mod frame;
pub mod headers;
pub(crate) mod wire;

pub use frame::{Frame, FrameDecoder};
pub use headers::Headers;
