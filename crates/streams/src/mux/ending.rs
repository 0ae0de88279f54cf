//! How a connection ends, from either side, in order or not: the transitions of all its streams at once. Leaves single
//! streams to `state`.

use tokio::time::Instant;

use super::state::Shared;
use super::table::{Core, End, Phase};
use crate::error::StreamError;

impl Shared {
    /// Starts the orderly end: queued bytes go out, then the farewell. What comes in is thrown away.
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

    /// Ends with an error: streams that have not ended break.
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

    /// The peer closed the connection in order: what has come is complete and stays readable, nothing can be sent.
    pub fn peer_closed(&self) {
        let mut core = self.core.lock();
        core.peer_gone = true;
        core.break_streams(End::Fin);
        core.active = Instant::now();
        let phase = core.begin_close();
        drop(core);
        self.announce(phase);
    }

    /// The peer said farewell: streams that have not ended are complete with what has come.
    pub fn peer_farewell(&self) {
        let mut core = self.core.lock();
        core.peer_gone = true;
        if let Some(waker) = core.acceptor.take() {
            waker.wake();
        }
    }

    /// Nothing more can be read.
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

    /// Nothing more will be written.
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
        // What still comes is read on after a failed write: the peer may have sent all it has before it left.
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
