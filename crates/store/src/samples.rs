//! Chooses which records are delta-encoded in memory: each record that is no longer recent and is similar to one of its resource's
//! samples. A record that is similar to none becomes a sample itself.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::key::Resource;
use crate::limits::SAMPLES_PER_RESOURCE_MAX;
use crate::record::Record;
use crate::text::Sample;

/// JSON shorter than this takes less memory as plain bytes.
const DELTA_BYTES_MIN: usize = 256;

/// The resource whose records are never delta-encoded: a sample stays in memory as long as any record that uses it, but a Secret must
/// go from memory when it is deleted.
const SECRETS: &str = "secrets";

/// The samples of each resource, the most recently used first.
#[derive(Default)]
pub(crate) struct Samples {
    of: Mutex<HashMap<Resource, Vec<Arc<Sample>>>>,
}

impl Samples {
    /// Delta-encodes a record if a sample is similar to it. This takes as long as reading the record a few times.
    pub fn pack(&self, record: &Record) {
        if record.len() < DELTA_BYTES_MIN {
            return;
        }
        let resource = record.key().resource;
        if resource.as_str() != SECRETS {
            self.compare(record, resource);
        }
        record.set_compared();
    }

    fn compare(&self, record: &Record, resource: Resource) {
        let candidates = self.of.lock().get(&resource).cloned().unwrap_or_default();
        let found = candidates.into_iter().find(|sample| record.encode_with(sample));
        let Some(sample) = found.or_else(|| record.plain().map(Sample::new)) else { return };
        let mut of = self.of.lock();
        let samples = of.entry(resource).or_default();
        if samples.first().is_some_and(|first| Arc::ptr_eq(first, &sample)) {
            return;
        }
        samples.retain(|held| !Arc::ptr_eq(held, &sample));
        samples.insert(0, sample);
        samples.truncate(SAMPLES_PER_RESOURCE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::key::Key;
    use crate::meta::RecordMeta;

    fn record(kind: u32, n: u32) -> (Record, Bytes) {
        let filler: String = (0..40).map(|i| format!(r#","{kind}field{i}":"{kind}value""#)).collect();
        let json = Bytes::from(format!(r#"{{"name":"{n}"{filler}}}"#));
        (Record::new(Key::new(Resource::parse("things"), "", "a"), json.clone(), 0, 1, 1, RecordMeta::default()), json)
    }

    #[test]
    fn the_protobuf_form_of_a_record_that_resembles_none_is_not_kept() {
        let samples = Samples::default();
        let message = Bytes::from(vec![7; 2000]);
        let (mut held, mut length) = (0, 0);
        for kind in 0..3 {
            let (record, _) = record(kind, 0);
            record.set_protobuf(&message);
            assert_eq!(record.protobuf_bytes_held(), 2000, "a recent record keeps it");
            samples.pack(&record);
            record.set_protobuf(&message);
            held += record.protobuf_bytes_held();
            length += record.protobuf_len_if_made().unwrap();
            assert!(!record.put_protobuf(&mut Vec::<u8>::new()));
        }
        assert_eq!((held, length), (0, 3 * 2000));
    }

    #[test]
    fn a_record_is_encoded_with_the_sample_that_it_resembles() {
        let samples = Samples::default();
        for n in 0..20 {
            for kind in 0..3 {
                let (record, json) = record(kind, n);
                samples.pack(&record);
                assert_eq!(record.plain().is_some(), n == 0, "kind {kind}, {n}");
                assert_eq!(record.bytes(), json);
                samples.pack(&record);
                assert_eq!(record.bytes(), json, "packed again");
                let mut out = Vec::new();
                record.put(&mut out);
                assert_eq!(out, json);
                let (mut bare, mut whole) = (Vec::new(), Vec::new());
                record.put_after(b"{\"name\":", b"<", &mut bare);
                record.put_after(b"{\"other\":", b"<", &mut whole);
                assert_eq!((&bare[..1], &bare[1..], whole), (&b"<"[..], &json[8..], json.to_vec()));
                for cut in 0..=json.len() {
                    assert!(record.begins_with(&[&json[..cut / 2], &json[cut / 2..cut]]), "{cut}");
                }
                assert!(!record.begins_with(&[&json, b"x"]) && !record.begins_with(&[b"{\"other"]));
            }
        }
        for kind in 3..40 {
            samples.pack(&record(kind, 0).0);
        }
        assert_eq!(samples.of.lock()[&Resource::parse("things")].len(), SAMPLES_PER_RESOURCE_MAX);
        let key = Key::new(Resource::parse("things"), "", "a");
        let small = Record::new(key, Bytes::from_static(b"1"), 0, 1, 1, RecordMeta::default());
        samples.pack(&small);
        assert!(small.plain().is_some());
        let secret = |n: u32| {
            let (record, json) = record(0, n);
            drop(record);
            Record::new(Key::new(Resource::parse(SECRETS), "", "a"), json, 0, 1, 1, RecordMeta::default())
        };
        for record in [secret(1), secret(2)] {
            samples.pack(&record);
            assert!(record.plain().is_some(), "a Secret neither becomes a sample nor uses one");
        }
    }
}
