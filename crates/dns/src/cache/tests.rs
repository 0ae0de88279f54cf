//! Tests of which responses are cached, for how long, and with how much memory.
use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::rdata::{CNAME, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::*;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question(text: &str) -> Message {
    let mut message = Message::query();
    message.metadata.id = 77;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(text), RecordType::A));
    message
}

fn reply(to: &Message, code: ResponseCode) -> Message {
    let mut message = Message::response(1, OpCode::Query);
    message.metadata.response_code = code;
    message.add_query(to.queries[0].clone());
    message
}

fn address(of: &str, ttl: u32) -> Record {
    Record::from_rdata(name(of), ttl, RData::A(Ipv4Addr::new(192, 0, 2, 1).into()))
}

fn soa(ttl: u32, negative: u32) -> Record {
    let data = SOA::new(name("ns.example.org."), name("root.example.org."), 1, 7200, 1800, 86400, negative);
    Record::from_rdata(name("example.org."), ttl, RData::SOA(data))
}

/// Returns the seconds for which a response for `web.example.org` is cached. The cached response must have its full
/// TTLs.
fn kept(change: impl FnOnce(&mut Message), code: ResponseCode) -> Option<u64> {
    let asked = question("web.example.org.");
    let mut message = reply(&asked, code);
    change(&mut message);
    let (now, asked) = (Instant::now(), asked.to_vec().unwrap());
    let key = Key::of(&asked).unwrap();
    let mut cache = Cache::new(CACHE_BYTES_MAX);
    cache.put(key.clone(), &message.to_vec().unwrap(), now);
    let is_kept = |seconds: &u64| cache.get(&key, &asked, now + Duration::from_secs(*seconds)).is_some();
    (0..=100).rev().find(is_kept).map(|last| last + 1)
}

#[test]
fn answers_are_kept_for_their_smallest_ttl() {
    use ResponseCode::{NXDomain, NoError, Refused, ServFail};
    let web = "web.example.org.";
    let alias = |ttl| Record::from_rdata(name(web), ttl, RData::CNAME(CNAME(name("a.example.org."))));
    assert_eq!(kept(|m| _ = m.add_answer(address(web, 20)), NoError), Some(20));
    assert_eq!(kept(|m| _ = m.add_answer(alias(9)).add_answer(address("a.example.org.", 20)), NoError), Some(9));
    assert_eq!(kept(|m| _ = m.add_answer(address(web, 20)).add_authority(soa(4, 90)), NoError), Some(4));
    assert_eq!(kept(|m| _ = m.add_answer(address(web, 86400)), NoError), Some(30), "no longer than the limit");
    assert_eq!(kept(|m| _ = m.add_answer(address(web, 0)), NoError), None);
    assert_eq!(kept(|m| _ = m.add_answer(address(web, u32::MAX)), NoError), None);
    assert_eq!(kept(|m| _ = m.add_answer(address(web, 20)), ServFail), None);
    assert_eq!(kept(|m| _ = m.add_answer(address(web, 20)), Refused), None);
    let truncated = |m: &mut Message| {
        m.add_answer(address(web, 20));
        m.metadata.truncation = true;
    };
    assert_eq!(kept(truncated, NoError), None);
    // RFC 2308: the TTL of negative answers, no longer than that of the record that says so.
    assert_eq!(kept(|m| _ = m.add_authority(soa(20, 12)), NXDomain), Some(12));
    assert_eq!(kept(|m| _ = m.add_authority(soa(7, 12)), NXDomain), Some(7));
    assert_eq!(kept(|m| _ = m.add_authority(soa(20, 12)), NoError), Some(12));
    assert_eq!(kept(|m| _ = m.add_answer(alias(9)).add_authority(soa(20, 12)), NoError), Some(9));
    assert_eq!(kept(|m| _ = m.add_answer(alias(9)), NoError), None, "an alias without the records behind it");
    assert_eq!(kept(|_| {}, NXDomain), None, "without the SOA record");
    assert_eq!(kept(|m| _ = m.add_authority(soa(20, 0)), NXDomain), None);
}

