//! List: a header and records, sent in pieces as the client reads them, so that memory does not grow with the list in any encoding.
mod json;
mod protobuf;
mod run;
mod threads;
mod yaml;

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::StatusCode;
use kelson_codec::Encoding;
use kelson_meta::Status;
use kelson_traces::{KeyValue, child};
use kelson_transport::TransportError;

use run::{ListPieces, Run};
use threads::Threads;

use crate::catalog::Served;
use crate::read::choose;
use crate::read::page::{PIECE_BYTES, Page, PageRequest, Records, page, page_by_object};
use crate::request::answer::{self, Answer};
use crate::request::body::ApiBody;
use crate::request::negotiate::{Accepted, View};
use crate::request::selectors::Selectors;
use crate::request::version_param::ListParams;
use crate::request::view::ViewOptions;
use crate::shared::context::RequestContext;

/// Serves a list of a kind's objects that match the selectors.
///
/// # Errors
/// 400, 406, 410, 504.
pub async fn list(cx: &RequestContext, served: &Arc<Served>) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let selectors = Selectors::new(served, &cx.selectors)?;
    let at = ListParams::new(&cx.query, cx.server.clock.now())?;
    let namespace = Some(cx.namespace(served)).filter(|n| !n.is_empty());
    let found = child("cacher.GetList", || cx.storage_attributes(served));
    let records = at.view(&cx.server.store, served, namespace, &selectors).await?;
    found.event("watchCache fresh enough", Vec::new);
    found.event("Listed items from cache", || vec![KeyValue::number("count", records.len())]);
    let page = select_page((&at, namespace), records, served, selectors).await?;
    // A list without a limit is filtered while it is sent.
    if let Records::Some(chosen) = &page.records {
        found.event("Filtered items", || vec![KeyValue::number("count", chosen.len())]);
    }
    drop(found);
    write(cx, served, accepted, view, page).await
}

/// The requested page of a view.
///
/// # Errors
/// The conversion's error, if objects must be decoded to select them.
pub(crate) async fn select_page(
    asked: PageRequest<'_>,
    view: kelson_store::ListView,
    served: &Served,
    selectors: Selectors,
) -> Result<Page, Status> {
    match choose::needs_objects(served, &selectors) {
        true => page_by_object(asked, view, served, &selectors).await,
        false => Ok(page(asked, view, selectors).await),
    }
}

/// Answers with the records of a page.
///
/// # Errors
/// An object cannot be converted. Only the first piece is made before the response begins.
pub(crate) async fn write(
    cx: &RequestContext,
    served: &Arc<Served>,
    accepted: Accepted,
    options: ViewOptions,
    page: Page,
) -> Result<Answer, Status> {
    let view = accepted.view;
    let converted = matches!(view, View::Table(_)) || view == View::Whole && served.converts();
    let computed = converted || accepted.pretty || accepted.encoding == Encoding::Yaml;
    let cuts_rows = matches!(view, View::Table(_)) && !accepted.pretty && !served.converts();
    let run = Run { served: Arc::clone(served), view, options, page, computed, cuts_rows, next: 0, ended: false };
    let threads = Threads::of(cx);
    let body = match accepted.encoding {
        Encoding::Protobuf => stream_pieces(protobuf::ProtobufPieces::new(run, &threads).await?, threads).await?,
        Encoding::Json => stream_pieces(json::JsonPieces::new(run, accepted.pretty), threads).await?,
        Encoding::Yaml => stream_pieces(yaml::YamlPieces::new(run)?, threads).await?,
    };
    Ok(answer::answer(StatusCode::OK, accepted.content_type(false), body))
}

/// Makes the body of a list. The first piece is made before the response begins, so that a failed conversion is an error status. If a
/// later piece fails, the body is aborted, so that clients do not take it as complete.
async fn stream_pieces<P: ListPieces>(pieces: P, threads: Threads) -> Result<ApiBody, Status> {
    let (mut pieces, mut first, mut bytes, mut is_first) = (pieces, Vec::new(), 0, true);
    // Pieces may be small, or empty where few records match.
    while bytes < PIECE_BYTES {
        let (next, piece) = threads.run(pieces, std::mem::take(&mut is_first), ListPieces::next).await?;
        pieces = next;
        bytes += piece.as_ref().map_or(0, Bytes::len);
        first.extend(piece);
        if pieces.run().ended {
            return Ok(ApiBody::parts(first));
        }
    }
    let rest = stream::unfold(Some((pieces, threads)), |state| async move {
        let (mut pieces, threads) = state?;
        let served = Arc::clone(&pieces.run().served);
        loop {
            match threads.run(pieces, false, ListPieces::next).await {
                Ok((next, Some(piece))) if piece.is_empty() => pieces = next,
                Ok((pieces, piece)) => return piece.map(|piece| (Ok(piece), Some((pieces, threads)))),
                Err(error) => {
                    tracing::error!(resource = %served.gr, %error, "aborting a list: an object cannot be converted");
                    return Some((Err(TransportError::new(error)), None));
                }
            }
        }
    });
    Ok(ApiBody::stream(stream::iter(first.into_iter().map(Ok::<Bytes, TransportError>)).chain(rest)))
}
