//! Verification of ECDSA signatures of other programs, for every NIST curve and every digest of the SHA-2 family. The
//! provider's library supports only two curves, each with one digest. All inputs are public, so the code need not run
//! in constant time. It does not sign. FIPS 186-5, RFC 5480, SEC 1.
use std::sync::LazyLock;

use num_bigint::BigUint;
use sha2::{Digest as _, Sha224, Sha256, Sha384, Sha512};
use x509_parser::der_parser::asn1_rs::{FromDer as _, Integer, Sequence};

/// A digest that is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Returns the hash of an `ecdsa-with-SHA…` algorithm identifier.
    pub(crate) fn of_algorithm(id: &str) -> Option<Self> {
        Some(match id {
            "1.2.840.10045.4.3.1" => Self::Sha224,
            "1.2.840.10045.4.3.2" => Self::Sha256,
            "1.2.840.10045.4.3.3" => Self::Sha384,
            "1.2.840.10045.4.3.4" => Self::Sha512,
            _ => return None,
        })
    }

    fn of(self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha224 => Sha224::digest(message).to_vec(),
            Self::Sha256 => Sha256::digest(message).to_vec(),
            Self::Sha384 => Sha384::digest(message).to_vec(),
            Self::Sha512 => Sha512::digest(message).to_vec(),
        }
    }
}

/// A curve `y² = x³ - 3x + b` over a prime field, with a base point of prime order (SP 800-186).
struct Curve {
    name: &'static str,
    prime: BigUint,
    b: BigUint,
    order: BigUint,
    base: (BigUint, BigUint),
    /// The number of bytes of a coordinate.
    length: usize,
}

/// Name, prime, b, order, and the base point's coordinates, in hexadecimal.
const PARAMETERS: [[&str; 6]; 4] = [
    [
        "P-224",
        "ffffffffffffffffffffffffffffffff000000000000000000000001",
        "b4050a850c04b3abf54132565044b0b7d7bfd8ba270b39432355ffb4",
        "ffffffffffffffffffffffffffff16a2e0b8f03e13dd29455c5c2a3d",
        "b70e0cbd6bb4bf7f321390b94a03c1d356c21122343280d6115c1d21",
        "bd376388b5f723fb4c22dfe6cd4375a05a07476444d5819985007e34",
    ],
    [
        "P-256",
        "ffffffff00000001000000000000000000000000ffffffffffffffffffffffff",
        "5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b",
        "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551",
        "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296",
        "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5",
    ],
    [
        "P-384",
        "fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffeffffffff0000000000000000ffffffff",
        "b3312fa7e23ee7e4988e056be3f82d19181d9c6efe8141120314088f5013875ac656398d8a2ed19d2a85c8edd3ec2aef",
        "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973",
        "aa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b9859f741e082542a385502f25dbf55296c3a545e3872760ab7",
        "3617de4a96262c6f5d9e98bf9292dc29f8f41dbd289a147ce9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f",
    ],
    [
        "P-521",
        "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "0051953eb9618e1c9a1f929a21a0b68540eea2da725b99b315f3b8b489918ef109e156193951ec7e937b1652c0bd3bb1bf073573df883d2c34f1ef451fd46b503f00",
        "01fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffa51868783bf2f966b7fcc0148f709a5d03bb5c9b8899c47aebb6fb71e91386409",
        "00c6858e06b70404e9cd9e3ecb662395b4429c648139053fb521f828af606b4d3dbaa14b5e77efe75928fe1dc127a2ffa8de3348b3c1856a429bf97e7e31c2e5bd66",
        "011839296a789a3bc0045c8a5fb42c7d1bd998f54449579b446817afbd17273e662c97ee72995ef42640c550b9013fad0761353c7086a272c24088be94769fd16650",
    ],
];

static CURVES: LazyLock<Vec<Curve>> = LazyLock::new(|| {
    let number = |text: &str| BigUint::parse_bytes(text.as_bytes(), 16).unwrap_or_default();
    let curve = |[name, prime, b, order, x, y]: [&'static str; 6]| Curve {
        name,
        prime: number(prime),
        b: number(b),
        order: number(order),
        base: (number(x), number(y)),
        length: prime.len() / 2,
    };
    PARAMETERS.map(curve).into()
});

/// A point in Jacobian coordinates: `x / z²`, `y / z³`; the one at infinity has `z = 0`.
#[derive(Clone)]
struct Point {
    x: BigUint,
    y: BigUint,
    z: BigUint,
}

impl Curve {
    fn minus(&self, a: &BigUint, b: &BigUint) -> BigUint {
        // Both are less than the prime.
        (a + &self.prime - b) % &self.prime
    }

    fn times(&self, a: &BigUint, b: &BigUint) -> BigUint {
        a * b % &self.prime
    }

    fn point(&self, (x, y): &(BigUint, BigUint)) -> Point {
        Point { x: x.clone(), y: y.clone(), z: BigUint::from(1u8) }
    }

