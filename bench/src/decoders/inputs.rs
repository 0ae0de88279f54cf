//! Inputs of three megabytes with the highest known cost: each begins with a small document and repeats the most
//! expensive part for a tree or a merge. Inputs found by reviews and fuzzers are added here.

/// The maximum size of a request body.
const SIZE: usize = kelson_codec::DOCUMENT_BYTES_MAX;

/// The work that is measured for an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Json(Option<&'static str>),
    Yaml(Option<&'static str>),
    Protobuf(&'static str),
    JsonPatch,
    MergePatch,
    StrategicPatch,
    Apply,
    ApplyCustom,
    Definition,
    Cel,
}

impl Work {
    /// Returns the name for a child process.
    pub fn word(self) -> String {
        format!("{self:?}")
    }

    /// Parses the result of [`Work::word`].
    pub fn of(word: &str) -> Option<Self> {
        let kinds = [None, Some("Pod"), Some("Secret")];
        let decoders = kinds.into_iter().flat_map(|kind| {
            [Some(Self::Json(kind)), Some(Self::Yaml(kind)), kind.map(Self::Protobuf)].into_iter().flatten()
        });
        let patches = [Self::JsonPatch, Self::MergePatch, Self::StrategicPatch, Self::Apply, Self::ApplyCustom];
        let others = patches.into_iter().chain([Self::Definition, Self::Cel]);
        decoders.chain(others).find(|work| work.word() == word)
    }
}

/// A name, the operation, and its input.
pub type Case = (String, Work, Vec<u8>);

/// Returns `start`, as many times `part` as fit, and `end`.
fn filled(start: &str, part: &str, end: &str) -> Vec<u8> {
    numbered(start, |_| part.to_owned(), end, SIZE)
}

/// Returns `start`, different parts up to `size` bytes, and `end`.
fn numbered(start: &str, part: impl Fn(usize) -> String, end: &str, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(SIZE);
    out.extend_from_slice(start.as_bytes());
    for i in 0.. {
        let part = part(i);
        if out.len() + part.len() + end.len() > size {
            break;
        }
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(end.as_bytes());
    out
}

/// Returns an object and its patch, each of half the size.
fn both(object: Vec<u8>, patch: Vec<u8>) -> Vec<u8> {
    [object, patch].join(&0)
}

pub fn all() -> Vec<Case> {
    [json(), yaml(), protobuf(), patches(), definitions(), expressions()].concat()
}

fn json() -> Vec<Case> {
    let mut cases = Vec::new();
    let deep = format!("{}{},", "[".repeat(110), "]".repeat(110));
    let deep_objects = format!("{}0{},", "{\"\":".repeat(110), "}".repeat(110));
    let parts = [
        ("empty lists", "[],"),
        ("empty objects", "{},"),
        ("small objects", "{\"\":0},"),
        ("lists of one", "[0],"),
        ("texts of a letter", "\"a\","),
        ("empty texts", "\"\","),
        ("digits", "0,"),
        ("floats", "1e0,"),
        ("nulls", "null,"),
        ("escapes", "\"\\u0001\\ud83e\\udd80\","),
        ("nested lists", deep.as_str()),
        ("nested objects", deep_objects.as_str()),
    ];
    for (name, part) in parts {
        cases.push((format!("json, {name}"), Work::Json(None), filled("{\"a\":[", part, "0]}")));
        let typed = filled("{\"spec\":{\"containers\":[", part, "{}]}}");
        cases.push((format!("json of a pod, {name}"), Work::Json(Some("Pod")), typed));
    }
    let strings: [(&str, &str, &str, &str, Work); 12] = [
        ("a text", "{\"a\":\"", "x", "\"}", Work::Json(None)),
        ("a text of escapes", "{\"a\":\"", "\\n", "\"}", Work::Json(None)),
        ("a number", "{\"a\":1", "0", "}", Work::Json(None)),
        ("a fraction", "{\"a\":0.", "1", "}", Work::Json(None)),
        ("blanks", "{\"a\":", " ", "0}", Work::Json(None)),
        ("an open list", "{\"a\":", "[", "", Work::Json(None)),
        ("a key twice", "{", "\"a\":0,", "\"a\":0}", Work::Json(None)),
        ("a field twice", "{\"metadata\":{", "\"name\":\"a\",", "\"name\":\"a\"}}", Work::Json(Some("Pod"))),
        ("an unknown field", "{", "\"x\":{},", "\"x\":0}", Work::Json(Some("Pod"))),
        ("a quantity", "{\"spec\":{\"overhead\":{\"cpu\":\"1", "0", "\"}}}", Work::Json(Some("Pod"))),
        ("a fine quantity", "{\"spec\":{\"overhead\":{\"cpu\":\"0.", "1", "\"}}}", Work::Json(Some("Pod"))),
        ("data", "{\"data\":{\"a\":\"", "aaaa", "\"}}", Work::Json(Some("Secret"))),
    ];
    for (name, start, part, end, work) in strings {
        cases.push((format!("json, {name}"), work, filled(start, part, end)));
    }
    let keys = |i: usize| format!("\"{i:x}\":0,");
    cases.push(("json, many keys".into(), Work::Json(None), numbered("{\"a\":{", keys, "\"z\":0}}", SIZE)));
    let unknown = |i: usize| format!("\"{i:x}\":0,");
    cases.push(("json, many unknown fields".into(), Work::Json(Some("Pod")), numbered("{", unknown, "\"z\":0}", SIZE)));
    let labels = |i: usize| format!("\"{i:x}\":\"\",");
    let start = "{\"metadata\":{\"labels\":{";
    cases.push(("json, many labels".into(), Work::Json(Some("Pod")), numbered(start, labels, "\"z\":\"\"}}}", SIZE)));
    let limits = |i: usize| format!("\"{i:x}\":\"1.5Gi\",");
    let start = "{\"spec\":{\"overhead\":{";
    cases.push(("json, quantities".into(), Work::Json(Some("Pod")), numbered(start, limits, "\"z\":1}}}", SIZE)));
    cases
}

fn yaml() -> Vec<Case> {
    let deep = format!("- {}{}\n", "[".repeat(110), "]".repeat(110));
    let parts = [
        ("a list of letters", "", "- a\n"),
        ("a list of nothing", "", "-\n"),
        ("a list of empty lists", "", "- []\n"),
        ("a list of objects", "", "- {a: 0}\n"),
        ("a list of objects in lines", "", "- a:\n"),
        ("a list of floats", "", "- .1\n"),
        ("lists in lists", "", "- - - a\n"),
        ("nested lists", "", deep.as_str()),
        ("a flow of letters", "[", "a,"),
        ("a flow of objects", "[", "{a},"),
        ("a flow of pairs", "[", "a: b,"),
        ("an open flow", "", "["),
        ("an open flow of objects", "", "{a: "),
        ("open keys", "", "? "),
        ("dashes", "", "- "),
        ("an anchor and its aliases", "- &a x\n", "- *a\n"),
        ("an anchored list and its aliases", "- &a [x,x,x,x]\n", "- *a\n"),
        ("anchors", "", "- &a x\n"),
        ("anchored objects", "", "- &a {b: c}\n"),
        ("merges", "- &a {b: c}\n", "- <<: *a\n"),
        ("tagged texts", "", "- !!str a\n"),
        ("a folded text", "a: >\n", "  b\n"),
        ("a literal text", "a: |\n", "  <\n"),
        ("a plain text of lines", "a:\n", " b\n"),
        ("a quoted text", "a: \"", "\\x01"),
        ("a text in single quotes", "a: '", "''"),
        ("comments", "a: b\n", "#\n"),
        ("blank lines", "a: b\n", "\n"),
        ("documents", "", "---\n"),
        ("a key twice", "", "a: b\n"),
        ("tabs", "a:", "\t"),
        ("colons", "", "::"),
        ("a number", "a: 1", "0"),
        ("a number in base sixty", "a: 1", ":1"),
    ];
    let one =
        |(name, start, part): (&str, &str, &str)| (format!("yaml, {name}"), Work::Yaml(None), filled(start, part, ""));
    let mut cases: Vec<Case> = parts.into_iter().map(one).collect();
    let anchors = |i: usize| format!("- &{i:x} a\n");
    cases.push(("yaml, anchors of their own".into(), Work::Yaml(None), numbered("", anchors, "", SIZE)));
    let within = |i: usize| if i < 118 { format!("&a{i} [{}", "x,".repeat(13_000)) } else { "]".to_owned() };
    cases.push(("yaml, anchors within anchors".into(), Work::Yaml(None), numbered("", within, "", SIZE)));
    let keys = |i: usize| format!("{i:x}: a\n");
    cases.push(("yaml, many keys".into(), Work::Yaml(None), numbered("", keys, "", SIZE)));
    let indented = |i: usize| format!("{}a:\n", " ".repeat(i));
    cases.push(("yaml, deeper and deeper".into(), Work::Yaml(None), numbered("", indented, "", SIZE)));
    let alias = || format!("a: &a {}\nb:\n", "x".repeat(1_000_000));
    cases.push(("yaml, a long alias".into(), Work::Yaml(None), filled(&alias(), "- *a\n", "")));
    for (name, part) in [("letters", "  - a\n"), ("objects", "  - {}\n"), ("names", "  - name: a\n")] {
        let text = filled("spec:\n  containers:\n", part, "");
        cases.push((format!("yaml of a pod, {name}"), Work::Yaml(Some("Pod")), text));
    }
    cases
}

/// Returns a field of bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

fn protobuf() -> Vec<Case> {
    // Reserves space for the envelope and the lengths around the repeated part.
    let repeated = |part: &[u8]| part.repeat((SIZE - 64) / part.len());
    let pod = |number: u8, content: &[u8]| kelson_codec::proto::wrap("v1", "Pod", &field(number, content));
    let secret = |content: &[u8]| kelson_codec::proto::wrap("v1", "Secret", content);
    let mut cases = vec![
        ("empty containers", "Pod", pod(2, &repeated(&[0x12, 0]))),
        ("containers with a name", "Pod", pod(2, &repeated(&[0x12, 3, 0x0a, 1, b'a']))),
        ("empty volumes", "Pod", pod(2, &repeated(&[0x0a, 0]))),
        ("labels", "Pod", pod(1, &repeated(&[0x5a, 3, 0x0a, 1, b'a']))),
        ("finalizers", "Pod", pod(1, &repeated(&[0x72, 0]))),
        ("unknown fields", "Pod", pod(1, &repeated(&[0xf8, 0x3f, 0]))),
        ("one field again and again", "Pod", pod(1, &repeated(&[0x0a, 0]))),
        ("the metadata again and again", "Pod", kelson_codec::proto::wrap("v1", "Pod", &repeated(&[0x0a, 0]))),
        ("open groups", "Pod", pod(1, &repeated(&[0x0b]))),
        ("data of one key", "Secret", secret(&field(2, &[field(1, b"a"), field(2, &vec![7; SIZE - 64])].concat()))),
    ];
    let mut labels = Vec::new();
    for i in 0.. {
        let entry = field(11, &field(1, format!("{i:x}").as_bytes()));
        if labels.len() + entry.len() > SIZE - 64 {
            break;
        }
        labels.extend(entry);
    }
    cases.push(("many labels", "Pod", pod(1, &labels)));
    cases.into_iter().map(|(name, kind, body)| (format!("protobuf, {name}"), Work::Protobuf(kind), body)).collect()
}

/// Sizes of documents with small objects that need nearly all the memory allowed for an object and a patch.
const OBJECT: usize = 310_000;
const PATCH: usize = 177_000;

/// The size of a document with nearly as many values as a patch may have.
const MANY: usize = 650_000;

fn fitting(size: usize) -> Vec<u8> {
    let keyed = size / 7;
    numbered(
        &format!("{{\"metadata\":{{\"labels\":{{\"x\":\"{keyed}\"}}}},\"a\":["),
        |_| "{\"\":0},".to_owned(),
        "0]}",
        size,
    )
}

/// Applies to a kind without a known schema, where each object is a separate field.
fn custom() -> Vec<Case> {
    let fields = |tag: &str, size| numbered("{\"a\":{", |i| format!("\"{tag}{i:x}\":{{\"\":0}},"), "\"z\":0}}", size);
    let sizes = [
        ("beyond what fits", 560_000, "b", 300_000),
        ("that do not fit together", 260_000, "b", 260_000),
        ("that fit", 300_000, "b", 100_000),
        ("that fit, a small patch", 360_000, "b", 20_000),
        ("again", 230_000, "a", 230_000),
    ];
    let case = |(name, object, tag, patch)| {
        (format!("custom apply, fields {name}"), Work::ApplyCustom, both(fields("a", object), fields(tag, patch)))
    };
    sizes.map(case).into()
}

fn patches() -> Vec<Case> {
    let half = SIZE / 2 - 1;
    let list = |start: &str, part: &str, end: &str| numbered(start, |_| part.to_owned(), end, half);
    let named = |start: &str, tag: &str, end: &str| {
        numbered(start, |i| format!("{{\"name\":\"{i:x}\",\"image\":\"{tag}\"}},"), end, half)
    };
    let spec = "{\"spec\":{\"containers\":[";
    let containers = |tag: &str| named(spec, tag, "{\"name\":\"z\"}]}}");
    let texts =
        |tag: &str, size| numbered("{\"metadata\":{\"finalizers\":[", |i| format!("\"{tag}{i:x}\","), "\"z\"]}}", size);
    let order = named("{\"spec\":{\"$setElementOrder/containers\":[", "", "{\"name\":\"z\"}]}}");
    let deletions =
        numbered(spec, |i| format!("{{\"name\":\"{i:x}\",\"$patch\":\"delete\"}},"), "{\"name\":\"z\"}]}}", half);
    let small = || list("{\"a\":[", "{\"\":0},", "0]}");
    let small_list = || list("{\"spec\":{\"containers\":[", "{\"\":0},", "{}]}}");
    let labels = |v: &str, size| {
        numbered("{\"metadata\":{\"labels\":{", |i| format!("\"{i:x}\":\"{v}\","), "\"z\":\"\"}}}", size)
    };
    let mut cases: Vec<Case> = custom();
    let mut add = |name: &str, work, object, patch| cases.push((name.to_owned(), work, both(object, patch)));
    for (name, work) in
        [("merge patch", Work::MergePatch), ("strategic patch", Work::StrategicPatch), ("apply", Work::Apply)]
    {
        let empty = || b"{}".to_vec();
        add(&format!("{name}, containers"), work, containers("a"), containers("b"));
        add(&format!("{name}, small objects"), work, small(), small());
        // The largest that the memory limits allow.
        let (object, patch) = (fitting(OBJECT), fitting(PATCH));
        add(&format!("{name}, small objects that fit"), work, object, patch);
        add(&format!("{name}, containers that are none"), work, small_list(), small_list());
        add(&format!("{name}, texts"), work, texts("a", half), texts("b", MANY));
        add(&format!("{name}, labels"), work, labels("a", half), labels("b", MANY));
        add(&format!("{name}, a large patch"), work, empty(), filled("{\"a\":[", "{\"\":0},", "0]}"));
        add(&format!("{name}, many large containers"), work, empty(), filled(spec, "{\"name\":\"\"},", "{}]}}"));
    }
    add("apply, texts that fit", Work::Apply, texts("a", 1_100_000), texts("b", 200_000));
    add("apply, labels that fit", Work::Apply, labels("a", 1_100_000), labels("b", 400_000));
    add("strategic patch, an order", Work::StrategicPatch, containers("a"), order);
    add("strategic patch, deletions", Work::StrategicPatch, containers("a"), deletions);
    let operation = |op: &str| format!("[{}]", vec![op; 10_000].join(","));
    let grown = || list("{\"a\":[", "0,", "0],\"b\":{}}");
    for (name, op) in [
        ("additions in front", "{\"op\":\"add\",\"path\":\"/a/0\",\"value\":0}"),
        ("additions of objects", "{\"op\":\"add\",\"path\":\"/a/0\",\"value\":{\"\":{\"\":{\"\":0}}}}"),
        ("copies of all", "{\"op\":\"copy\",\"from\":\"/a\",\"path\":\"/b\"}"),
        ("copies of one", "{\"op\":\"copy\",\"from\":\"/a/0\",\"path\":\"/a/0\"}"),
        ("moves", "{\"op\":\"move\",\"from\":\"/a/0\",\"path\":\"/a/-\"}"),
        ("tests of all", "{\"op\":\"test\",\"path\":\"\",\"value\":{}}"),
        ("removals", "{\"op\":\"remove\",\"path\":\"/a/0\"}"),
    ] {
        add(&format!("json patch, {name}"), Work::JsonPatch, grown(), operation(op).into_bytes());
    }
    let deep = format!("/a{}", "/0".repeat(30));
    let op = format!("{{\"op\":\"test\",\"path\":\"{deep}\",\"value\":null}}");
    add("json patch, deep paths", Work::JsonPatch, grown(), operation(&op).into_bytes());
    let value = String::from_utf8(list("", "{\"\":0},", "0")).unwrap_or_default();
    let op = format!("[{{\"op\":\"add\",\"path\":\"/c\",\"value\":[{value}]}}]");
    add("json patch, one large value", Work::JsonPatch, small(), op.into_bytes());
    let value = "{\"\":0},".repeat(PATCH / 7);
    let op = format!("[{{\"op\":\"add\",\"path\":\"/c\",\"value\":[{value}0]}}]");
    add("json patch, one value that fits", Work::JsonPatch, fitting(OBJECT), op.into_bytes());
    let op = "[{\"op\":\"copy\",\"from\":\"/a\",\"path\":\"/b\"}]";
    add("json patch, a copy that fits", Work::JsonPatch, fitting(PATCH), op.into());
    cases
}

fn definitions() -> Vec<Case> {
    let head = "{\"metadata\":{\"name\":\"as.b.c\"},\"spec\":{\"group\":\"b.c\",\"scope\":\"Namespaced\",\"names\":{\"plural\":\"as\",\
                \"singular\":\"a\",\"kind\":\"A\",\"listKind\":\"AList\"},\"versions\":[";
    let version =
        "{\"name\":\"v1\",\"served\":true,\"storage\":true,\"schema\":{\"openAPIV3Schema\":{\"type\":\"object\",";
    let property = |i: usize| format!("\"{i:x}\":{{\"type\":\"string\"}},");
    let start = format!("{head}{version}\"properties\":{{");
    let properties = numbered(&start, property, "\"z\":{\"type\":\"string\"}}}}}]}}", SIZE);
    let patterned = |i: usize| format!("\"{i:x}\":{{\"type\":\"string\",\"pattern\":\"(a{{100}}){{100}}\"}},");
    let rules = format!("{head}{version}\"x-kubernetes-validations\":[");
    let rule = "{\"rule\":\"self.all(x,self.all(y,self.all(z,x==y)))\"},";
    let versions = |i: usize| format!("{{\"name\":\"v{i}\",\"served\":true,\"storage\":false}},");
    let columns = |i: usize| format!("{{\"name\":\"{i:x}\",\"type\":\"string\",\"jsonPath\":\".a.b[0]\"}},");
    let printed = format!("{head}{{\"name\":\"v1\",\"served\":true,\"storage\":true,\"additionalPrinterColumns\":[");
    let nested = "{\"type\":\"array\",\"items\":".repeat(100);
    let deep = format!("{}{{\"type\":\"string\"}}{}", nested, "}".repeat(100));
    let deep = move |i: usize| format!("\"{i:x}\":{deep},");
    let case = |name: &str, body| (format!("definition, {name}"), Work::Definition, body);
    vec![
        case("properties", properties),
        case("patterns", numbered(&start, patterned, "\"z\":{\"type\":\"string\"}}}}}]}}", SIZE)),
        case("rules", filled(&rules, rule, "{\"rule\":\"true\"}]}}}]}}")),
        case("versions", numbered(head, versions, "{\"name\":\"z\"}]}}", SIZE)),
        case("columns", numbered(&printed, columns, "{\"name\":\"z\"}]}]}}", SIZE)),
        case("nested schemas", numbered(&start, deep, "\"z\":{\"type\":\"string\"}}}}}]}}", SIZE)),
    ]
}

fn expressions() -> Vec<Case> {
    let parts = [
        ("a sum", "1", "+1", ""),
        ("a conjunction", "true", "&&true", ""),
        ("choices", "true", "?1:true", ""),
        ("a list", "[", "1,", "1]"),
        ("open lists", "", "[", ""),
        ("open brackets", "", "(", ""),
        ("negations", "", "!", "true"),
        ("fields", "self", ".a", ""),
        ("places", "self", "[0]", ""),
        ("calls", "self", ".f()", ""),
        ("a text", "\"", "a", "\""),
        ("a text of escapes", "\"", "\\n", "\""),
        ("macros", "", "[1].all(x,", "true"),
        ("macros in a row", "true", "&&[1].all(x,x==1)", ""),
        ("a number", "1", "0", ""),
        ("comments", "1", "//\n", ""),
        ("blanks", "1", " ", ""),
    ];
    let one = |(name, start, part, end): (&str, &str, &str, &str)| {
        (format!("expression, {name}"), Work::Cel, filled(start, part, end))
    };
    parts.into_iter().map(one).collect()
}