#[test]
fn a_kept_answer_is_one_to_the_question_that_is_asked_now() {
    let (now, first) = (Instant::now(), question("web.example.org."));
    let mut message = reply(&first, ResponseCode::NoError);
    message.add_answer(address("web.example.org.", 20)).add_answer(address("web.example.org.", 25));
    message.set_edns(Edns::new());
    let mut cache = Cache::new(CACHE_BYTES_MAX);
    let first = first.to_vec().unwrap();
    cache.put(Key::of(&first).unwrap(), &message.to_vec().unwrap(), now);
    let mut second = question("WEB.Example.org.");
    second.metadata.id = 4711;
    let second = second.to_vec().unwrap();
    let key = Key::of(&second).unwrap();
    let (found, kind) = cache.get(&key, &second, now + Duration::from_secs(6)).unwrap();
    assert_eq!(kind, AnswerKind::Positive);
    assert_eq!(wire::question(&found), wire::question(&second));
    assert_eq!(found[wire::question(&found).unwrap()], second[wire::question(&second).unwrap()], "its spelling");
    let found = Message::from_vec(&found).unwrap();
    assert_eq!((found.metadata.id, found.answers[0].ttl, found.answers[1].ttl), (4711, 14, 19));
    assert!(found.edns.is_some(), "its flags are no TTL");
}

#[test]
fn questions_differ_by_name_type_flags_and_edns() {
    let key = |change: &dyn Fn(&mut Message)| {
        let mut message = question("web.example.org.");
        change(&mut message);
        Key::of(&message.to_vec().unwrap())
    };
    let edns = |m: &mut Message, dnssec: bool| {
        let mut edns = Edns::new();
        edns.set_dnssec_ok(dnssec);
        m.set_edns(edns);
    };
    let all = [
        key(&|_| {}),
        key(&|m| _ = m.queries[0].set_name(name("b.example.org."))),
        key(&|m| _ = m.queries[0].set_query_type(RecordType::AAAA)),
        key(&|m| m.metadata.recursion_desired = false),
        key(&|m| m.metadata.checking_disabled = true),
        key(&|m| edns(m, false)),
        key(&|m| edns(m, true)),
    ];
    assert!(all.iter().all(Option::is_some));
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b), "{i}: {a:?}");
    }
    // With a client subnet or a cookie, the response is for one client.
    let options = |m: &mut Message| {
        let mut edns = Edns::new();
        edns.options_mut().insert(EdnsOption::Unknown(EdnsCode::Cookie.into(), vec![1; 8]));
        m.set_edns(edns);
    };
    assert_eq!(key(&options), None);
    let twice = |m: &mut Message| _ = m.add_query(m.queries[0].clone());
    assert_eq!(key(&twice), None);
}

#[test]
fn memory_is_bounded_and_what_expires_first_makes_room() {
    let (now, limit) = (Instant::now(), 16 << 10);
    let mut cache = Cache::new(limit);
    let put = |cache: &mut Cache, n: u32, ttl: u32, now: Instant| {
        let asked = question(&format!("n{n}.example.org."));
        let mut message = reply(&asked, ResponseCode::NoError);
        message.add_answer(address("n.example.org.", ttl));
        let key = Key::of(&asked.to_vec().unwrap()).unwrap();
        cache.put(key.clone(), &message.to_vec().unwrap(), now);
        (key, asked.to_vec().unwrap())
    };
    let (long, asked) = put(&mut cache, 0, 29, now);
    for n in 1..1000 {
        put(&mut cache, n, 10, now);
        assert!(cache.bytes <= limit && cache.by_expiry.len() == cache.len());
    }
    let full = cache.len();
    assert!((20..60).contains(&full), "{full}");
    assert!(cache.get(&long, &asked, now).is_some(), "it expires last");
    put(&mut cache, 0, 29, now);
    assert_eq!(cache.len(), full, "in place of the answer before");
    put(&mut cache, 1000, 10, now + Duration::from_secs(20));
    assert_eq!(cache.len(), 2, "expired ones go");
}

#[test]
fn no_cut_of_a_message_is_kept_or_panics() {
    let asked = question("web.example.org.");
    let mut message = reply(&asked, ResponseCode::NXDomain);
    message.add_authority(soa(20, 12));
    let (asked, answer, now) = (asked.to_vec().unwrap(), message.to_vec().unwrap(), Instant::now());
    let key = Key::of(&asked).unwrap();
    let mut cache = Cache::new(CACHE_BYTES_MAX);
    for cut in 0..answer.len() {
        cache.put(key.clone(), &answer[..cut], now);
        assert_eq!(cache.len(), 0, "{cut}");
    }
    for cut in 0..asked.len() {
        assert_eq!(Key::of(&asked[..cut]), None, "{cut}");
    }
    for at in 0..answer.len() {
        for value in [0, 1, 63, 64, 192, 255] {
            let mut broken = answer.clone();
            broken[at] = value;
            cache.put(key.clone(), &broken, now);
            let _ = cache.get(&key, &asked, now + Duration::from_secs(1));
        }
    }
}