    /// Decodes an uncompressed point, which must be on the curve.
    fn read(&self, raw: &[u8]) -> Option<Point> {
        let (form, coordinates) = raw.split_first()?;
        if *form != 4 || coordinates.len() != 2 * self.length {
            return None;
        }
        let (x, y) = coordinates.split_at(self.length);
        let (x, y) = (BigUint::from_bytes_be(x), BigUint::from_bytes_be(y));
        if x >= self.prime || y >= self.prime {
            return None;
        }
        let cube = self.times(&self.times(&x, &x), &x);
        let right = (self.minus(&cube, &(&x * 3u8 % &self.prime)) + &self.b) % &self.prime;
        (self.times(&y, &y) == right).then(|| self.point(&(x, y)))
    }

    fn double(&self, p: &Point) -> Point {
        let zero = BigUint::default();
        if p.z == zero || p.y == zero {
            return Point { x: zero.clone(), y: zero.clone(), z: zero };
        }
        let (delta, gamma) = (self.times(&p.z, &p.z), self.times(&p.y, &p.y));
        let beta = self.times(&p.x, &gamma);
        // 3x² - 3z⁴, since the curve's factor of x is -3.
        let alpha = self.times(&self.minus(&p.x, &delta), &((&p.x + &delta) % &self.prime)) * 3u8 % &self.prime;
        let x = self.minus(&self.times(&alpha, &alpha), &(&beta * 8u8 % &self.prime));
        let z = self.times(&p.y, &p.z) * 2u8 % &self.prime;
        let apart = self.minus(&(&beta * 4u8 % &self.prime), &x);
        let y = self.minus(&self.times(&alpha, &apart), &(self.times(&gamma, &gamma) * 8u8 % &self.prime));
        Point { x, y, z }
    }

    fn add(&self, p: &Point, q: &Point) -> Point {
        let zero = BigUint::default();
        if p.z == zero {
            return q.clone();
        }
        if q.z == zero {
            return p.clone();
        }
        let (pz, qz) = (self.times(&p.z, &p.z), self.times(&q.z, &q.z));
        let (u1, u2) = (self.times(&p.x, &qz), self.times(&q.x, &pz));
        let (s1, s2) = (self.times(&self.times(&p.y, &q.z), &qz), self.times(&self.times(&q.y, &p.z), &pz));
        if u1 == u2 {
            return if s1 == s2 { self.double(p) } else { Point { x: zero.clone(), y: zero.clone(), z: zero } };
        }
        let (h, r) = (self.minus(&u2, &u1), self.minus(&s2, &s1));
        let h2 = self.times(&h, &h);
        let (h3, v) = (self.times(&h2, &h), self.times(&u1, &h2));
        let x = self.minus(&self.minus(&self.times(&r, &r), &h3), &(&v * 2u8 % &self.prime));
        let y = self.minus(&self.times(&r, &self.minus(&v, &x)), &self.times(&s1, &h3));
        let z = self.times(&self.times(&p.z, &q.z), &h);
        Point { x, y, z }
    }

    /// `a` times the base point and `b` times `q`, bit by bit for both at once.
    fn sum(&self, a: &BigUint, b: &BigUint, q: &Point) -> Point {
        let base = self.point(&self.base);
        let both = self.add(&base, q);
        let zero = BigUint::default();
        let mut sum = Point { x: zero.clone(), y: zero.clone(), z: zero };
        for bit in (0..a.bits().max(b.bits())).rev() {
            sum = self.double(&sum);
            match (a.bit(bit), b.bit(bit)) {
                (true, true) => sum = self.add(&sum, &both),
                (true, false) => sum = self.add(&sum, &base),
                (false, true) => sum = self.add(&sum, q),
                (false, false) => {}
            }
        }
        sum
    }

    fn has_signed(&self, key: &[u8], digest: &[u8], (r, s): (&BigUint, &BigUint)) -> bool {
        let zero = BigUint::default();
        let within = |n: &BigUint| *n > zero && *n < self.order;
        let Some(q) = self.read(key).filter(|_| within(r) && within(s)) else { return false };
        // The digest is truncated to the number of bits of the order.
        let extra = (digest.len() as u64 * 8).saturating_sub(self.order.bits());
        let digest = BigUint::from_bytes_be(digest) >> extra;
        // The order is prime, so this power is the inverse.
        let inverse = s.modpow(&(&self.order - 2u8), &self.order);
        let (a, b) = (digest * &inverse % &self.order, r * &inverse % &self.order);
        let found = self.sum(&a, &b, &q);
        if found.z == zero {
            return false;
        }
        let over = found.z.modpow(&(&self.prime - 2u8), &self.prime);
        self.times(&found.x, &self.times(&over, &over)) % &self.order == *r
    }
}

