//! What containerd is fetching at the moment, from its content store (containerd's api/services/content/v1): CRI says
//! nothing of a pull before it ends.
use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message;
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::import::in_namespace;
use crate::CriResult;
use crate::client::unary;

const PATH: &str = "/containerd.services.content.v1.Content/ListStatuses";
/// How long the question may take.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, PartialEq, Message)]
struct ListStatuses {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Statuses {
    #[prost(message, repeated, tag = "1")]
    statuses: Vec<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "3")]
    reference: String,
    #[prost(int64, tag = "4")]
    offset: i64,
}

/// Bytes that came so far, by containerd's names of the pieces; `None`: this is no containerd.
pub(crate) async fn transfers(channel: &Channel) -> CriResult<Option<BTreeMap<String, u64>>> {
    let request = in_namespace(Request::new(ListStatuses::default()), None)?;
    match unary::<_, Statuses>(channel, "ListStatuses", PATH, Some(LIMIT), request).await {
        Ok(answer) => {
            let bytes = |s: Status| (s.reference, u64::try_from(s.offset).unwrap_or_default());
            Ok(Some(answer.statuses.into_iter().map(bytes).collect()))
        }
        Err(e) if e.code == Code::Unimplemented => Ok(None),
        Err(e) => Err(e),
    }
}
