//! The protocol in JSON over HTTP, compatible with etcd's gateway (grpc-gateway; `api/etcdserverpb/gw`), which Patroni
//! and etcd3gw use exclusively. Each path is a method; bodies and answers are protobuf's JSON, and streams have one
//! line for each answer.

mod fields;
mod transcode;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::{Code, Status};

use self::fields::Message;
use super::exchange::{Answering, Exchange, Requests};
use super::face::Face;
use super::methods;
use super::received::Counted;
use super::unread::Pieces;
use crate::proto::method;

/// The path prefix of this gateway.
const ROOT: &str = "/v3/";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The maximum size of a JSON request: a factor for its gRPC limit, and a constant part.
const BYTES_FACTOR: usize = 2;
const OVERHEAD_BYTES: usize = 512 << 10;

/// A path, its method, and the method's messages.
type Route = (&'static str, &'static str, &'static Message, &'static Message);

static ROUTES: &[Route] = &[
    ("kv/range", method::RANGE, &fields::RANGE, &fields::RANGED),
    ("kv/put", method::PUT, &fields::PUT, &fields::WAS_PUT),
    ("kv/deleterange", method::DELETE_RANGE, &fields::DELETE, &fields::DELETED),
    ("kv/txn", method::TXN, &fields::TXN, &fields::TXN_DONE),
    ("kv/compaction", method::COMPACT, &fields::COMPACTION, &fields::HEADER_ALONE),
    ("watch", method::WATCH, &fields::WATCH, &fields::WATCHED),
    ("lease/grant", method::LEASE_GRANT, &fields::GRANT, &fields::GRANTED),
    ("lease/revoke", method::LEASE_REVOKE, &fields::BY_ID, &fields::HEADER_ALONE),
    ("kv/lease/revoke", method::LEASE_REVOKE, &fields::BY_ID, &fields::HEADER_ALONE),
    ("lease/keepalive", method::LEASE_KEEP_ALIVE, &fields::BY_ID, &fields::KEPT_ALIVE),
    ("lease/timetolive", method::LEASE_TIME_TO_LIVE, &fields::TIME_TO_LIVE, &fields::LIVES),
    ("kv/lease/timetolive", method::LEASE_TIME_TO_LIVE, &fields::TIME_TO_LIVE, &fields::LIVES),
    ("lease/leases", method::LEASE_LEASES, &fields::EMPTY, &fields::LEASES),
    ("kv/lease/leases", method::LEASE_LEASES, &fields::EMPTY, &fields::LEASES),
    ("cluster/member/list", method::MEMBER_LIST, &fields::LIST_MEMBERS, &fields::MEMBERS),
    ("cluster/member/add", "/etcdserverpb.Cluster/MemberAdd", &fields::EMPTY, &fields::MEMBERS),
    ("cluster/member/remove", method::MEMBER_REMOVE, &fields::MEMBER_BY_ID, &fields::MEMBERS),
    ("cluster/member/update", method::MEMBER_UPDATE, &fields::MEMBER_BY_ID, &fields::MEMBERS),
    ("cluster/member/promote", method::MEMBER_PROMOTE, &fields::MEMBER_BY_ID, &fields::MEMBERS),
    ("maintenance/alarm", method::ALARM, &fields::ALARM, &fields::RAISED_ALL),
    ("maintenance/status", method::STATUS, &fields::EMPTY, &fields::STATUS),
    ("maintenance/defragment", method::DEFRAGMENT, &fields::EMPTY, &fields::HEADER_ALONE),
    ("maintenance/hash", method::HASH, &fields::EMPTY, &fields::HASHED),
    ("maintenance/hashkv", method::HASH_KV, &fields::HASH_KV, &fields::HASHED_KV),
    ("maintenance/downgrade", "/etcdserverpb.Maintenance/Downgrade", &fields::EMPTY, &fields::EMPTY),
    ("maintenance/snapshot", method::SNAPSHOT, &fields::EMPTY, &fields::SNAPSHOT),
    ("maintenance/transfer-leadership", method::MOVE_LEADER, &fields::MOVE_LEADER, &fields::HEADER_ALONE),
    ("auth/status", method::AUTH_STATUS, &fields::EMPTY, &fields::AUTH_STATUS),
    ("auth/disable", method::AUTH_DISABLE, &fields::EMPTY, &fields::HEADER_ALONE),
    ("auth/enable", "/etcdserverpb.Auth/AuthEnable", &fields::EMPTY, &fields::EMPTY),
    ("auth/authenticate", "/etcdserverpb.Auth/Authenticate", &fields::EMPTY, &fields::EMPTY),
    ("auth/user/list", method::USER_LIST, &fields::EMPTY, &fields::USERS),
    ("auth/user/add", "/etcdserverpb.Auth/UserAdd", &fields::EMPTY, &fields::EMPTY),
    ("auth/user/get", "/etcdserverpb.Auth/UserGet", &fields::EMPTY, &fields::EMPTY),
    ("auth/user/delete", "/etcdserverpb.Auth/UserDelete", &fields::EMPTY, &fields::EMPTY),
    ("auth/user/changepw", "/etcdserverpb.Auth/UserChangePassword", &fields::EMPTY, &fields::EMPTY),
    ("auth/user/grant", "/etcdserverpb.Auth/UserGrantRole", &fields::EMPTY, &fields::EMPTY),
    ("auth/user/revoke", "/etcdserverpb.Auth/UserRevokeRole", &fields::EMPTY, &fields::EMPTY),
    ("auth/role/list", method::ROLE_LIST, &fields::EMPTY, &fields::ROLES),
    ("auth/role/add", "/etcdserverpb.Auth/RoleAdd", &fields::EMPTY, &fields::EMPTY),
    ("auth/role/get", "/etcdserverpb.Auth/RoleGet", &fields::EMPTY, &fields::EMPTY),
    ("auth/role/delete", "/etcdserverpb.Auth/RoleDelete", &fields::EMPTY, &fields::EMPTY),
    ("auth/role/grant", "/etcdserverpb.Auth/RoleGrantPermission", &fields::EMPTY, &fields::EMPTY),
    ("auth/role/revoke", "/etcdserverpb.Auth/RoleRevokePermission", &fields::EMPTY, &fields::EMPTY),
    ("lock/lock", method::LOCK, &fields::LOCK, &fields::LOCKED),
    ("lock/unlock", method::UNLOCK, &fields::UNLOCK, &fields::HEADER_ALONE),
    ("election/campaign", method::CAMPAIGN, &fields::CAMPAIGN, &fields::ELECTED),
    ("election/proclaim", method::PROCLAIM, &fields::PROCLAIM, &fields::HEADER_ALONE),
    ("election/leader", method::LEADER, &fields::BY_NAME, &fields::LEADS),
    ("election/observe", method::OBSERVE, &fields::BY_NAME, &fields::LEADS),
    ("election/resign", method::RESIGN, &fields::RESIGN, &fields::HEADER_ALONE),
];

