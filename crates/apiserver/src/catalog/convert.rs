//! Conversion between the stored form of a kind and a served one. Built-in kinds convert in memory; a kind made at run
//! time may have to ask somebody, and then many objects go in one question.
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use kelson_meta::{Gvk, Status};
use kelson_store::Record;
use serde_json::Value;

use crate::catalog::record::parse;

/// Converts objects of a kind made at run time. Objects name the version they are in: what is stored may be of any version
/// that ever was the stored one.
pub trait Converter: Send + Sync {
    /// Stored objects as readers of `to` see them: as many as were given, in their order. Objects that are in that version
    /// already come back brought up to the schema of today, so that asking twice changes nothing.
    fn served<'a>(&'a self, to: &'a Gvk, objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>>;
    /// The JSON of records as readers of `to` see them, in their order. Each is made once and kept with its record.
    fn forms<'a>(&'a self, to: &'a Gvk, records: &'a [Arc<Record>]) -> BoxFuture<'a, Result<Vec<Bytes>, Status>> {
        Box::pin(async move {
            let objects = self.served(to, records.iter().map(|record| parse(record)).collect()).await?;
            Ok(objects.iter().map(|object| kelson_codec::canonical_json(object).into()).collect())
        })
    }
    /// A finished object in the version that is stored.
    fn stored<'a>(&'a self, object: Value) -> BoxFuture<'a, Result<Value, Status>>;
    /// Whether the bytes of a record are what readers of `to` see, so that they need not be looked into.
    fn is_plain(&self, to: &Gvk, record: &Record) -> bool {
        let _ = (to, record);
        false
    }
    /// Whether a record is in the version `to`, complete or not.
    fn is_in(&self, to: &Gvk, record: &Record) -> bool {
        self.is_plain(to, record)
    }
    /// What the record of this object is marked with when it is written, see [`Record::mark`].
    fn mark(&self, stored: &Value) -> u32 {
        let _ = stored;
        0
    }
}

/// How the served form of a kind comes from the stored one.
#[derive(Clone)]
pub enum Conversion {
    /// They are the same.
    Same,
    /// By the compiled-in functions, without waiting.
    Builtin,
    /// By somebody who may have to be waited for.
    By(Arc<dyn Converter>),
}

impl Conversion {
    /// Stored objects in the served form. Built-in kinds that do not convert are the server's fault, hence 500; for others
    /// the converter has the word.
    pub async fn forth(&self, storage: &Gvk, served: &Gvk, objects: Vec<Value>) -> Result<Vec<Value>, Status> {
        match self {
            Self::Same => Ok(objects),
            Self::Builtin => {
                let one = |o| kelson_resources::convert(storage, served, o);
                objects.into_iter().map(one).collect::<Result<_, _>>().map_err(|e| Status::internal(&e.message))
            }
            Self::By(converter) => {
                let asked = objects.len();
                let converted = converter.served(served, objects).await?;
                if converted.len() != asked {
                    let got = converted.len();
                    let why = format!("conversion for {served} returned {got} objects instead of {asked}");
                    return Err(Status::internal(why));
                }
                Ok(converted)
            }
        }
    }
    /// One served object in the stored form.
    pub async fn back(&self, served: &Gvk, storage: &Gvk, object: Value) -> Result<Value, Status> {
        match self {
            Self::Same => Ok(object),
            Self::Builtin => kelson_resources::convert(served, storage, object),
            Self::By(converter) => converter.stored(object).await,
        }
    }
    /// Whether the bytes of a record are the served form as they are.
    pub fn is_plain(&self, served: &Gvk, record: &Record) -> bool {
        match self {
            Self::Same => true,
            Self::Builtin => false,
            Self::By(converter) => converter.is_plain(served, record),
        }
    }
}
