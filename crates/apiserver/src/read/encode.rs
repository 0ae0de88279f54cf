//! Encode: one object as the response, in the view and encoding that the client accepts. A record that is wanted as it is stored is
//! copied, not decoded. `list` encodes lists, `frames` watch events.
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::StatusCode;
use http_body::Body as _;
use kelson_codec::Encoding;
use kelson_meta::Status;
use kelson_store::Record;
use kelson_traces::{KeyValue, child, event};
use serde_json::{Value, json};

use crate::catalog::record::{Object, message};
use crate::catalog::{ObjectSchema, Served};
use crate::read::table::{self, items, table_head, working_items};
use crate::request::answer::{Answer, answer, compact, tree};
use crate::request::body::ApiBody;
use crate::request::negotiate::{Accepted, View};
use crate::request::view::ViewOptions;

const NEWLINE: Bytes = Bytes::from_static(b"\n");

/// Answers with one object.
///
/// # Errors
/// 406 for an unsupported encoding, 500 for an object that cannot be converted.
pub async fn object(
    code: StatusCode,
    accepted: &Accepted,
    served: &Served,
    view: &ViewOptions,
    object: Object,
) -> Result<Answer, Status> {
    event("About to write a response", Vec::new);
    let span = child("SerializeObject", || vec![KeyValue::text("mediaType", accepted.content_type(false))]);
    let answered = serialize(code, accepted, served, view, object).await?;
    if let Some(size) = answered.body().size_hint().exact() {
        span.event("About to start writing response", || vec![KeyValue::number("size", size)]);
    }
    drop(span);
    event("Writing http response done", Vec::new);
    Ok(answered)
}

async fn serialize(
    code: StatusCode,
    accepted: &Accepted,
    served: &Served,
    view: &ViewOptions,
    object: Object,
) -> Result<Answer, Status> {
    if let (Object::Record(record), View::Whole) = (&object, accepted.view) {
        if accepted.encoding == Encoding::Json
            && !accepted.pretty
            && let Some(json) = json_of(served, record).await?
        {
            let body = ApiBody::parts([json, NEWLINE]);
            return Ok(answer(code, accepted.content_type(false), body));
        }
        if accepted.encoding == Encoding::Protobuf && served.is_plain(record) {
            let message = message(&served.storage_schema, record)?;
            let bytes = kelson_codec::proto::wrap(&served.api_version, &served.gvk.kind, &message);
            return Ok(answer(code, accepted.content_type(false), ApiBody::full(bytes)));
        }
    }
    if let Object::Record(record) = &object
        && accepted.encoding == Encoding::Json
        && !accepted.pretty
        && let Some(cut) = cut(served, accepted.view, view, record)
    {
        return Ok(answer(code, accepted.content_type(false), ApiBody::parts([cut, NEWLINE])));
    }
    let (version, mut items) = match object {
        Object::Record(record) => {
            let value = served.one_working(&record).await?;
            let version = value["metadata"]["resourceVersion"].clone();
            (version, working_items(served, accepted.view, view, vec![value]).await?)
        }
        Object::Tree(value) => {
            let version = value["metadata"]["resourceVersion"].clone();
            (version, items(served, accepted.view, view, vec![value]).await?)
        }
    };
    let item = items.pop().unwrap_or_default();
    match accepted.view {
        View::Whole => tree(code, accepted, &served.schema, item),
        View::Partial(version) => tree(code, accepted, &ObjectSchema::partial(version, false), item),
        View::Table(table_version) => {
            let mut table = table_head(served, table_version, json!({"resourceVersion": version}), true);
            table.insert("rows".into(), Value::Array(vec![item]));
            tree(code, accepted, &ObjectSchema::Open, Value::Object(table))
        }
    }
}

/// A record's metadata, or a table with its row, with the metadata and the object cut from the stored bytes. `None` for whole objects,
/// and where the stored bytes are those of another version.
fn cut(served: &Served, view: View, options: &ViewOptions, record: &Record) -> Option<Bytes> {
    let mut out = BytesMut::new();
    match view {
        View::Partial(version) if !served.works_as_served() || served.is_plain(record) => {
            table::put_partial_json(version, record, &mut out).map(|_| out.freeze())
        }
        View::Table(version) if served.is_plain(record) => {
            let metadata = json!({"resourceVersion": record.revision().to_string()});
            let head = compact(&Value::Object(table_head(served, version, metadata, true)));
            // The rows are the last member, as in upstream's type.
            out.put_slice(head.strip_suffix(b"}")?);
            out.put_slice(b",\"rows\":[");
            table::put_row(served, version, options, record, &mut out);
            out.put_slice(b"]}");
            Some(out.freeze())
        }
        View::Whole | View::Partial(_) | View::Table(_) => None,
    }
}

/// The JSON of a record in the served version, if it is stored or cached; `None` for other built-in kinds.
async fn json_of(served: &Served, record: &Arc<Record>) -> Result<Option<Bytes>, Status> {
    if served.is_plain(record) {
        return Ok(Some(record.bytes()));
    }
    Ok(served.forms(std::slice::from_ref(record)).await?.and_then(|mut forms| forms.pop()))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use kelson_store::{Body, Key, Precondition, RecordMeta, Store, StoreOptions, Write};

    use super::*;
    use crate::catalog::Catalog;
    use crate::catalog::record::parse;

    #[tokio::test]
    async fn a_view_that_is_cut_is_the_view_of_the_tree() {
        let store = Store::in_memory(StoreOptions::default());
        let metadata = r#"{"name":"a","namespace":"n","uid":"u","resourceVersion":"","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"b":"c"}}"#;
        for (kind, rest) in [
            ("ConfigMap", r#""data":{"k":"v"}"#),
            ("Pod", r#""spec":{"containers":[{"name":"c","image":"i"}],"nodeName":"x"},"status":{"phase":"Running"}"#),
        ] {
            let plural = format!("{}s", kind.to_lowercase());
            let served = Catalog::builtin().find("", "v1", &plural).unwrap();
            let json = format!(r#"{{"kind":"{kind}","apiVersion":"v1","metadata":{metadata},{rest}}}"#);
            let write = Write::put(
                Key::new(served.store, "n", "a"),
                Precondition::Any,
                Body::locate(json).unwrap(),
                RecordMeta::default(),
            );
            let record = store.commit(write).await.unwrap().record;
            let options = ViewOptions::usual("2026-01-02T00:00:00Z".parse().unwrap());
            for view in [View::Partial("v1"), View::Table("v1")] {
                let accepted = Accepted { view, ..Accepted::JSON };
                assert!(cut(&served, view, &options, &record).is_some(), "{kind} {view:?}: nothing is decoded");
                let mut bodies = Vec::new();
                for object in [Object::Record(Arc::clone(&record)), Object::Tree(parse(&record))] {
                    let answer = serialize(StatusCode::OK, &accepted, &served, &options, object).await.unwrap();
                    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
                    bodies.push(String::from_utf8(bytes.to_vec()).unwrap());
                }
                assert_eq!(bodies[0], bodies[1], "{kind} {view:?}");
            }
        }
    }
}
