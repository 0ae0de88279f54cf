//! Damaged documents. Decoding returns a value or an error for any bytes, and accepted documents survive a round trip.
use kelson_codec::{Encoding, decode, encode, yaml};
use kelson_schema::Schema;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;

const ROUNDS: u64 = 3_000;

fn damage(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[at] = rng.random(),
            1 => bytes.truncate(at.max(1)),
            2 => bytes.insert(at, b"{}[]\",:\\-0e.*&|\xc3"[rng.random_range(0..16)]),
            _ => drop(bytes.remove(at)),
        }
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
}

#[test]
fn damaged_documents_never_panic() {
    let ty = Schema::builtin().by_gvk("apps", "v1", "Deployment").expect("kind");
    let value = json!({"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"é\n","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"a":"b"}},
        "spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1500m"}},"livenessProbe":{"httpGet":{"port":"x"}}}]}}}});
    let value = kelson_codec::normalize(ty, value.clone(), false).expect("fits").value;
    let mut accepted = 0;
    for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf] {
        let good = encode(encoding, Some(ty), &value).expect("encodes");
        for seed in 0..ROUNDS {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut bytes = good.clone();
            damage(&mut rng, &mut bytes);
            let Ok(decoded) = decode(encoding, Some(ty), &bytes, true) else { continue };
            accepted += 1;
            let again = encode(Encoding::Protobuf, Some(ty), &decoded.value).expect("what is decoded can be encoded");
            let back = decode(Encoding::Protobuf, Some(ty), &again, true).expect("and decoded").value;
            assert_eq!(back, decoded.value, "{encoding} seed {seed}");
            let text = yaml::to_yaml(&decoded.value);
            assert_eq!(
                yaml::to_value(text.as_bytes()).map(|v| v.0),
                Ok(decoded.value),
                "{encoding} seed {seed}:\n{text}"
            );
        }
    }
    assert!(accepted > 500, "{accepted}");
}
