//! WebSocket: a log or a watch as messages, for clients that cannot read a growing response (browsers, dashboards). `connect::stream`
//! serves exec, attach and port-forward. Upstream: `wsstream/stream.go`, `WatchServer.HandleWS`.
use std::io;
use std::pin::pin;

use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kelson_meta::Status;
use kelson_streams::negotiate::{accept_websocket, offered_websocket_protocols};
use kelson_streams::ws::Role;
use kelson_streams::ws::frame::{CLOSE_NORMAL, Decoder, Event, Opcode, put_frame};
use kelson_tasks::OnPanic;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::request::answer::Answer;
use crate::request::body::ApiBody;
use crate::request::upgrade::wait_for_upgrade;
use crate::shared::context::RequestContext;

/// Bytes per read from the client, which sends only control frames.
const READ_BYTES: usize = 2 * 1024;
/// Subprotocols of a log; without one, messages are the exact bytes.
const LOG_PROTOCOLS: [&str; 3] = ["", "binary.k8s.io", "base64.binary.k8s.io"];

/// The encoding of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageForm {
    Binary,
    Base64,
    Text,
}

/// The way in which pieces of the response are split into messages. Each piece contains whole events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// One message for each piece.
    Pieces,
    /// Split at line ends: events in JSON.
    Lines,
    /// Split at length prefixes (32 bits, big endian), which messages omit: events in protobuf.
    Lengths,
}

/// Whether the client requests a WebSocket.
pub fn is_wanted(cx: &RequestContext) -> bool {
    kelson_streams::is_websocket_request(&cx.headers)
}

/// A log as messages. The first one is empty, so that the client knows that the log exists even without output.
///
/// # Errors
/// 400 if the connection cannot be upgraded.
pub fn log(cx: &RequestContext, answer: Answer) -> Result<Answer, Status> {
    switch(cx, answer, &LOG_PROTOCOLS, Cut::Pieces, |protocol| match protocol {
        "base64.binary.k8s.io" => MessageForm::Base64,
        _ => MessageForm::Binary,
    })
}

/// A watch as messages, one for each event.
///
/// # Errors
/// 400 if the connection cannot be upgraded.
pub fn watch(cx: &RequestContext, answer: Answer, protobuf: bool) -> Result<Answer, Status> {
    // The subprotocol has no meaning here, but browsers require the requested one in the response.
    let offered = offered_websocket_protocols(&cx.headers);
    let known = offered.first().map_or("", String::as_str);
    let (cut, form) = if protobuf { (Cut::Lengths, MessageForm::Binary) } else { (Cut::Lines, MessageForm::Text) };
    switch(cx, answer, &[known], cut, |_| form)
}

fn switch(
    cx: &RequestContext,
    answer: Answer,
    known: &[&str],
    cut: Cut,
    form: impl FnOnce(&str) -> MessageForm,
) -> Result<Answer, Status> {
    let upgrade = cx.upgrade.lock().take();
    let upgrade = upgrade.ok_or_else(|| Status::bad_request("Upgrade request required over HTTP/1.1"))?;
    let (response, chosen) = match accept_websocket(&cx.method, &cx.headers, known) {
        Ok(accepted) => accepted,
        Err(refusal) => return Ok(refusal.map(ApiBody::full)),
    };
    let (form, greet) = (form(known[chosen]), cut == Cut::Pieces);
    let body = answer.into_body();
    cx.server.tasks.spawn("api-messages", OnPanic::Contain, async move {
        let Some(client) = wait_for_upgrade(upgrade).await else { return };
        if let Err(error) = carry(client, body, cut, form, greet).await {
            tracing::debug!(%error, "sending messages over a WebSocket failed");
        }
    });
    Ok(response.map(|()| ApiBody::empty()))
}

/// Sends messages until the body ends or the client closes.
async fn carry(
    io: impl AsyncRead + AsyncWrite + Unpin,
    body: ApiBody,
    cut: Cut,
    form: MessageForm,
    greet: bool,
) -> io::Result<()> {
    let (mut from, mut to) = tokio::io::split(io);
    let mut body = pin!(body);
    let (mut decoder, mut input) = (Decoder::new(Role::Server), BytesMut::with_capacity(READ_BYTES));
    let mut out = BytesMut::new();
    if greet {
        message(&[], form, &mut out);
    }
    let mut over = false;
    while !over {
        to.write_all(&out).await?;
        to.flush().await?;
        out.clear();
        tokio::select! {
            read = from.read_buf(&mut input) => {
                over = read? == 0;
                while let Some(event) = decoder.decode(&mut input)? {
                    match event {
                        Event::Ping(data) => put_frame(Role::Server, Opcode::Pong, &[&data], &mut out),
                        Event::Close(_) => over = true,
                        // Messages of the client are ignored.
                        Event::Message { .. } | Event::Pong(_) => {}
                    }
                }
            }
            frame = body.frame() => match frame {
                Some(Ok(frame)) => if let Ok(data) = frame.into_data() {
                    messages(data, cut, form, &mut out);
                },
                Some(Err(error)) => return Err(io::Error::other(error.to_string())),
                None => over = true,
            },
        }
    }
    put_frame(Role::Server, Opcode::Close, &[&CLOSE_NORMAL.to_be_bytes()], &mut out);
    to.write_all(&out).await?;
    to.shutdown().await
}

