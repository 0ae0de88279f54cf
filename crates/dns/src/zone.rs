//! Answers queries for the cluster domain from the [`Directory`] (Kubernetes DNS specification 1.1.0).
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use kelson_meta::ObjectKey;

use crate::Directory;
use crate::directory::{Endpoint, Port, Target};

/// The TTL of responses in seconds. It is short, because endpoints change often.
const TTL_SECONDS: u32 = 5;
/// The version of the specification in the record `dns-version`.
const SPEC_VERSION: &str = "1.1.0";
/// The weight in SRV records, which is equal for all targets.
const SRV_WEIGHT: u16 = 100;

/// The cluster domain.
pub struct Zone {
    domain: Name,
    directory: Arc<Directory>,
}

/// The answer to a question.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// The name is outside of the zone and must be forwarded.
    Elsewhere,
    /// The records, possibly none, and a response code.
    Records {
        /// The answer section.
        answers: Vec<Record>,
        /// The code: `NoError` or `NXDomain`.
        code: ResponseCode,
    },
    /// An alias to a name outside the zone, which the caller must resolve.
    Alias {
        /// The CNAME record for the response.
        cname: Box<Record>,
        /// The target of an alias.
        target: Name,
    },
}

impl Zone {
    /// Returns the zone of a domain such as `cluster.local`. The error says why the name is invalid.
    pub fn new(domain: &str, directory: Arc<Directory>) -> Result<Self, String> {
        let mut domain =
            Name::from_ascii(domain).map_err(|e| format!("cluster domain {domain:?}: {e}"))?.to_lowercase();
        domain.set_fqdn(true);
        Ok(Self { domain, directory })
    }

    /// Answers one question.
    pub fn answer(&self, query: &Query) -> Answer {
        let name = query.name().to_lowercase();
        if self.domain.zone_of(&name) {
            return self.ours(query.name(), &name, query.query_type());
        }
        if let Ok(net) = name.parse_arpa_name()
            && let Some(pointer) = self.reverse(net.addr())
        {
            let answers = match query.query_type() {
                RecordType::PTR | RecordType::ANY => vec![record(query.name(), RData::PTR(PTR(pointer)))],
                _ => vec![],
            };
            return Answer::Records { answers, code: ResponseCode::NoError };
        }
        Answer::Elsewhere
    }

    /// Returns the SOA record with the TTL of negative responses.
    pub fn soa(&self) -> Record {
        let label = |l: &str| self.domain.prepend_label(l).unwrap_or_else(|_| self.domain.clone());
        let soa = SOA::new(
            label("ns").prepend_label("dns").unwrap_or_else(|_| label("ns")),
            label("hostmaster"),
            1,
            7200,
            1800,
            86400,
            TTL_SECONDS,
        );
        record(&self.domain, RData::SOA(soa))
    }

    fn ours(&self, asked: &Name, name: &Name, kind: RecordType) -> Answer {
        let depth = usize::from(name.num_labels() - self.domain.num_labels());
        let labels: Vec<String> = name.iter().take(depth).map(|l| String::from_utf8_lossy(l).into_owned()).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        match labels.as_slice() {
            [] | ["svc" | "pod"] => {
                found(if labels.is_empty() && kind == RecordType::SOA { vec![self.soa()] } else { vec![] })
            }
            ["dns-version"] => found(match kind {
                RecordType::TXT => vec![record(asked, RData::TXT(TXT::new(vec![SPEC_VERSION.to_owned()])))],
                _ => vec![],
            }),
            [namespace, "svc" | "pod"] if self.directory.has_namespace(namespace) => found(vec![]),
            [address, namespace, "pod"] if self.directory.has_namespace(namespace) => pod(asked, address, kind),
            [service, namespace, "svc"] => self.service(asked, &ObjectKey::new(*namespace, *service), kind),
            [host, service, namespace, "svc"] => self.host(asked, host, &ObjectKey::new(*namespace, *service), kind),
            [port, protocol, service, namespace, "svc"] if port.starts_with('_') && protocol.starts_with('_') => {
                self.srv(asked, &port[1..], &protocol[1..], &ObjectKey::new(*namespace, *service), kind)
            }
            _ => missing(),
        }
    }

    fn service(&self, asked: &Name, key: &ObjectKey, kind: RecordType) -> Answer {
        let Some(entry) = self.directory.service(key) else { return missing() };
        match &entry.target {
            Target::ClusterIps(_) | Target::Headless if kind == RecordType::SRV => {
                found(self.srv_records(asked, key, &entry.target, &entry.ports, |_| true))
            }
            Target::ClusterIps(ips) => found(addresses(asked, ips.iter().copied(), kind)),
            Target::Headless => {
                let mut ips: Vec<IpAddr> = self.directory.endpoints(key).iter().map(|e| e.address).collect();
                ips.dedup();
                // A headless service without endpoints does not exist as a name, as clients that wait for peers
                // expect.
                if ips.is_empty() { missing() } else { found(addresses(asked, ips.into_iter(), kind)) }
            }
            Target::External(name) => self.external(asked, name),
        }
    }

