//! Content negotiation: the headers that clients send and the encodings that they get.
use kelson_codec::{Accept, Encoding, TableRequest, media};

const ALL: &[Encoding] = &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf];

#[track_caller]
fn chosen(header: &str) -> (Encoding, Option<TableRequest>) {
    let accept = Accept::negotiate(Some(header), ALL).expect("acceptable");
    (accept.encoding, accept.transform)
}

#[test]
fn what_clients_send() {
    assert_eq!(Accept::negotiate(None, ALL).map(|a| a.encoding), Some(Encoding::Json));
    assert_eq!(chosen("*/*").0, Encoding::Json);
    assert_eq!(chosen("application/vnd.kubernetes.protobuf,application/json").0, Encoding::Protobuf);
    assert_eq!(chosen("application/json;q=0.5, application/yaml").0, Encoding::Yaml);
    let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    assert_eq!(chosen(kubectl), (Encoding::Json, Some(TableRequest::Table("v1".into()))));
    let metadata =
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    assert_eq!(chosen(metadata), (Encoding::Protobuf, Some(TableRequest::PartialObjectMetadataList("v1".into()))));
    assert_eq!(chosen("application/json;as=Picture;g=meta.k8s.io;v=v1,application/yaml"), (Encoding::Yaml, None));
    let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    assert_eq!(Accept::negotiate(Some(discovery), ALL).and_then(|a| a.discovery).as_deref(), Some("v2"));
    assert!(
        Accept::negotiate(Some("application/vnd.kubernetes.protobuf;stream=watch"), ALL)
            .is_some_and(|a| a.stream_watch)
    );
    assert_eq!(Accept::negotiate(Some("image/png"), ALL), None);
    assert_eq!(Accept::negotiate(Some("application/json;q=0"), ALL), None);
    assert_eq!(Accept::negotiate(Some("application/vnd.kubernetes.protobuf"), &[Encoding::Json]), None);
}

#[test]
fn bodies() {
    assert_eq!(media::content_type(None), Ok(Encoding::Json));
    assert_eq!(media::content_type(Some("application/json; charset=utf-8")), Ok(Encoding::Json));
    assert_eq!(media::content_type(Some("Application/YAML")), Ok(Encoding::Yaml));
    assert_eq!(media::content_type(Some("text/html")), Err("text/html".into()));
}