fn messages(mut data: Bytes, cut: Cut, form: MessageForm, out: &mut BytesMut) {
    match cut {
        Cut::Pieces if data.is_empty() => {}
        Cut::Pieces => message(&data, form, out),
        Cut::Lines => data.split_inclusive(|b| *b == b'\n').for_each(|line| message(line, form, out)),
        Cut::Lengths => {
            while let Some(length) = data.first_chunk::<4>().map(|b| u32::from_be_bytes(*b) as usize) {
                drop(data.split_to(4));
                message(&data.split_to(length.min(data.len())), form, out);
            }
        }
    }
}

fn message(data: &[u8], form: MessageForm, out: &mut BytesMut) {
    match form {
        MessageForm::Binary => put_frame(Role::Server, Opcode::Binary, &[data], out),
        MessageForm::Text => put_frame(Role::Server, Opcode::Text, &[data], out),
        MessageForm::Base64 => {
            let text = base64::engine::general_purpose::STANDARD.encode(data);
            put_frame(Role::Server, Opcode::Text, &[text.as_bytes()], out);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    /// All messages that a client receives until the close: whether it is text, and the payload.
    async fn receive_all(pieces: &[&'static [u8]], cut: Cut, form: MessageForm, greet: bool) -> Vec<(bool, Vec<u8>)> {
        let (client, server) = tokio::io::duplex(1 << 16);
        let body = ApiBody::stream(stream::iter(pieces.iter().map(|p| Ok(Bytes::from_static(p))).collect::<Vec<_>>()));
        let sent = tokio::spawn(carry(server, body, cut, form, greet));
        let (mut bytes, mut client) = (BytesMut::new(), client);
        while client.read_buf(&mut bytes).await.expect("read") > 0 {}
        sent.await.expect("no panic").expect("sent");
        let mut decoder = Decoder::new(Role::Client);
        let mut out = Vec::new();
        while let Some(event) = decoder.decode(&mut bytes).expect("frames") {
            match event {
                Event::Message { text, data, .. } => out.push((text, data.to_vec())),
                Event::Close(code) => assert_eq!((code, bytes.is_empty()), (Some(CLOSE_NORMAL), true)),
                other => panic!("{other:?}"),
            }
        }
        out
    }

    fn said(text: bool, messages: &[&str]) -> Vec<(bool, Vec<u8>)> {
        messages.iter().map(|m| (text, m.as_bytes().to_vec())).collect()
    }

    #[tokio::test]
    async fn a_log_is_its_bytes_after_an_empty_message() {
        let log: [&[u8]; 2] = [b"one\ntwo\n", b"three\n"];
        assert_eq!(
            receive_all(&log, Cut::Pieces, MessageForm::Binary, true).await,
            said(false, &["", "one\ntwo\n", "three\n"])
        );
        assert_eq!(receive_all(&[b"a\n"], Cut::Pieces, MessageForm::Base64, true).await, said(true, &["", "YQo="]));
        assert_eq!(receive_all(&[], Cut::Pieces, MessageForm::Binary, true).await, said(false, &[""]));
    }

    #[tokio::test]
    async fn a_watch_is_one_message_for_each_event() {
        let events: [&[u8]; 2] = [b"{1}\n{2}\n", b"{3}\n"];
        assert_eq!(
            receive_all(&events, Cut::Lines, MessageForm::Text, false).await,
            said(true, &["{1}\n", "{2}\n", "{3}\n"])
        );
        let framed: [&[u8]; 1] = [b"\0\0\0\x02ab\0\0\0\x01c"];
        assert_eq!(receive_all(&framed, Cut::Lengths, MessageForm::Binary, false).await, said(false, &["ab", "c"]));
    }

    #[tokio::test]
    async fn a_client_that_closes_ends_it() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let body = ApiBody::stream(stream::pending());
        let sent = tokio::spawn(carry(server, body, Cut::Lines, MessageForm::Text, false));
        let mut close = BytesMut::new();
        put_frame(Role::Client, Opcode::Close, &[&CLOSE_NORMAL.to_be_bytes()], &mut close);
        client.write_all(&close).await.expect("write");
        sent.await.expect("no panic").expect("a clean end");
    }
}