    fn external(&self, asked: &Name, target: &str) -> Answer {
        let Ok(mut target) = Name::from_str_relaxed(target) else { return missing() };
        target.set_fqdn(true);
        Answer::Alias { cname: Box::new(record(asked, RData::CNAME(CNAME(target.clone())))), target }
    }

    fn host(&self, asked: &Name, host: &str, key: &ObjectKey, kind: RecordType) -> Answer {
        let matching: Vec<Endpoint> =
            self.directory.endpoints(key).into_iter().filter(|e| e.hostname.eq_ignore_ascii_case(host)).collect();
        if matching.is_empty() || self.directory.service(key).is_none() {
            return missing();
        }
        found(addresses(asked, matching.iter().map(|e| e.address), kind))
    }

    fn srv(&self, asked: &Name, port: &str, protocol: &str, key: &ObjectKey, kind: RecordType) -> Answer {
        let Some(entry) = self.directory.service(key) else { return missing() };
        let wanted = |p: &Port| {
            (port == "*" || p.name.eq_ignore_ascii_case(port))
                && (protocol == "*" || same_protocol(&p.protocol, protocol))
        };
        let records = self.srv_records(asked, key, &entry.target, &entry.ports, wanted);
        match (records.is_empty(), kind) {
            (true, _) => missing(),
            (false, RecordType::SRV | RecordType::ANY) => found(records),
            (false, _) => found(vec![]),
        }
    }

    fn srv_records(
        &self,
        asked: &Name,
        key: &ObjectKey,
        target: &Target,
        ports: &[Port],
        wanted: impl Fn(&Port) -> bool,
    ) -> Vec<Record> {
        let base = [key.name.as_str(), key.namespace.as_str(), "svc"];
        let srv = |target: Option<Name>, port: u16| {
            target.map(|t| record(asked, RData::SRV(SRV::new(0, SRV_WEIGHT, port, t))))
        };
        if *target == Target::Headless {
            let endpoints = self.directory.endpoints(key);
            let each = endpoints.iter().flat_map(|e| e.ports.iter().filter(|p| wanted(p)).map(move |p| (e, p.port)));
            return each
                .filter_map(|(e, port)| srv(self.below(&[&[e.hostname.as_str()], &base[..]].concat()), port))
                .collect();
        }
        ports.iter().filter(|p| wanted(p)).filter_map(|p| srv(self.below(&base), p.port)).collect()
    }

    fn below(&self, labels: &[&str]) -> Option<Name> {
        labels.iter().rev().try_fold(self.domain.clone(), |name, l| name.prepend_label(*l)).ok()
    }

    fn reverse(&self, address: IpAddr) -> Option<Name> {
        if let Some(k) = self.directory.service_at(address) {
            return self.below(&[&k.name, &k.namespace, "svc"]);
        }
        let (host, k) = self.directory.endpoint_at(address)?;
        self.below(&[&host, &k.name, &k.namespace, "svc"])
    }
}

fn same_protocol(of_port: &str, asked: &str) -> bool {
    let of_port = if of_port.is_empty() { "TCP" } else { of_port };
    of_port.eq_ignore_ascii_case(asked)
}

fn found(answers: Vec<Record>) -> Answer {
    Answer::Records { answers, code: ResponseCode::NoError }
}

fn missing() -> Answer {
    Answer::Records { answers: vec![], code: ResponseCode::NXDomain }
}

/// Answers `1-2-3-4.NAMESPACE.pod`, a name that contains the address.
fn pod(asked: &Name, label: &str, kind: RecordType) -> Answer {
    let v4 = label.replace('-', ".").parse::<IpAddr>();
    match v4.or_else(|_| label.replace('-', ":").parse::<IpAddr>()) {
        Ok(ip) => found(addresses(asked, std::iter::once(ip), kind)),
        Err(_) => missing(),
    }
}

