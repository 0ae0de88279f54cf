//! Conversion between the stored form of a kind and a served one. Built-in kinds convert in memory; a kind made at run
//! time may have to ask somebody, and then many objects go in one question.
use std::sync::Arc;

use futures::future::BoxFuture;
use kelson_meta::{Gvk, Status};
use serde_json::Value;

/// Converts objects of a kind made at run time.
pub trait Converter: Send + Sync {
    /// As many objects as were given, in their order, in the form `to`.
    fn convert<'a>(
        &'a self,
        from: &'a Gvk,
        to: &'a Gvk,
        objects: Vec<Value>,
    ) -> BoxFuture<'a, Result<Vec<Value>, Status>>;
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
            Self::By(converter) => ask(converter.as_ref(), storage, served, objects).await,
        }
    }
    /// One served object in the stored form.
    pub async fn back(&self, served: &Gvk, storage: &Gvk, object: Value) -> Result<Value, Status> {
        match self {
            Self::Same => Ok(object),
            Self::Builtin => kelson_resources::convert(served, storage, object),
            Self::By(converter) => {
                let converted = ask(converter.as_ref(), served, storage, vec![object]).await;
                Ok(converted?.pop().unwrap_or_default())
            }
        }
    }
}

async fn ask(converter: &dyn Converter, from: &Gvk, to: &Gvk, objects: Vec<Value>) -> Result<Vec<Value>, Status> {
    let asked = objects.len();
    let converted = converter.convert(from, to, objects).await?;
    if converted.len() != asked {
        let got = converted.len();
        return Err(Status::internal(format!("conversion for {to} returned {got} objects instead of {asked}")));
    }
    Ok(converted)
}
