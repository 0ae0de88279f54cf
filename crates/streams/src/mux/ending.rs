//! The transitions that end a connection from either side, in order or not, with all of its streams. `state` has the
//! transitions of single streams.

use tokio::time::Instant;

use super::state::Shared;
use super::table::{Core, End, Phase};
use crate::error::StreamError;

impl Shared {
    /// Starts the orderly end: queued bytes are sent, then the final frame. Received data is discarded.
    pub fn close(&self) {
        let mut core = self.core.lock();
        if core.phase != Phase::Open {
            return;
        }
        let phase = core.begin_close();
        core.active = Instant::now();
        for id in core.streams.keys().copied().collect::<Vec<_>>() {
            if let Some(state) = core.streams.get_mut(&id) {
                state.discard = true;
                state.forget_received();
                if state.receive_end == End::Open {
                    state.receive_end = End::Fin;
                }
                state.wake_all();
            }
            core.mark_ready(id);
        }
        core.received_bytes = 0;
        if let Some(waker) = core.acceptor.take() {
            waker.wake();
        }
        drop(core);
        self.announce(phase);
    }

    /// Ends with an error. Streams that have not ended break.
    pub fn fail(&self, error: StreamError) {
        let mut core = self.core.lock();
        if core.phase == Phase::Open && !core.peer_gone {
            core.error.get_or_insert(error);
        }
        core.break_streams(End::Broken);
        core.active = Instant::now();
        let phase = core.begin_close();
        drop(core);
        self.announce(phase);
    }

    /// Handles the peer's close message: received data is complete and stays readable, and nothing more can be sent.
    pub fn peer_closed(&self) {
        let mut core = self.core.lock();
        core.peer_gone = true;
        core.break_streams(End::Fin);
        core.active = Instant::now();
        let phase = core.begin_close();
        drop(core);
        self.announce(phase);
    }

    /// Handles the peer's GOAWAY: it opens no more streams, and streams that have not ended are complete with the
    /// received data.
    pub fn peer_farewell(&self) {
        let mut core = self.core.lock();
        core.peer_gone = true;
        if let Some(waker) = core.acceptor.take() {
            waker.wake();
        }
    }

    /// Handles the end of the input.
    pub fn input_ended(&self, error: StreamError) {
        let mut core = self.core.lock();
        let complete = core.peer_gone || core.phase > Phase::Open && core.error.is_none();
        if !complete {
            core.error.get_or_insert(error);
        }
        core.break_streams(if complete { End::Fin } else { End::Broken });
        core.phase = Phase::Dead;
        drop(core);
        self.announce(Phase::Dead);
    }

    /// Handles the end of the output.
    pub fn output_ended(&self, error: Option<StreamError>) {
        let mut core = self.core.lock();
        core.output_ended = true;
        for state in core.streams.values_mut() {
            state.send_end = End::Reset;
            state.forget_unsent();
            state.wake_all();
        }
        core.unsent_bytes = 0;
        core.control.clear();
        // After a failed write the input is still read, since the peer may have sent all its data before it closed.
        if core.phase == Phase::Open {
            core.error.get_or_insert(error.unwrap_or(StreamError::Closed));
            return;
        }
        core.phase = core.phase.max(Phase::Written);
        let phase = core.phase;
        drop(core);
        self.announce(phase);
    }

    fn announce(&self, phase: Phase) {
        self.phase.send_modify(|known| *known = phase.max(*known));
        self.send.notify_one();
        self.room.notify_one();
    }
}

impl Core {
    fn begin_close(&mut self) -> Phase {
        let begun = if self.output_ended { Phase::Written } else { Phase::Closing };
        self.phase = self.phase.max(begun);
        self.phase
    }

    fn break_streams(&mut self, end: End) {
        let mut unsent = 0;
        for state in self.streams.values_mut() {
            if state.receive_end == End::Open {
                state.receive_end = end;
            }
            if state.send_end != End::Fin || end == End::Broken {
                state.send_end = End::Reset;
                unsent += state.forget_unsent();
            }
            state.wake_all();
        }
        self.unsent_bytes -= unsent;
        if let Some(waker) = self.acceptor.take() {
            waker.wake();
        }
    }
}
