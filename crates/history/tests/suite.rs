//! Tests of the checker of histories: it reports what no single copy would have answered, and accepts what one would have.
#![allow(missing_docs, clippy::unwrap_used)]

use kelson_history::{Checked, History, Line, Registers};

fn registers(of: &[(&str, u64, &str)]) -> Registers {
    of.iter().map(|(key, at, value)| ((*key).to_owned(), (*at, (*value).to_owned()))).collect()
}

/// Checks a history that is given as lines.
fn check(text: &str, before: &[(&str, u64, &str)], after: &[(&str, u64, &str)]) -> Result<Checked, String> {
    let lines: Vec<Line> = text.split("; ").map(|line| Line::parse(line).unwrap_or_else(|| panic!("{line}"))).collect();
    for line in &lines {
        assert_eq!(Line::parse(&line.text()).as_ref(), Some(line), "a line reads as it was written");
    }
    History::new(lines).check(&registers(before), &registers(after))
}

#[test]
fn histories_of_a_single_copy_pass() {
    type Ends = &'static [(&'static str, u64, &'static str)];
    let cases: [(&str, &str, Ends, Ends, usize); 10] = [
        (
            "a create and a read",
            "call 1 k put 0 a; answer 1 written 1; call 2 k read; answer 2 found 1 a",
            &[],
            &[("k", 1, "a")],
            0,
        ),
        (
            "a read meanwhile sees either",
            "call 1 k put 0 a; call 2 k read; answer 2 found -; call 3 k read; answer 3 found 1 a; answer 1 written 1",
            &[],
            &[("k", 1, "a")],
            0,
        ),
        ("a lost write that is there", "call 1 k put 0 a", &[], &[("k", 4, "a")], 1),
        ("a lost write that is not there", "call 1 k put 0 a", &[], &[], 0),
        (
            "a lost write that somebody saw",
            "call 1 k put 0 a; call 2 k read; answer 2 found 1 a",
            &[],
            &[("k", 1, "a")],
            1,
        ),
        (
            "a lost delete before a create",
            "call 1 k delete 1; call 2 k put 0 b; answer 2 written 3",
            &[("k", 1, "a")],
            &[("k", 3, "b")],
            1,
        ),
        (
            "either of two lost deletes may have been it",
            "call 2 k delete 1; call 3 k read; answer 3 found -; call 1 k delete 1",
            &[("k", 1, "a")],
            &[],
            1,
        ),
        (
            "one of two is refused and told what it found",
            "call 1 k put 1 b; call 2 k put 1 c; answer 2 found 2 b; answer 1 written 2",
            &[("k", 1, "a")],
            &[("k", 2, "b")],
            0,
        ),
        (
            "one of two is rejected without a word about what it found",
            "call 1 k put 1 b; call 2 k put 1 c; answer 2 rejected; answer 1 written 2; call 3 k put 0 d; answer 3 rejected",
            &[("k", 1, "a")],
            &[("k", 2, "b")],
            0,
        ),
        (
            "a watcher from the middle",
            "watch 9 1; call 1 k put 1 b; answer 1 written 2; event 9 2 k b; call 2 k delete 2; event 9 3 k -",
            &[("k", 1, "a")],
            &[],
            1,
        ),
    ];
    for (what, text, before, after, recovered) in cases {
        let checked = check(text, before, after).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(checked.recovered, recovered, "{what}");
    }
}