/// Reports whether a request is for this gateway.
pub(super) fn is_asked<B>(request: &Request<B>) -> bool {
    request.uri().path().starts_with(ROOT)
}

/// Answers a request of the gateway.
pub(super) async fn answer(face: &Arc<Face>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().trim_start_matches(ROOT);
    let Some(&(_, method, asked, answered)) = ROUTES.iter().find(|(known, ..)| *known == path) else {
        return refused(&Status::not_found("Not Found"));
    };
    if request.method() != Method::POST {
        return refused(&Status::unimplemented("Method Not Allowed"));
    }
    // Browsers send it with each POST, other clients do not. Web pages must not access etcd.
    if request.headers().contains_key(header::ORIGIN) {
        return refused(&Status::permission_denied("etcdserver: requests from web pages are not allowed"));
    }
    let limit = face.store.shared().limits().request_bytes_max;
    let bytes_max = limit.saturating_mul(BYTES_FACTOR).saturating_add(OVERHEAD_BYTES);
    let body = Counted::new(request.into_body(), &face.received, bytes_max);
    let exchange = Call { body, bytes_max, asked, answered };
    methods::counted(face, method, exchange).await
}

/// A call in JSON.
struct Call {
    body: Counted<Incoming>,
    bytes_max: usize,
    asked: &'static Message,
    answered: &'static Message,
}

impl Call {
    /// Reads the only request of a body. An empty body is an empty request.
    async fn request<Q: prost::Message + Default>(self) -> Result<Q, Status> {
        let whole = Limited::new(self.body, self.bytes_max).collect().await;
        let bytes = whole.map_err(unreadable)?.to_bytes();
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Q::default());
        }
        let value = serde_json::from_slice(&bytes).map_err(|error| Status::invalid_argument(error.to_string()))?;
        message(self.asked, &value)
    }

    /// Reads the requests of a body as they arrive.
    fn requests<Q: prost::Message + Default + 'static>(self) -> Requests<Q> {
        let reader = BodyValues { body: self.body, buffer: BytesMut::new(), bytes_max: self.bytes_max };
        let asked = self.asked;
        let all = futures::stream::unfold(Some(reader), move |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(value)) => Some((message(asked, &value), Some(reader))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        all.boxed()
    }
}

