//! Lists in protobuf. A document begins with its length, so the records are encoded twice: once to get the lengths of their messages
//! and once to write them. Only the lengths, and the messages of a short list, are held in between.
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::future::BoxFuture;
use kelson_codec::proto::ListEncoder;
use kelson_meta::Status;
use kelson_store::Record;

use super::run::{HasRun, ListPieces, Run};
use super::threads::Threads;
use crate::catalog::{ObjectSchema, record};
use crate::read::page::PIECE_BYTES;
use crate::read::partial::{PartialMessages, no_protobuf, refused};
use crate::read::table;
use crate::request::negotiate::View;

/// Limit of the bytes of messages that are held between the two passes; others are encoded again.
const HELD_BYTES_MAX: usize = 256 * 1024;

/// A list that is being sent as protobuf.
pub(super) struct ProtobufPieces {
    run: Run,
    /// The schema of the items.
    object: ObjectSchema,
    /// Encodes items that are metadata.
    partials: Option<PartialMessages>,
    encoder: ListEncoder,
    /// Lengths of the messages.
    lengths: VecDeque<u32>,
    /// The first messages, grouped as the batches of records; `None` for batches whose messages are cut from the records.
    held: VecDeque<Option<Vec<Bytes>>>,
    begun: bool,
    done: bool,
}

/// Whether the stored message of a record is the served object.
fn is_plain(run: &Run) -> bool {
    run.view == View::Whole && !run.served.converts()
}

/// A list whose messages are measured, since the length of a list precedes it.
struct Measured {
    run: Run,
    object: ObjectSchema,
    partials: Option<PartialMessages>,
    lengths: VecDeque<u32>,
    /// The first batches of messages, of which at most [`HELD_BYTES_MAX`] were made for their lengths.
    held: VecDeque<Option<Vec<Bytes>>>,
    held_bytes: usize,
}

impl Measured {
    /// Measures the next batch, which takes half a millisecond if its messages are not cached.
    async fn measure(&mut self) -> Result<(), Status> {
        let records = self.run.records();
        if is_plain(&self.run) {
            // Messages are cached in their records, so they are not encoded twice.
            for record in &records {
                self.lengths.push_back(length(record::message_len(&self.run.served.storage_schema, record)?)?);
            }
            return Ok(());
        }
        if let Some(partials) = self.partials.as_mut().filter(|_| are_cut(&self.run, &records)) {
            for record in &records {
                self.lengths.push_back(length(partials.length(record)?)?);
            }
            if self.held_bytes <= HELD_BYTES_MAX {
                self.held.push_back(None);
            }
            return Ok(());
        }
        let made = messages(&self.run, &self.object, &records).await?;
        for message in &made {
            self.lengths.push_back(length(message.len())?);
            self.held_bytes += message.len();
        }
        if self.held_bytes <= HELD_BYTES_MAX {
            self.held.push_back(Some(made));
        }
        Ok(())
    }
}

impl HasRun for Measured {
    fn run(&self) -> &Run {
        &self.run
    }
}

