//! D-Bus messages: as other clients encode them, round trips, and damaged ones.
use super::*;

/// The `Hello` message, the first of every connection, as other clients encode it.
#[test]
fn hello_is_encoded_like_by_other_clients() {
    let bus = "org.freedesktop.DBus";
    let mut hello = Message::call(bus, "/org/freedesktop/DBus", bus, "Hello", Vec::new());
    hello.serial = 1;
    let mut wanted = vec![b'l', 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0x6d, 0, 0, 0];
    wanted.extend(b"\x01\x01o\x00\x15\x00\x00\x00/org/freedesktop/DBus\x00\x00\x00");
    wanted.extend(b"\x02\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00");
    wanted.extend(b"\x03\x01s\x00\x05\x00\x00\x00Hello\x00\x00\x00");
    wanted.extend(b"\x06\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00");
    // The padding after the last field does not count for the length of the fields (0x6d bytes).
    assert_eq!(hello.encode(), wanted);
    let mut fixed = [0; FIXED_BYTES];
    fixed.copy_from_slice(&wanted[..FIXED_BYTES]);
    assert_eq!(Message::length(&fixed), Ok(wanted.len()));
}

fn all() -> Message {
    let property = |name: &str, value: Value| Value::Struct(vec![Value::text(name), Value::Variant(Box::new(value))]);
    let mut m = Message::call(
        "d",
        "/p",
        "i.f",
        "M",
        vec![
            Value::text("kubepods.slice"),
            Value::Array(
                "(sv)".into(),
                vec![
                    property("CPUWeight", Value::U64(79)),
                    property("Wants", Value::Array("s".into(), vec![Value::text("-.slice")])),
                    property("On", Value::Bool(true)),
                ],
            ),
            Value::Array("(sa(sv))".into(), Vec::new()),
            Value::I32(-1),
            Value::Descriptor(0),
        ],
    );
    (m.serial, m.answers, m.descriptors, m.sender) = (7, Some(3), 1, ":1.2".into());
    m
}

#[test]
fn what_is_written_is_read() {
    let m = all();
    assert_eq!(Message::decode(&m.encode()), Ok(Some(m)));
}

#[test]
fn damaged_messages_do_not_panic() {
    let bytes = all().encode();
    for n in 0..bytes.len() {
        assert!(Message::decode(&bytes[..n]).is_err(), "cut at {n}");
        for change in [0x00, 0x01, 0x7f, 0xff] {
            let mut bytes = bytes.clone();
            bytes[n] = change;
            // Any result is acceptable; it must not panic.
            let _ = Message::decode(&bytes);
        }
    }
    let mut fixed = [0; FIXED_BYTES];
    fixed.copy_from_slice(&bytes[..FIXED_BYTES]);
    fixed[7] = 0x7f;
    assert!(Message::length(&fixed).is_err(), "two gigabytes");
    let mut deep = Message::call("", "", "", "", Vec::new());
    deep.body = vec![(0..40).fold(Value::Bool(true), |v, _| Value::Variant(Box::new(v)))];
    assert!(Message::decode(&deep.encode()).is_err());
}
