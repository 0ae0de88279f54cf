//! Lists in YAML.
use bytes::Bytes;
use futures::future::BoxFuture;
use kelson_codec::Encoding;
use kelson_meta::Status;
use serde_json::{Value, json};

use super::run::{HasRun, ListPieces, Run};

/// A list that is being sent as YAML.
pub(super) struct YamlPieces {
    run: Run,
    /// The document up to the key of the items, and the rest after them.
    head: Option<String>,
    tail: String,
    empty: bool,
    done: bool,
}

fn text(value: &Value) -> Result<String, Status> {
    let bytes = kelson_codec::encode(Encoding::Yaml, None, value).map_err(|e| Status::internal(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| Status::internal(e.to_string()))
}

impl YamlPieces {
    /// Encodes the document around the items.
    ///
    /// # Errors
    /// 500 if it cannot be encoded.
    pub fn new(run: Run) -> Result<Self, Status> {
        let (mut list, items) = run.frame();
        list.insert(items.into(), json!([]));
        let whole = text(&Value::Object(list))?;
        // Only the document's own keys begin a line.
        let empty = format!("\n{items}: []\n");
        let (head, tail) = whole.split_once(&empty).ok_or_else(|| Status::internal("a list without items"))?;
        Ok(Self { head: Some(format!("{head}\n{items}:")), tail: tail.to_owned(), run, empty: true, done: false })
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        if self.done {
            return Ok(None);
        }
        let records = self.run.records();
        let mut items = self.run.items(&records).await?;
        if self.run.omits_kind_in_items() {
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                item.remove("kind");
                item.remove("apiVersion");
            }
        }
        let mut out = self.head.take().unwrap_or_default();
        if !items.is_empty() {
            if std::mem::take(&mut self.empty) {
                out.push('\n');
            }
            // Items have the indentation of their key, so a part of the list is encoded like the whole.
            out.push_str(&text(&Value::Array(items))?);
        }
        if self.run.ended {
            if self.empty {
                out.push_str(" []\n");
            }
            out.push_str(&self.tail);
            self.done = true;
        }
        Ok(Some(out.into()))
    }
}

impl ListPieces for YamlPieces {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Status>> {
        Box::pin(self.piece())
    }
}

impl HasRun for YamlPieces {
    fn run(&self) -> &Run {
        &self.run
    }
}