fn addresses(asked: &Name, ips: impl Iterator<Item = IpAddr>, kind: RecordType) -> Vec<Record> {
    ips.filter_map(|ip| match (ip, kind) {
        (IpAddr::V4(v4), RecordType::A | RecordType::ANY) => Some(record(asked, RData::A(A(v4)))),
        (IpAddr::V6(v6), RecordType::AAAA | RecordType::ANY) => Some(record(asked, RData::AAAA(AAAA(v6)))),
        _ => None,
    })
    .collect()
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL_SECONDS, data)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::directory::{EndpointSlice, Service};

    fn zone() -> Zone {
        let d = Directory::default();
        let services = [
            json!({"metadata": {"name": "web", "namespace": "a"}, "spec": {"clusterIP": "10.43.0.7", "clusterIPs": ["10.43.0.7"], "ports": [{"name": "http", "port": 80}]}}),
            json!({"metadata": {"name": "db", "namespace": "a"}, "spec": {"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]}}),
            json!({"metadata": {"name": "ext", "namespace": "a"}, "spec": {"type": "ExternalName", "externalName": "example.org"}}),
            json!({"metadata": {"name": "was-ext", "namespace": "a"}, "spec": {"type": "ClusterIP", "externalName": "example.org", "clusterIP": "10.43.0.8"}}),
            json!({"metadata": {"name": "empty", "namespace": "a"}, "spec": {"clusterIP": "None"}}),
        ];
        for s in services {
            d.put_service(&serde_json::from_value::<Service>(s).unwrap());
        }
        let slice = json!({"metadata": {"name": "db-1", "namespace": "a", "labels": {"kubernetes.io/service-name": "db"}},
            "endpoints": [{"addresses": ["10.42.0.5"], "hostname": "db-0", "conditions": {"ready": true}},
                          {"addresses": ["10.42.0.6"], "conditions": {}},
                          {"addresses": ["10.42.0.9"], "conditions": {"ready": false}}],
            "ports": [{"name": "pg", "port": 5432, "protocol": "TCP"}]});
        d.put_slice(&serde_json::from_value::<EndpointSlice>(slice).unwrap(), true);
        Zone::new("cluster.local", Arc::new(d)).unwrap()
    }

    fn ask(z: &Zone, name: &str, kind: RecordType) -> String {
        match z.answer(&Query::query(Name::from_ascii(name).unwrap(), kind)) {
            Answer::Elsewhere => "elsewhere".into(),
            Answer::Alias { target, .. } => format!("alias {target}"),
            Answer::Records { answers, code: ResponseCode::NXDomain } if answers.is_empty() => "nxdomain".into(),
            Answer::Records { answers, .. } => {
                answers.iter().map(|r| r.data.to_string()).collect::<Vec<_>>().join(" | ")
            }
        }
    }

    #[test]
    fn by_the_specification() {
        use RecordType::{A, AAAA, PTR, SRV, TXT};
        let z = zone();
        for (name, kind, want) in [
            ("web.a.svc.cluster.local.", A, "10.43.0.7"),
            ("WEB.a.svc.Cluster.local.", A, "10.43.0.7"),
            ("web.a.svc.cluster.local.", AAAA, ""),
            ("none.a.svc.cluster.local.", A, "nxdomain"),
            ("web.b.svc.cluster.local.", A, "nxdomain"),
            ("db.a.svc.cluster.local.", A, "10.42.0.5 | 10.42.0.6"),
            ("empty.a.svc.cluster.local.", A, "nxdomain"),
            ("db-0.db.a.svc.cluster.local.", A, "10.42.0.5"),
            ("10-42-0-6.db.a.svc.cluster.local.", A, "10.42.0.6"),
            ("db-1.db.a.svc.cluster.local.", A, "nxdomain"),
            ("_http._tcp.web.a.svc.cluster.local.", SRV, "0 100 80 web.a.svc.cluster.local."),
            ("_http._udp.web.a.svc.cluster.local.", SRV, "nxdomain"),
            (
                "_pg._tcp.db.a.svc.cluster.local.",
                SRV,
                "0 100 5432 db-0.db.a.svc.cluster.local. | 0 100 5432 10-42-0-6.db.a.svc.cluster.local.",
            ),
            ("ext.a.svc.cluster.local.", A, "alias example.org."),
            ("was-ext.a.svc.cluster.local.", A, "10.43.0.8"),
            ("7.0.43.10.in-addr.arpa.", PTR, "web.a.svc.cluster.local."),
            ("5.0.42.10.in-addr.arpa.", PTR, "db-0.db.a.svc.cluster.local."),
            ("6.0.42.10.in-addr.arpa.", PTR, "elsewhere"),
            ("1-2-3-4.a.pod.cluster.local.", A, "1.2.3.4"),
            ("1-2-3.a.pod.cluster.local.", A, "nxdomain"),
            ("a.svc.cluster.local.", A, ""),
            ("svc.cluster.local.", A, ""),
            ("dns-version.cluster.local.", TXT, "1.1.0"),
            ("nonsense.cluster.local.", A, "nxdomain"),
            ("example.org.", A, "elsewhere"),
        ] {
            assert_eq!(ask(&z, name, kind), want, "{name} {kind}");
        }
    }

    #[test]
    fn what_goes_is_forgotten() {
        let z = zone();
        z.directory.remove_service(&ObjectKey::new("a", "web"));
        assert_eq!(ask(&z, "web.a.svc.cluster.local.", RecordType::A), "nxdomain");
        assert_eq!(ask(&z, "7.0.43.10.in-addr.arpa.", RecordType::PTR), "elsewhere");
        let gone =
            json!({"metadata": {"name": "db-1", "namespace": "a", "labels": {"kubernetes.io/service-name": "db"}}});
        z.directory.put_slice(&serde_json::from_value::<EndpointSlice>(gone).unwrap(), false);
        assert_eq!(ask(&z, "db-0.db.a.svc.cluster.local.", RecordType::A), "nxdomain");
        assert_eq!(ask(&z, "5.0.42.10.in-addr.arpa.", RecordType::PTR), "elsewhere");
    }
}
