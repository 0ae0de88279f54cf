//! For each format, strings that have it and strings that do not.
use super::is_valid;
use crate::schema::Format;

const UUID: &str = "a8098c1a-f86e-11da-bd1a-00112444be1e";

#[test]
fn texts_of_each_format() {
    for (format, good, bad) in [
        ("bsonobjectid", &["507f1f77bcf86cd799439011"][..], &["507f", "zz7f1f77bcf86cd799439011"][..]),
        (
            "uri",
            &["http://foo.bar/#com", "/abs/path", "urn:x", "http://[::1]:80/a?b c", "*", "https://user:p@h/%41"],
            &[
                "",
                "foo.com",
                "www.x/y",
                "http://a b/",
                "http://h:port/",
                ":x",
                "/bad%zz",
                "http://[::1",
                "#frag",
                "http://foo.bar#com",
            ],
        ),
        (
            "email",
            &[
                "a@b.co",
                "first.last+tag@sub.example.com",
                "\"quoted @\"@x.y",
                "Name <n@x.y>",
                "\"A B\" <n@x.y>",
                "a@[1.2.3.4]",
            ],
            &["", "a", "a@", "@b", "a..b@c.d", "a b@c.d", "a@b <x>"],
        ),
        (
            "hostname",
            &["somewhere.com", "localhost", "a-b.example.org", "1host", "888.example.com", "ü.de", "a-"],
            &["", "-a.com", "a-.com", "some_where.com", "a.b.c.1", "x.c", "a..bc", "host com"],
        ),
        ("ipv4", &["1.2.3.4", "01.02.003.4", "::ffff:1.2.3.4"], &["1.2.3", "1.2.3.256", "::1", "", "a.b.c.d"]),
        ("ipv6", &["::1", "2001:db8::1", "::ffff:1.2.3.4"], &["1.2.3.4", "::1%eth0", ":::", ""]),
        ("cidr", &["10.0.0.0/8", "2001:db8::/32", "010.0.0.0/08"], &["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/"]),
        (
            "mac",
            &["01:02:03:04:05:06", "01-02-03-04-05-06-07-08", "0102.0304.0506"],
            &["01:02", "01:02-03:04:05:06", "x"],
        ),
        ("uuid", &[UUID, "A8098C1AF86E11DABD1A00112444BE1E"], &["", "a8098c1a-f86e-11da-bd1a-00112444be1", "x"]),
        ("uuid3", &["bcd02e22-68f0-3046-a512-327cca9def8f"], &[UUID]),
        ("uuid4", &["025b0d74-00a2-4048-bf57-227c5111bb34"], &["025b0d74-00a2-4048-7f57-227c5111bb34", UUID]),
        ("uuid5", &["886313e1-3b8a-5372-9b90-0c9aee199e5d"], &[UUID]),
        ("isbn", &["0321751043", "978-0321751041", "99921-58-10-7"], &["0321751042", "978-0321751040", "x", ""]),
        ("isbn10", &["0321751043", "0 8044 2957 X"], &["978 0321751041"]),
        ("isbn13", &["978 0321751041"], &["0321751043"]),
        (
            "creditcard",
            &["4111-1111-1111-1111", "5555555555554444", "378282246310005"],
            &["4111111111111112", "1234", ""],
        ),
        ("ssn", &["111-11-1111", "111 11 1111"], &["999 99 999", "111111111", "111.11.1111"]),
        ("hexcolor", &["#FFFFFF", "fff"], &["#fffffz", "#ff", ""]),
        ("rgbcolor", &["rgb(1,2,3)", "rgb( 0, 255 ,9)"], &["rgb(300,0,0)", "rgb(01,2,3)", "rgb(1,2)", "hsl(1,2,3)"]),
        ("byte", &["ZWxpemFiZXRocG9zZXk=", "QQ==", "abcd"], &["", "abc", "a===", "ab=c", "ZWx-"]),
        ("password", &["", "anything"], &[]),
        ("date", &["2014-12-15", "2024-02-29"], &["2014-13-01", "2023-02-29", "2014-1-1", "x"]),
        (
            "date-time",
            &["2014-12-15T19:30:20.000Z", "2014-12-15t19:30:20z", "2011-08-18T19:03:37.123000000+01:00"],
            &["2014-12-15", "2014-12-15T24:00:00Z", "2014-12-15T19:30:20", "2014-02-30T00:00:00Z", "", "T"],
        ),
        (
            "duration",
            &["1h2m", "22 ns", "3 days", "2 weeks 1 hour", "5µs"],
            &["", "x", "1", "3 foos", "99999999999999999999 s"],
        ),
        ("k8s-short-name", &["a", "my-name1"], &["A", "-a", "a.b", ""]),
        ("k8s-long-name", &["a.b-c", "a"], &["a..b", "A.b", ""]),
    ] {
        let known = Format::at("string", format).unwrap();
        for text in good {
            assert!(is_valid(known, text), "{format}: {text:?} is one");
        }
        for text in bad {
            assert!(!is_valid(known, text), "{format}: {text:?} is none");
        }
    }
}

#[test]
fn formats_count_at_their_types_only() {
    assert_eq!(Format::at("string", "int32"), None);
    assert_eq!(Format::at("integer", "int32"), Some(Format::Int32));
    assert_eq!(Format::at("number", "int32"), None);
    assert_eq!(Format::at("", "date-time"), Some(Format::DateTime));
    assert_eq!(Format::at("object", "date"), None);
    assert_eq!(Format::at("string", "made-up"), None);
}
