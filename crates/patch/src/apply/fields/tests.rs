//! The order of values in paths.
use super::*;

#[test]
fn numbers_have_one_order() {
    let numbers: Vec<Scalar> = [
        "-1e300",
        "-9007199254740993",
        "-9007199254740992.0",
        "-0.0",
        "0",
        "0.5",
        "9007199254740992",
        "9007199254740992.0",
        "9007199254740993",
        "9007199254740994.0",
        "18446744073709551615",
        "18446744073709551616.0",
        "1e300",
    ]
    .map(|text| Scalar(serde_json::from_str(text).expect("a number")))
    .into();
    for (i, a) in numbers.iter().enumerate() {
        for (j, b) in numbers.iter().enumerate() {
            assert_eq!(a.cmp(b), b.cmp(a).reverse(), "{a:?} {b:?}");
            if a.cmp(b) != Ordering::Equal {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a:?} {b:?}");
            }
            for c in &numbers {
                assert!(!(a <= b && b <= c) || a <= c, "{a:?} {b:?} {c:?}");
            }
        }
    }
    let equal = |a: usize, b: usize| numbers[a].cmp(&numbers[b]) == Ordering::Equal;
    assert!(equal(3, 4) && equal(6, 7) && !equal(7, 8));
}