#[test]
fn other_histories_are_reported() {
    type Ends = &'static [(&'static str, u64, &'static str)];
    let cases: [(&str, &str, Ends, Ends, &str); 18] = [
        ("an acknowledged create is lost", "call 1 k put 0 a; answer 1 written 1", &[], &[], "no client deleted it"),
        (
            "an acknowledged update is lost",
            "call 1 k put 1 b; answer 1 written 2",
            &[("k", 1, "a")],
            &[("k", 1, "a")],
            "was acknowledged after it",
        ),
        (
            "an acknowledged delete is undone",
            "call 1 k delete 1; answer 1 written 2",
            &[("k", 1, "a")],
            &[("k", 1, "a")],
            "was acknowledged after it",
        ),
        (
            "a refused write is there",
            "call 1 k put 1 b; answer 1 found 2 c; call 2 k put 1 c; answer 2 written 2",
            &[("k", 1, "a")],
            &[("k", 3, "b")],
            "no client wrote, or whose write was rejected",
        ),
        (
            "a rejected write without a word is there",
            "call 1 k put 1 b; answer 1 rejected",
            &[("k", 1, "a")],
            &[("k", 2, "b")],
            "no client wrote, or whose write was rejected",
        ),
        (
            "a write is rejected though its condition held",
            "call 1 k put 1 b; answer 1 rejected",
            &[("k", 1, "a")],
            &[("k", 1, "a")],
            "older than what was answered before",
        ),
        (
            "two swap the same revision",
            "call 1 k put 1 b; call 2 k put 1 c; answer 1 written 2; answer 2 written 3",
            &[("k", 1, "a")],
            &[("k", 3, "c")],
            "over (2, true)",
        ),
        (
            "two create the same key",
            "call 1 k put 0 b; call 2 k put 0 c; answer 1 written 2; answer 2 written 3",
            &[],
            &[("k", 3, "c")],
            "no client deleted it",
        ),
        ("a value from nowhere", "call 1 k read; answer 1 found 3 x", &[], &[], "no client wrote"),
        (
            "a stale read",
            "call 1 k put 1 b; answer 1 written 2; call 2 k read; answer 2 found 1 a",
            &[("k", 1, "a")],
            &[("k", 2, "b")],
            "older than what was answered before",
        ),
        (
            "a read goes back",
            "call 1 k put 1 b; call 2 k read; answer 2 found 2 b; call 3 k read; answer 3 found 1 a; answer 1 written 2",
            &[("k", 1, "a")],
            &[("k", 2, "b")],
            "older than what was answered before",
        ),
        (
            "a read from the future",
            "call 2 k read; answer 2 found 2 b; call 1 k put 1 b; answer 1 written 2",
            &[("k", 1, "a")],
            &[("k", 2, "b")],
            "before it was asked for",
        ),
        (
            "absence that nobody made",
            "call 1 k read; answer 1 found -",
            &[("k", 1, "a")],
            &[("k", 1, "a")],
            "older than what was answered before",
        ),
        (
            "revisions go back",
            "call 1 k put 0 a; answer 1 written 5; call 2 l put 0 b; answer 2 written 4",
            &[],
            &[("k", 5, "a"), ("l", 4, "b")],
            "behind one that was answered",
        ),
        (
            "a revision is given out twice",
            "call 1 k put 0 a; call 2 k put 0 b; answer 1 written 5; answer 2 written 5",
            &[],
            &[("k", 5, "a")],
            "written twice",
        ),
        (
            "a watcher misses a write",
            "watch 9 0; call 1 k put 0 a; answer 1 written 1; call 2 k put 1 b; answer 2 written 2; event 9 2 k b",
            &[],
            &[("k", 2, "b")],
            "watcher 9 at 0 saw k at 2",
        ),
        (
            "a watcher misses a delete that nobody else saw",
            "watch 9 1; call 1 k delete 1; call 2 k put 0 b; answer 2 written 3; event 9 3 k b",
            &[("k", 1, "a")],
            &[("k", 3, "b")],
            "watcher 9 at 1 saw k at 3",
        ),
        (
            "a watcher sees a write twice",
            "watch 9 0; call 1 k put 0 a; answer 1 written 1; event 9 1 k a; event 9 1 k a",
            &[],
            &[("k", 1, "a")],
            "watcher 9 at 1 saw k at 1",
        ),
    ];
    for (what, text, before, after, why) in cases {
        match check(text, before, after) {
            Ok(_) => panic!("{what}: passes"),
            Err(said) => assert!(said.contains(why), "{what}: {said}"),
        }
    }
}
