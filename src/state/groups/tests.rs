use arrow::array::AsArray;
use arrow::datatypes::Int64Type;

use super::*;
use crate::state::MemoryBackend;

/// One number a key.
#[derive(Default)]
struct Numbers(Vec<i64>);

impl StateColumns for Numbers {
    fn grow(&mut self, len: usize) {
        self.0.resize(len, 0);
    }
    fn load(&mut self, slots: &[u32], values: &[ArrayRef]) -> Result<()> {
        for (slot, value) in slots.iter().zip(values[0].as_primitive::<Int64Type>().values()) {
            self.0[*slot as usize] = *value;
        }
        Ok(())
    }
    fn store(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        Ok(vec![Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| self.0[*slot as usize])))])
    }
    fn is_empty(&self, slot: u32) -> bool {
        self.0[slot as usize] == 0
    }
    fn compact(&mut self, kept: &[u32]) {
        compact(&mut self.0, kept);
    }
    fn memory_bytes(&self) -> usize {
        self.0.capacity() * 8
    }
}

/// A keyed sum over texts or numbers.
struct Sums {
    groups: Groups,
    numbers: Numbers,
    codec: KeyCodec,
    data_type: DataType,
}

impl Sums {
    fn new(int64: bool) -> Sums {
        let types = [DataType::Int64];
        let data_type = if int64 { DataType::Int64 } else { DataType::Utf8 };
        let groups = if int64 { Groups::for_int64(3, &types) } else { Groups::new(3, &types) }.unwrap();
        Sums { groups, numbers: Numbers::default(), codec: KeyCodec::new(std::slice::from_ref(&data_type)).unwrap(), data_type }
    }

    fn key_column(&self, keys: &[Option<i64>]) -> ArrayRef {
        let keys: ArrayRef = Arc::new(keys.iter().copied().collect::<Int64Array>());
        arrow::compute::cast(&keys, &self.data_type).unwrap()
    }

    fn slots(&mut self, backend: &MemoryBackend, keys: &[Option<i64>]) -> Vec<u32> {
        let column = self.key_column(keys);
        let mut slots = Vec::new();
        if self.groups.is_int64() {
            self.groups.intern_int64(column.as_primitive(), &mut slots);
        } else {
            let mut encoded = EncodedRows::new();
            self.codec.encode(&[column], &mut encoded).unwrap();
            self.groups.intern_encoded(&encoded, &mut slots);
        }
        self.groups.load_missing(backend, &mut self.numbers).unwrap();
        slots
    }

    fn add(&mut self, backend: &MemoryBackend, changes: &[(Option<i64>, i64)]) {
        self.groups.tick();
        let keys: Vec<Option<i64>> = changes.iter().map(|(key, _)| *key).collect();
        let slots = self.slots(backend, &keys);
        self.groups.touch(&slots);
        for (slot, (_, number)) in slots.iter().zip(changes) {
            self.numbers.0[*slot as usize] += number;
        }
    }

    fn get(&mut self, backend: &MemoryBackend, keys: &[Option<i64>]) -> Vec<i64> {
        self.slots(backend, keys).into_iter().map(|slot| self.numbers.0[slot as usize]).collect()
    }

    fn write_back(&mut self, backend: &mut MemoryBackend) {
        self.groups.untouch(|_, _| true);
        self.groups.write_back(backend, &self.numbers).unwrap();
    }
}

#[test]
fn values_come_back_from_the_backend_after_eviction() {
    for int64 in [true, false] {
        let mut backend = MemoryBackend::new();
        let mut sums = Sums::new(int64);
        let keys: Vec<Option<i64>> = (-500..500).map(Some).chain([None]).collect();
        let changes: Vec<(Option<i64>, i64)> = keys.iter().map(|key| (*key, key.map_or(7, |key| key * 10 + 1))).collect();
        sums.add(&backend, &changes);
        sums.write_back(&mut backend);
        assert_eq!(backend.estimate().rows, 1001);
        // The lately used ones stay, and keep their values.
        sums.add(&backend, &[(None, 1), (Some(3), 1), (Some(-500), 1)]);
        sums.write_back(&mut backend);
        let kept = sums.groups.evict(3, &mut sums.numbers);
        assert_eq!((kept, sums.groups.len()), (vec![0, 503, 1000], 3));
        assert_eq!(sums.get(&backend, &[None, Some(3), Some(-500)]), [8, 32, -4998]);
        assert_eq!(sums.groups.len(), 3);
        let expected: Vec<i64> =
            changes.iter().map(|(key, number)| number + i64::from(key.is_none() || *key == Some(3) || *key == Some(-500))).collect();
        assert_eq!(sums.get(&backend, &keys), expected);
        // Everything may go, and come back.
        sums.groups.evict(0, &mut sums.numbers);
        assert!(sums.groups.is_empty());
        assert_eq!(sums.get(&backend, &keys), expected);
    }
}

#[test]
fn what_changed_in_the_epoch_is_neither_written_nor_evicted() {
    for int64 in [true, false] {
        let mut backend = MemoryBackend::new();
        let mut sums = Sums::new(int64);
        sums.add(&backend, &[(Some(1), 1), (Some(2), 2), (Some(3), 3)]);
        sums.groups.untouch(|position, _| position != 1);
        sums.groups.write_back(&mut backend, &sums.numbers).unwrap();
        assert_eq!(backend.estimate().rows, 2);
        assert_eq!(sums.groups.evict(0, &mut sums.numbers), [1]);
        assert_eq!((sums.groups.touched(), sums.groups.dirty()), (&[0][..], &[0][..]));
        assert_eq!(sums.get(&backend, &[Some(1), Some(2), Some(3)]), [1, 2, 3]);
    }
}

#[test]
fn an_empty_value_is_deleted_and_one_that_never_was_is_not_written() {
    let mut backend = MemoryBackend::new();
    let mut sums = Sums::new(true);
    sums.add(&backend, &[(Some(1), 5), (Some(2), 5), (Some(2), -5)]);
    sums.write_back(&mut backend);
    assert_eq!(backend.estimate().rows, 1);
    sums.add(&backend, &[(Some(1), -5)]);
    sums.write_back(&mut backend);
    assert_eq!(backend.estimate().rows, 0);
    assert!(!sums.groups.is_stored(0));
    sums.add(&backend, &[(Some(1), 4)]);
    sums.write_back(&mut backend);
    assert_eq!(sums.get(&backend, &[Some(1), Some(2)]), [4, 0]);
    assert_eq!(backend.estimate().rows, 1);
}

#[test]
fn keys_in_the_backend_are_key_group_tag_and_encoded_key() {
    let mut backend = MemoryBackend::new();
    let mut sums = Sums::new(true);
    sums.add(&backend, &[(Some(42), 1)]);
    sums.write_back(&mut backend);
    let mut encoded = EncodedRows::new();
    sums.codec.encode(&[sums.key_column(&[Some(42)])], &mut encoded).unwrap();
    let mut expected = key_group(key_hash(encoded.get(0))).to_be_bytes().to_vec();
    expected.push(3);
    expected.extend_from_slice(encoded.get(0));
    let mut keys = Vec::new();
    backend
        .scan(&[], &[], &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })
        .unwrap();
    assert_eq!(keys, [expected]);
}
