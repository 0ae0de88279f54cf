//! The kinds of failure of a request, and their probabilities.
use std::time::Duration;

use http::Method;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::cut::CutAt;

/// The maximum delay of a slow request.
const SLOW_MAX: Duration = Duration::from_secs(5);
/// The maximum number of frames and the maximum time until a watch is cut.
const CUT_FRAMES_MAX: u32 = 40;
const CUT_AFTER_MAX: Duration = Duration::from_secs(60);

/// A kind of failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request never arrives.
    Refused,
    /// The request is executed and its answer is lost.
    LostAnswer,
    /// The server answers with this code and reason, and does nothing.
    Answer(u16, &'static str),
    /// The request is executed after this delay.
    Slow(Duration),
    /// The request is executed and never answered, which is what its sender sees when it is killed meanwhile.
    Silence,
}

impl Failure {
    /// Another client has written the object meanwhile.
    pub const CONFLICT: Self = Self::Answer(409, "Conflict");
    /// The server is unavailable.
    pub const UNAVAILABLE: Self = Self::Answer(503, "ServiceUnavailable");
}

/// The probability of each fault, from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// The request never arrives.
    pub refused: f64,
    /// The request is executed, its answer is lost.
    pub lost_answer: f64,
    /// The server is busy: 429, 500, 503 or 504.
    pub unavailable: f64,
    /// A write conflicts with another client's: 409.
    pub conflict: f64,
    /// The request is slow.
    pub slow: f64,
    /// A watch ends early: between two events, or inside one.
    pub cut: f64,
    /// An event of a watch, or of the container runtime, is delivered twice.
    pub repeated: f64,
    /// An event of the container runtime is lost. One of a watch cannot be: a watch that loses something ends.
    pub lost_event: f64,
    /// A call of the container runtime fails, before it had an effect or after it was complete.
    pub runtime: f64,
    /// A call of the container runtime is slow.
    pub runtime_slow: f64,
}

impl Rates {
    /// High rates: about one request in ten has a fault.
    pub const BAD: Self = Self {
        refused: 0.02,
        lost_answer: 0.02,
        unavailable: 0.03,
        conflict: 0.03,
        slow: 0.05,
        cut: 0.5,
        repeated: 0.05,
        lost_event: 0.1,
        runtime: 0.05,
        runtime_slow: 0.05,
    };

    pub(super) fn request(&self, rng: &mut StdRng, method: &Method) -> Option<Failure> {
        if rng.random_bool(self.refused) {
            return Some(Failure::Refused);
        }
        if rng.random_bool(self.lost_answer) {
            return Some(Failure::LostAnswer);
        }
        if rng.random_bool(self.unavailable) {
            let all = [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")];
            let (code, reason) = all[rng.random_range(0..all.len())];
            return Some(Failure::Answer(code, reason));
        }
        if matches!(*method, Method::PUT | Method::PATCH) && rng.random_bool(self.conflict) {
            return Some(Failure::CONFLICT);
        }
        rng.random_bool(self.slow).then(|| Failure::Slow(SLOW_MAX.mul_f64(rng.random())))
    }

    pub(super) fn watch(&self, rng: &mut StdRng) -> Option<CutAt> {
        rng.random_bool(self.cut).then(|| CutAt {
            frames: rng.random_range(0..CUT_FRAMES_MAX),
            after: CUT_AFTER_MAX.mul_f64(rng.random()),
            inside: rng.random(),
        })
    }

    /// Returns how many times an event of the container runtime is delivered.
    pub(super) fn times(&self, rng: &mut StdRng) -> usize {
        match (rng.random_bool(self.lost_event), rng.random_bool(self.repeated)) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        }
    }

    pub(super) fn call(&self, rng: &mut StdRng) -> Option<Failure> {
        if rng.random_bool(self.runtime) {
            return Some(if rng.random_bool(0.3) { Failure::LostAnswer } else { Failure::Refused });
        }
        rng.random_bool(self.runtime_slow).then(|| Failure::Slow(SLOW_MAX.mul_f64(rng.random())))
    }
}