/// Verifies a `signature` (in DER) of `message` with this digest by the key, an uncompressed point of this curve, such
/// as `P-521`. Returns false for unknown curves.
pub(crate) fn has_signed(curve: &str, key: &[u8], hash: Hash, message: &[u8], signature: &[u8]) -> bool {
    let Some(curve) = CURVES.iter().find(|known| known.name == curve) else { return false };
    let Ok((rest, sequence)) = Sequence::from_der(signature) else { return false };
    let content: &[u8] = &sequence.content;
    let parts = Integer::from_der(content).and_then(|(after, r)| Integer::from_der(after).map(|(end, s)| (end, r, s)));
    let Ok((end, r, s)) = parts else { return false };
    // Longer numbers cannot be less than the order, and would only cost time.
    let number = |n: &Integer<'_>| {
        let bytes = n.as_ref();
        let positive = bytes.first().is_some_and(|first| *first < 0x80) && bytes.len() <= curve.length + 1;
        positive.then(|| BigUint::from_bytes_be(bytes))
    };
    match (number(&r), number(&s)) {
        (Some(r), Some(s)) if rest.is_empty() && end.is_empty() => curve.has_signed(key, &hash.of(message), (&r, &s)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_points_lie_on_their_curves_and_have_their_orders() {
        for curve in CURVES.iter() {
            let bytes = |n: &BigUint| {
                let bytes = n.to_bytes_be();
                [vec![0; curve.length - bytes.len()], bytes].concat()
            };
            let mut raw = [vec![4], bytes(&curve.base.0), bytes(&curve.base.1)].concat();
            let base = curve.read(&raw).unwrap_or_else(|| panic!("{}: not on the curve", curve.name));
            let zero = BigUint::default();
            assert_eq!(curve.sum(&curve.order, &zero, &base).z, zero, "{}", curve.name);
            // One less is the same point on the other side.
            let last = curve.sum(&(&curve.order - 1u8), &zero, &base);
            assert_ne!(last.z, zero);
            assert_eq!(curve.add(&last, &base).z, zero);
            *raw.last_mut().unwrap() ^= 1;
            assert!(curve.read(&raw).is_none() && curve.read(&raw[1..]).is_none());
        }
    }

    /// The signatures of RFC 6979 for `sample` with SHA-512 (A.2.7) and for `test` with SHA-256 (A.2.5).
    #[test]
    fn published_signatures() {
        let hex = |text: &str| BigUint::parse_bytes(text.as_bytes(), 16).unwrap();
        let rows = [
            (
                "P-521",
                Hash::Sha512,
                "sample",
                "01894550d0785932e00eaa23b694f213f8c3121f86dc97a04e5a7167db4e5bcd371123d46e45db6b5d5370a7f20fb633155d38ffa16d2bd761dcac474b9a2f5023a4",
                "00493101c962cd4d2fddf782285e64584139c2f91b47f87ff82354d6630f746a28a0db25741b5b34a828008b22acc23f924faafbd4d33f81ea66956dfeaa2bfdfcf5",
                "00c328fafcbd79dd77850370c46325d987cb525569fb63c5d3bc53950e6d4c5f174e25a1ee9017b5d450606add152b534931d7d4e8455cc91f9b15bf05ec36e377fa",
                "00617cce7cf5064806c467f678d3b4080d6f1cc50af26ca209417308281b68af282623eaa63e5b5c0723d8b8c37ff0777b1a20f8ccb1dccc43997f1ee0e44da4a67a",
            ),
            (
                "P-256",
                Hash::Sha256,
                "test",
                "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6",
                "7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299",
                "f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367",
                "019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083",
            ),
        ];
        for (name, hash, message, x, y, r, s) in rows {
            let curve = CURVES.iter().find(|curve| curve.name == name).unwrap();
            let key: Vec<u8> = format!("04{x}{y}")
                .as_bytes()
                .chunks(2)
                .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
                .collect();
            let (r, s) = (hex(r), hex(s));
            let good =
                |message: &str, r: &BigUint, s: &BigUint| curve.has_signed(&key, &hash.of(message.as_bytes()), (r, s));
            assert!(good(message, &r, &s), "{name}");
            assert!(!good("another", &r, &s) && !good(message, &s, &r) && !good(message, &(&r + 1u8), &s), "{name}");
            let zero = BigUint::default();
            for n in [&zero, &curve.order, &(&curve.order + &r)] {
                assert!(!good(message, n, &s) && !good(message, &r, n), "{name}: out of its range");
            }
        }
    }

    #[test]
    fn invalid_signatures_are_rejected() {
        for signature in
            [&b""[..], &[0x30, 0], &[0x30, 3, 2, 1, 1], &[0x30, 6, 2, 1, 1, 2, 1, 0xff], &[0x31, 6, 2, 1, 1, 2, 1, 1]]
        {
            assert!(!has_signed("P-521", &[4; 133], Hash::Sha512, b"m", signature));
        }
        assert!(!has_signed("P-999", &[], Hash::Sha512, b"m", &[0x30, 6, 2, 1, 1, 2, 1, 1]));
    }
}
