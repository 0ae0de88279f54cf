//! Lists in JSON. Stored objects are copied, and metadata is cut from their bytes, wherever no conversion is needed.
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::future::BoxFuture;
use kelson_codec::json::Indenter;
use kelson_meta::{Gvk, Status};
use serde_json::{Value, json};

use super::run::{HasRun, ListPieces, Run};
use crate::read::page::PIECE_BYTES;
use crate::read::table;
use crate::request::answer;
use crate::request::negotiate::View;

/// A list that is being sent as JSON.
pub(super) struct JsonPieces {
    run: Run,
    /// Nothing has been written yet.
    first: bool,
    /// Bytes before the next record.
    pending: Vec<u8>,
    /// The beginning of built-in objects, `{"kind":…,"apiVersion":…,`, which items omit because the list has it.
    said: Vec<u8>,
    tail: Vec<u8>,
    /// Indents the JSON.
    indenter: Option<Indenter>,
    done: bool,
}

impl JsonPieces {
    pub fn new(run: Run, pretty: bool) -> Self {
        let (pending, mut tail) = around(&run);
        if !pretty {
            tail.push(b'\n');
        }
        let said = if run.omits_kind_in_items() { beginning(&run.served.gvk) } else { Vec::new() };
        let indenter = pretty.then(Indenter::default);
        Self { run, first: true, pending, said, tail, indenter, done: false }
    }

    fn comma(&mut self, out: &mut BytesMut) {
        if !std::mem::take(&mut self.first) {
            out.put_u8(b',');
        }
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        if self.done {
            return Ok(None);
        }
        let records = self.run.records();
        let mut out = BytesMut::from(&std::mem::take(&mut self.pending)[..]);
        out.reserve(PIECE_BYTES + PIECE_BYTES / 4);
        let view = self.run.view;
        if view == View::Whole && records.iter().all(|r| self.run.served.is_plain(r)) {
            for record in &records {
                self.comma(&mut out);
                record.put_after(&self.said, b"{", &mut out);
            }
        } else if let View::Partial(version) = view
            && records.iter().all(|r| self.run.metadata_is_plain(r))
        {
            for record in &records {
                self.comma(&mut out);
                table::put_partial_json(version, record, &mut out);
            }
        } else if let View::Table(version) = view
            && records.iter().all(|r| self.run.served.is_plain(r))
        {
            for record in &records {
                self.comma(&mut out);
                table::put_row(&self.run.served, version, &self.run.options, record, &mut out);
            }
        } else if view == View::Whole
            && let Some(forms) = self.run.served.forms(&records).await?
        {
            for form in &forms {
                self.comma(&mut out);
                out.put_slice(form);
            }
        } else {
            for item in self.run.items(&records).await? {
                self.comma(&mut out);
                let bytes = match view {
                    View::Table(_) => table::row_json(&item),
                    View::Whole | View::Partial(_) => kelson_codec::declared_json(&item),
                };
                match bytes.strip_prefix(&self.said[..]).filter(|_| !self.said.is_empty()) {
                    Some(rest) => {
                        out.put_u8(b'{');
                        out.put_slice(rest);
                    }
                    None => out.put_slice(&bytes),
                }
            }
        }
        if self.run.ended {
            out.extend_from_slice(&self.tail);
            self.done = true;
        }
        Ok(Some(match &mut self.indenter {
            Some(indenter) => {
                let mut indented = Vec::with_capacity(out.len() * 2);
                indenter.write(&out, &mut indented);
                indented.into()
            }
            None => out.freeze(),
        }))
    }
}

impl ListPieces for JsonPieces {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Status>> {
        Box::pin(self.piece())
    }
}

impl HasRun for JsonPieces {
    fn run(&self) -> &Run {
        &self.run
    }
}

/// The JSON before the first item of a list and after the last, with fields in upstream's order.
fn around(run: &Run) -> (Vec<u8>, Vec<u8>) {
    let (mut list, items) = run.frame();
    list.insert(items.into(), json!([]));
    let mut head = answer::compact(&Value::Object(list));
    // It cannot be inside a string, because quotes are escaped there.
    let empty = format!("\"{items}\":[]");
    let at = head.windows(empty.len()).position(|w| w == empty.as_bytes()).unwrap_or_default();
    let tail = head.split_off(at + empty.len() - 1);
    (head, tail)
}

/// The beginning of all built-in objects of a kind.
fn beginning(gvk: &Gvk) -> Vec<u8> {
    format!("{{\"kind\":{:?},\"apiVersion\":{:?},", gvk.kind, gvk.api_version()).into_bytes()
}
