//! Tests of the server on loopback sockets with a simulated resolver.
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::rr::{Name, RData, Record};
use serde_json::json;

use super::*;
use crate::Directory;

async fn server(endpoints: u8) -> Server {
    let d = Directory::default();
    let service = json!({"metadata": {"name": "many", "namespace": "a"}, "spec": {"clusterIP": "None"}});
    d.put_service(&serde_json::from_value(service).unwrap());
    let list: Vec<_> = (0..endpoints).map(|i| json!({"addresses": [format!("10.42.0.{i}")]})).collect();
    let slice = json!({"metadata": {"name": "m", "namespace": "a", "labels": {"kubernetes.io/service-name": "many"}}, "endpoints": list});
    d.put_slice(&serde_json::from_value(slice).unwrap(), true);
    let zone = Zone::new("cluster.local", Arc::new(d)).unwrap();
    start(zone, Forwarder::default(), &Tasks::root("test")).await
}

async fn start(zone: Zone, forwarder: Forwarder, tasks: &Tasks) -> Server {
    let sources = Arc::new(Sources::default());
    Server::start(Ipv4Addr::LOCALHOST.into(), 0, zone, forwarder, sources, tasks).await.unwrap()
}

/// Starts a resolver that answers every query with this many addresses.
async fn resolver(addresses: u8) -> SocketAddr {
    counting_resolver(addresses, Arc::default()).await
}

/// Starts a resolver that also counts the queries.
async fn counting_resolver(addresses: u8, asked: Arc<AtomicUsize>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut b = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut b).await {
            asked.fetch_add(1, Ordering::SeqCst);
            let question = Message::from_vec(&b[..n]).unwrap();
            let mut m = Message::response(question.metadata.id, OpCode::Query);
            m.add_query(question.queries[0].clone());
            let name = question.queries[0].name().clone();
            let record = |i| Record::from_rdata(name.clone(), 5, RData::A(Ipv4Addr::new(192, 0, 2, i).into()));
            m.add_answers((0..addresses).map(record));
            socket.send_to(&m.to_vec().unwrap(), from).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn forwarded_answers_are_no_larger_than_the_client_may_be_sent() {
    let zone = Zone::new("cluster.local", Arc::new(Directory::default())).unwrap();
    let server = start(zone, Forwarder::new(vec![resolver(200).await]), &Tasks::root("test")).await;
    let m = udp(&server, &question("example.org.")).await;
    assert!(m.metadata.truncation && m.answers.is_empty());
    let zone = Zone::new("cluster.local", Arc::new(Directory::default())).unwrap();
    let server = start(zone, Forwarder::new(vec![resolver(3).await]), &Tasks::root("test")).await;
    let m = udp(&server, &question("example.org.")).await;
    assert!(!m.metadata.truncation && m.answers.len() == 3);
}

#[tokio::test]
async fn a_forwarded_answer_is_asked_for_once() {
    let asked = Arc::<AtomicUsize>::default();
    let d = Directory::default();
    let alias = json!({"metadata": {"name": "ext", "namespace": "a"}, "spec": {"type": "ExternalName", "externalName": "Example.org"}});
    d.put_service(&serde_json::from_value(alias).unwrap());
    let zone = Zone::new("cluster.local", Arc::new(d)).unwrap();
    let resolver = counting_resolver(2, Arc::clone(&asked)).await;
    let server = start(zone, Forwarder::new(vec![resolver]), &Tasks::root("test")).await;
    for name in ["example.org.", "EXAMPLE.org.", "ext.a.svc.cluster.local."] {
        let mut m = Message::from_vec(&question(name)).unwrap();
        m.metadata.recursion_desired = true;
        let answer = udp(&server, &m.to_vec().unwrap()).await;
        let addresses = answer.answers.iter().filter(|r| matches!(r.data, RData::A(_))).count();
        assert_eq!((answer.metadata.id, addresses), (m.metadata.id, 2), "{name}");
        assert_eq!(answer.queries[0].name().to_string(), name);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let metrics = server.registry().text();
    for line in [
        "kelson_dns_responses_total{code=\"NOERROR\",protocol=\"udp\"} 3",
        "kelson_dns_cache_hits_total{type=\"success\"} 2",
        "kelson_dns_cache_misses_total 1",
        "kelson_dns_cache_entries 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn its_end_ends_its_tasks() {
    let zone = Zone::new("cluster.local", Arc::new(Directory::default())).unwrap();
    let tasks = Tasks::root("test");
    let server = start(zone, Forwarder::default(), &tasks).await;
    let _silent = TcpStream::connect(server.address()).await.unwrap();
    server.shutdown();
    assert!(tasks.shutdown(Duration::from_secs(10)).await);
}

fn question(name: &str) -> Vec<u8> {
    question_of(name, RecordType::A)
}

fn question_of(name: &str, kind: RecordType) -> Vec<u8> {
    let mut m = Message::query();
    m.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    m.to_vec().unwrap()
}

async fn udp(server: &Server, bytes: &[u8]) -> Message {
    let s = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    s.send_to(bytes, server.address()).await.unwrap();
    let mut b = [0; 4096];
    let n = timeout(Duration::from_secs(10), s.recv(&mut b)).await.unwrap().unwrap();
    Message::from_vec(&b[..n]).unwrap()
}

#[tokio::test]
async fn zone_transfers_are_refused_and_not_passed_on() {
    let zone = Zone::new("cluster.local", Arc::new(Directory::default())).unwrap();
    let server = start(zone, Forwarder::new(vec![resolver(3).await]), &Tasks::root("test")).await;
    for name in ["cluster.local.", "example.org."] {
        for kind in [RecordType::AXFR, RecordType::IXFR] {
            let m = udp(&server, &question_of(name, kind)).await;
            assert_eq!((m.metadata.response_code, m.answers.len()), (ResponseCode::Refused, 0), "{name} {kind}");
        }
    }
}

#[tokio::test]
async fn udp_truncates_and_tcp_answers_completely() {
    let server = server(100).await;
    let q = question("many.a.svc.cluster.local.");
    let short = udp(&server, &q).await;
    assert!(short.metadata.truncation);
    let mut c = TcpStream::connect(server.address()).await.unwrap();
    c.write_all(&[&(q.len() as u16).to_be_bytes(), q.as_slice()].concat()).await.unwrap();
    let mut b = vec![0; usize::from(c.read_u16().await.unwrap())];
    c.read_exact(&mut b).await.unwrap();
    assert_eq!(Message::from_vec(&b).unwrap().answers.len(), 100);
}

#[tokio::test]
async fn negative_answers_carry_the_soa_and_strangers_fail() {
    let server = server(1).await;
    // A name that does not exist, and one without records of the type (RFC 2308): both may be cached for this time.
    let nodata = question_of("many.a.svc.cluster.local.", RecordType::AAAA);
    for (question, code) in
        [(question("no.a.svc.cluster.local."), ResponseCode::NXDomain), (nodata, ResponseCode::NoError)]
    {
        let m = udp(&server, &question).await;
        let [soa] = m.authorities.as_slice() else { panic!("{m:?}") };
        let RData::SOA(data) = &soa.data else { panic!("{soa:?}") };
        assert_eq!((m.metadata.response_code, soa.ttl, data.minimum), (code, 5, 5));
    }
    let m = udp(&server, &question("example.org.")).await;
    assert_eq!(m.metadata.response_code, ResponseCode::ServFail);
}