impl ProtobufPieces {
    /// Computes the lengths of all messages.
    ///
    /// # Errors
    /// 406 for kinds without a protobuf form, 500 if an object cannot be converted.
    pub async fn new(run: Run, threads: &Threads) -> Result<Self, Status> {
        let (object, list) = match run.view {
            View::Whole => (run.served.schema.clone(), run.served.list_schema.clone()),
            View::Partial(version) => (ObjectSchema::partial(version, false), ObjectSchema::partial(version, true)),
            View::Table(_) => return Err(Status::not_acceptable(&["application/json"])),
        };
        let ty = list.type_id().ok_or_else(no_protobuf)?;
        let partials = match run.view {
            View::Partial(version) => Some(PartialMessages::new(&run.served, version)?),
            View::Whole | View::Table(_) => None,
        };
        let mut measured =
            Measured { run, object, partials, lengths: VecDeque::new(), held: VecDeque::new(), held_bytes: 0 };
        while !measured.run.ended {
            let is_first = measured.lengths.is_empty();
            (measured, ()) = threads.run(measured, is_first, |list| Box::pin(list.measure())).await?;
        }
        let Measured { mut run, object, partials, lengths, held, .. } = measured;
        run.rewind();
        let gvk = table::list_kind(&run.served, run.view);
        let each = lengths.iter().map(|n| *n as usize);
        let encoder = ListEncoder::new(ty, &gvk.api_version(), &gvk.kind, &run.page.metadata(false), each);
        let encoder = encoder.map_err(refused)?;
        Ok(Self { run, object, partials, encoder, lengths, held, begun: false, done: false })
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        if self.done {
            return Ok(None);
        }
        let records = self.run.records();
        let mut out = BytesMut::with_capacity(PIECE_BYTES + PIECE_BYTES / 4);
        if !std::mem::replace(&mut self.begun, true) {
            out.put_slice(self.encoder.header());
        }
        match self.held.pop_front().flatten() {
            Some(held) => self.put(&held, &mut out)?,
            None if is_plain(&self.run) => self.put_records(&records, &mut out)?,
            None if self.partials.is_some() && are_cut(&self.run, &records) => self.put_metadata(&records, &mut out)?,
            None => {
                let made = messages(&self.run, &self.object, &records).await?;
                self.put(&made, &mut out)?;
            }
        }
        if self.run.ended {
            out.put_slice(&ListEncoder::TRAILER);
            self.done = true;
        }
        Ok(Some(out.freeze()))
    }
}

impl ProtobufPieces {
    /// Appends items with their prefixes.
    fn put(&mut self, messages: &[Bytes], out: &mut BytesMut) -> Result<(), Status> {
        for message in messages {
            self.put_prefix(message.len(), out)?;
            out.put_slice(message);
        }
        Ok(())
    }

    /// Appends the messages of records, which are copied into `out` without being assembled before.
    fn put_records(&mut self, records: &[Arc<Record>], out: &mut BytesMut) -> Result<(), Status> {
        for record in records {
            let length = record::message_len(&self.run.served.storage_schema, record)?;
            self.put_prefix(length, out)?;
            if !record.put_protobuf(out) {
                out.put_slice(&record::message(&self.run.served.storage_schema, record)?);
            }
        }
        Ok(())
    }

    /// Appends the metadata of records, which is cut from their bytes into `out`.
    fn put_metadata(&mut self, records: &[Arc<Record>], out: &mut BytesMut) -> Result<(), Status> {
        let Some(partials) = &mut self.partials else { return Ok(()) };
        for record in records {
            let length = self.lengths.pop_front().unwrap_or_default() as usize;
            self.encoder.put_item_prefix(length, out);
            let begin = out.len();
            partials.put(record, out)?;
            if out.len() - begin != length {
                return Err(changed());
            }
        }
        Ok(())
    }

    /// Appends the prefix of the next item, which must have the length that the header was made with.
    fn put_prefix(&mut self, bytes: usize, out: &mut BytesMut) -> Result<(), Status> {
        if self.lengths.pop_front().map(|n| n as usize) != Some(bytes) {
            return Err(changed());
        }
        self.encoder.put_item_prefix(bytes, out);
        Ok(())
    }
}

/// The error for an item whose length is not that of the first pass.
fn changed() -> Status {
    Status::internal("an object's conversion is not deterministic")
}

/// Whether the metadata of all these records is that of the served version.
fn are_cut(run: &Run, records: &[Arc<Record>]) -> bool {
    records.iter().all(|record| run.metadata_is_plain(record))
}

fn length(bytes: usize) -> Result<u32, Status> {
    u32::try_from(bytes).map_err(|_| Status::internal("an object is larger than 4 GiB"))
}

/// Records as protobuf messages of the requested view.
async fn messages(run: &Run, object: &ObjectSchema, records: &[Arc<Record>]) -> Result<Vec<Bytes>, Status> {
    let items = run.items(records).await?;
    items.iter().map(|item| object.message(item).map(Bytes::from).map_err(refused)).collect()
}

impl ListPieces for ProtobufPieces {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Status>> {
        Box::pin(self.piece())
    }
}

impl HasRun for ProtobufPieces {
    fn run(&self) -> &Run {
        &self.run
    }
}
