//! Component statuses: the health of control plane components, checked on request.
use http::StatusCode;
use kelson_meta::Status;
use serde_json::{Value, json};

use crate::catalog::Served;
use crate::catalog::record::Object;
use crate::read::{encode, table};
use crate::request::answer::{self, Answer};
use crate::request::negotiate::View;
use crate::shared::Server;
use crate::shared::context::RequestContext;

/// The names that clients expect; `etcd-0` is the store.
const NAMES: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];

/// Serves one component status, or all of them.
///
/// # Errors
/// 404, 406.
pub async fn serve(cx: &RequestContext, served: &Served) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let asked = &cx.info.name;
    if !asked.is_empty() && cx.info.verb == "get" {
        let name = NAMES.iter().find(|n| *n == asked).ok_or_else(|| Status::not_found(&served.gr, asked))?;
        let object = Object::Tree(component(&cx.server, name));
        return encode::object(StatusCode::OK, &accepted, served, &view, object).await;
    }
    let all = NAMES.iter().map(|n| component(&cx.server, n)).collect();
    let items = table::items(served, accepted.view, &view, all).await?;
    let value = match accepted.view {
        View::Table(version) => {
            let mut table = table::table_head(served, version, json!({}), true);
            table.insert("rows".into(), items.into());
            Value::Object(table)
        }
        View::Whole | View::Partial(_) => {
            let kind = table::list_kind(served, accepted.view);
            json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {}, "items": items})
        }
    };
    answer::tree(StatusCode::OK, &accepted, &served.list_schema, value)
}

fn component(server: &Server, name: &str) -> Value {
    let health = match name {
        "etcd-0" => server.store.health().not_ready().map_or(Ok(()), Err),
        other => server.health.component(other),
    };
    let condition = match health {
        Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
        Err(why) => json!({"type": "Healthy", "status": "False", "error": why}),
    };
    json!({"apiVersion": "v1", "kind": "ComponentStatus", "metadata": {"name": name}, "conditions": [condition]})
}
