//! containerd's own API in addition to CRI, for more than imports: calls in CRI's namespace, and downloads in progress
//! from its content store (containerd's api/services/content/v1), since CRI does not report on a pull before it ends.
use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::channel::unary;
use crate::error::{CriError, CriResult};

/// containerd's namespace of everything created by CRI.
const NAMESPACE: &str = "k8s.io";
const PATH: &str = "/containerd.services.content.v1.Content/ListStatuses";
/// The timeout of the call.
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

/// Returns received bytes by containerd's names of the parts; `None` when this is not containerd.
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

/// Creates a request in CRI's namespace, with a lease if one is given.
pub(crate) fn in_namespace<T>(mut request: Request<T>, lease: Option<&str>) -> CriResult<Request<T>> {
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    if let Some(lease) = lease {
        let value: MetadataValue<Ascii> = lease
            .parse()
            .map_err(|_| CriError::new("Import", Code::Internal, format!("unusable lease id {lease:?}")))?;
        request.metadata_mut().insert("containerd-lease", value);
    }
    Ok(request)
}