fn message<Q: prost::Message + Default>(asked: &Message, value: &Value) -> Result<Q, Status> {
    let bytes = transcode::to_bytes(asked, value).map_err(Status::invalid_argument)?;
    Q::decode(&bytes[..]).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Returns the error for a body that could not be read.
fn unreadable(error: Box<dyn std::error::Error + Send + Sync>) -> Status {
    error.downcast::<Status>().map_or_else(|error| Status::invalid_argument(error.to_string()), |status| *status)
}

/// Splits a body into JSON values, with or without white space between them.
struct BodyValues {
    body: Counted<Incoming>,
    buffer: BytesMut,
    bytes_max: usize,
}

impl BodyValues {
    async fn next(&mut self) -> Result<Option<Value>, Status> {
        loop {
            let next = {
                let mut values = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<Value>();
                values.next().map(|value| (value, values.byte_offset()))
            };
            match next {
                Some((Ok(value), read)) => {
                    let _ = self.buffer.split_to(read);
                    return Ok(Some(value));
                }
                Some((Err(error), _)) if !error.is_eof() => return Err(Status::invalid_argument(error.to_string())),
                Some((Err(_), _)) | None => {}
            }
            if self.buffer.len() > self.bytes_max {
                return Err(Status::invalid_argument("length limit exceeded"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| self.buffer.extend_from_slice(data)),
                Some(Err(error)) => match error.downcast::<Status>() {
                    Ok(status) => return Err(*status),
                    Err(error) => return Err(Status::cancelled(error.to_string())),
                },
                None if self.buffer.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => return Err(Status::invalid_argument("unexpected EOF")),
            }
        }
    }
}

impl Exchange for Call {
    fn unary<Q, A, Fut>(self, face: Arc<Face>, call: impl FnOnce(Q) -> Fut + Send + 'static) -> Answering
    where
        Q: prost::Message + Default + Send + 'static,
        A: prost::Message + Default + Send + 'static,
        Fut: Future<Output = Result<A, Status>> + Send + 'static,
    {
        let answered = self.answered;
        Box::pin(async move {
            let request = match self.request().await {
                Ok(request) => request,
                Err(status) => return refused(&status),
            };
            match call(request).await.and_then(|answer| json_of(answered, &answer)) {
                Ok(value) => {
                    let text = Bytes::from(value.to_string());
                    drop(value);
                    match face.unread.take(text.len()).await {
                        Ok(room) => respond(StatusCode::OK, Pieces::body(Full::new(text), room)),
                        Err(status) => refused(&status),
                    }
                }
                Err(status) => refused(&status),
            }
        })
    }

    fn server_stream<Q, A, S>(self, _: Arc<Face>, call: impl FnOnce(Q) -> S + Send + 'static) -> Answering
    where
        Q: prost::Message + Default + Send + 'static,
        A: prost::Message + Default + Send + 'static,
        S: Stream<Item = Result<A, Status>> + Send + 'static,
    {
        let answered = self.answered;
        Box::pin(async move {
            match self.request().await {
                Ok(request) => lines(answered, call(request).boxed()).await,
                Err(status) => refused(&status),
            }
        })
    }

    fn bidi<Q, A, S>(self, _: Arc<Face>, call: impl FnOnce(Requests<Q>) -> S + Send + 'static) -> Answering
    where
        Q: prost::Message + Default + Send + 'static,
        A: prost::Message + Default + Send + 'static,
        S: Stream<Item = Result<A, Status>> + Send + 'static,
    {
        let answered = self.answered;
        let answers = call(self.requests()).boxed();
        Box::pin(lines(answered, answers))
    }

    fn refuse(self, status: Status) -> Response<Body> {
        refused(&status)
    }
}

fn json_of(answered: &Message, answer: &impl prost::Message) -> Result<Value, Status> {
    let value = transcode::to_json(answered, &answer.encode_to_vec());
    value.ok_or_else(|| Status::internal("cannot decode the response"))
}

/// Returns the answers of a stream, one per line. The first of them decides the status.
async fn lines<A: prost::Message + 'static>(
    answered: &'static Message,
    mut answers: BoxStream<'static, Result<A, Status>>,
) -> Response<Body> {
    let first = match answers.next().await {
        Some(Err(status)) => return refused(&status),
        first => first,
    };
    let line = move |answer: Result<A, Status>| {
        let value = match answer.and_then(|answer| json_of(answered, &answer)) {
            Ok(result) => json!({"result": result}),
            Err(status) => json!({"error": of_stream(&status)}),
        };
        Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(format!("{value}\n"))))
    };
    let all = futures::stream::iter(first).chain(answers).map(line);
    respond(StatusCode::OK, Body::new(StreamBody::new(all)))
}

fn respond(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// Returns an error in the form of gateways of etcd 3.6; the field `error` is from those of 3.5, and clients read it.
fn refused(status: &Status) -> Response<Body> {
    let body = json!({
        "error": status.message(), "message": status.message(), "code": status.code() as i32, "details": [],
    });
    let mut response = respond(http_status(status.code()), Body::new(Full::new(Bytes::from(body.to_string()))));
    response.extensions_mut().insert(status.clone());
    response
}

/// Returns the error that ends a stream, with the field names of both.
fn of_stream(status: &Status) -> Value {
    let (code, http) = (status.code() as i32, http_status(status.code()));
    json!({
        "code": code, "grpc_code": code, "http_code": http.as_u16(),
        "http_status": http.canonical_reason().unwrap_or_default(), "message": status.message(), "details": [],
    })
}

/// Returns the HTTP status that grpc-gateway uses for a code.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
