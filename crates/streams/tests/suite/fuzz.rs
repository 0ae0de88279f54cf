//! Random input for the parsers, by seed. They must not panic or exceed the named memory limits. A failure names its
//! seed.

use bytes::BytesMut;
use kelson_streams::spdy::Headers;
use kelson_streams::spdy::frame::{Frame, FrameDecoder, encode};
use kelson_streams::spdy::headers::HeaderCompressor;
use kelson_streams::ws::Role;
use kelson_streams::ws::frame::{Decoder, Opcode, put_frame};

const SEEDS: u64 = 3_000;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll(256) as u8).collect()
    }
}

fn frames(dice: &mut Dice) -> Vec<Frame> {
    let count = 1 + dice.roll(12);
    let mut frames = Vec::new();
    for _ in 0..count {
        let id = 1 + dice.roll(50) as u32;
        let fin = dice.roll(2) == 1;
        let headers = Headers::new().with("streamType", "data").with("port", dice.roll(65_536).to_string());
        frames.push(match dice.roll(9) {
            0 => Frame::SynStream { id, associated: 0, priority: 3, fin, unidirectional: false, headers },
            1 => Frame::SynReply { id, fin, headers },
            2 => Frame::RstStream { id, status: 5 },
            3 => Frame::Settings(vec![(4, 100), (7, 65_536)]),
            4 => Frame::Ping(id),
            5 => Frame::GoAway { last_good: id, status: 0 },
            6 => Frame::Headers { id, fin, headers },
            7 => Frame::WindowUpdate { id, delta: 10 },
            _ => {
                let length = dice.roll(2_000) as usize;
                Frame::Data { id, fin, data: dice.bytes(length).into() }
            }
        });
    }
    frames
}

/// Joins the parts of data frames that the decoder returns.
fn joined(parts: Vec<Frame>, whole: &[Frame]) -> Vec<Frame> {
    let mut parts = parts.into_iter();
    let mut joined = Vec::new();
    for frame in whole {
        let Frame::Data { data: expected, .. } = frame else {
            joined.extend(parts.next());
            continue;
        };
        let mut bytes = Vec::new();
        loop {
            let Some(Frame::Data { id, fin, data }) = parts.next() else { break };
            bytes.extend_from_slice(&data);
            if bytes.len() >= expected.len() {
                joined.push(Frame::Data { id, fin, data: bytes.into() });
                break;
            }
        }
    }
    joined.extend(parts);
    joined
}

#[test]
fn spdy_frames_survive_any_cut() {
    for seed in 1..=SEEDS / 10 {
        let mut dice = Dice(seed);
        let frames = frames(&mut dice);
        let (mut deflate, mut wire) = (HeaderCompressor::new().expect("compressor"), BytesMut::new());
        for frame in &frames {
            encode(frame, &mut deflate, &mut wire).expect("encodes");
        }
        let (mut decoder, mut input, mut seen) = (FrameDecoder::new(), BytesMut::new(), Vec::new());
        while !wire.is_empty() {
            let step = (1 + dice.roll(700) as usize).min(wire.len());
            input.extend_from_slice(&wire.split_to(step));
            while let Some(frame) = decoder.decode(&mut input).expect("decodes") {
                seen.push(frame);
            }
        }
        assert_eq!(joined(seen, &frames), frames, "seed {seed}");
    }
}

#[test]
fn spdy_nonsense_is_refused_without_a_panic() {
    let mut refused = 0u64;
    for seed in 1..=SEEDS {
        let mut dice = Dice(seed);
        let (mut deflate, mut wire) = (HeaderCompressor::new().expect("compressor"), BytesMut::new());
        for frame in frames(&mut dice) {
            encode(&frame, &mut deflate, &mut wire).expect("encodes");
        }
        let mut wire = wire.to_vec();
        for _ in 0..1 + dice.roll(8) {
            let at = dice.roll(wire.len() as u64) as usize;
            wire[at] = dice.roll(256) as u8;
        }
        let noise = dice.roll(300) as usize;
        wire.extend(dice.bytes(noise));
        let (mut decoder, mut input) = (FrameDecoder::new(), BytesMut::new());
        'wire: for chunk in wire.chunks(97) {
            input.extend_from_slice(chunk);
            loop {
                match decoder.decode(&mut input) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => {
                        refused += 1;
                        break 'wire;
                    }
                }
            }
            // Only an incomplete control frame may stay in the buffer.
            assert!(input.len() <= 64 * 1024 + 8, "seed {seed}");
        }
    }
    assert!(refused > SEEDS / 4, "{refused}");
}

#[test]
fn websocket_nonsense_is_refused_without_a_panic() {
    let mut refused = 0u64;
    for seed in 1..=SEEDS {
        let mut dice = Dice(seed);
        let mut wire = BytesMut::new();
        for _ in 0..1 + dice.roll(6) {
            let length = dice.roll(400) as usize;
            let payload = dice.bytes(length);
            let opcode = [Opcode::Binary, Opcode::Text, Opcode::Binary][dice.roll(3) as usize];
            put_frame(Role::Client, opcode, &[&payload], &mut wire);
        }
        for _ in 0..1 + dice.roll(8) {
            let at = dice.roll(wire.len() as u64) as usize;
            wire[at] = dice.roll(256) as u8;
        }
        let (mut decoder, mut input) = (Decoder::new(Role::Server), BytesMut::new());
        'wire: for chunk in wire.chunks(61) {
            input.extend_from_slice(chunk);
            loop {
                match decoder.decode(&mut input) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => {
                        refused += 1;
                        break 'wire;
                    }
                }
            }
            assert!(input.len() <= 61 + 139, "seed {seed}");
        }
    }
    assert!(refused > 0, "{refused}");
}
