//! Transfers and time-outs over a store in memory.

use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicIsize, AtomicUsize};
use std::time::Instant;

use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::memory::MemoryStore;
use super::*;

/// How long something may take that is on its way: machines are slow at times.
const PATIENCE: Duration = Duration::from_secs(120);

fn throttled(wait: Duration, permits: Arc<Permits>) -> Objects {
    let config = ThrottleConfig { wait_get_per_call: wait, wait_put_per_call: wait, wait_list_per_call: wait, ..ThrottleConfig::default() };
    Objects::new(Arc::new(ThrottledStore::new(InMemory::new(), config)), "bucket", permits)
}

/// Permits for three chunks, the bytes that are held, and the most that ever were.
fn counted_permits() -> (Arc<Permits>, Arc<AtomicIsize>, Arc<AtomicIsize>) {
    let (held, most) = (Arc::new(AtomicIsize::new(0)), Arc::new(AtomicIsize::new(0)));
    let permits = {
        let (held, most) = (held.clone(), most.clone());
        Permits::new(3 * 8 * CHUNK_BYTES, move |bytes| {
            let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
            most.fetch_max(now, Ordering::SeqCst);
        })
    };
    (permits, held, most)
}

#[test]
fn chunks_on_their_way_are_bounded_and_counted_and_transfers_that_share_them_end() {
    let (permits, held, most) = counted_permits();
    let objects = throttled(Duration::from_millis(2), permits);
    objects.set_timeout(5 * PATIENCE);
    let content: Vec<u8> = (0..4 * CHUNK_BYTES + 7).map(|at| (at / 1000) as u8).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (objects, content) = (&objects, &content);
            scope.spawn(move || {
                let keys = [format!("{thread}/a"), format!("{thread}/b")];
                let mut upload = objects.upload();
                for key in &keys {
                    upload.put(key, &mut Cursor::new(content)).unwrap();
                }
                upload.finish().unwrap();
                let length = content.len() as u64;
                let ranges: Vec<Range> = keys
                    .iter()
                    .flat_map(|key| {
                        let range = move |from: u64| Range {
                            key: key.clone(),
                            from,
                            to: (from + CHUNK_BYTES as u64).min(length),
                            object_bytes: length,
                        };
                        (0..length).step_by(CHUNK_BYTES).map(range)
                    })
                    .collect();
                let mut found = Vec::new();
                objects
                    .download(&ranges, |_, bytes| {
                        found.extend_from_slice(&bytes);
                        Ok(())
                    })
                    .unwrap();
                assert!(found == [content.as_slice(), content].concat());
            });
        }
    });
    assert_eq!(held.load(Ordering::SeqCst), 0);
    let most = most.load(Ordering::SeqCst) as usize / CHUNK_BYTES;
    assert!((2..=3).contains(&most), "{most} chunks at a time");
}

#[test]
fn what_was_on_its_way_when_a_transfer_was_given_up_has_ended_or_is_counted() {
    let (permits, held, _) = counted_permits();
    // It would arrive in an hour.
    let slow = throttled(Duration::from_secs(3600), permits.clone());
    slow.set_timeout(Duration::from_secs(3600));
    let mut upload = slow.upload();
    for key in ["a", "b"] {
        upload.put(key, &mut Cursor::new(vec![1; 100])).unwrap();
    }
    assert_eq!(held.load(Ordering::SeqCst), 2 * CHUNK_BYTES as isize);
    drop(upload);
    assert_eq!(held.load(Ordering::SeqCst), 0);

    let quick = throttled(Duration::ZERO, permits);
    quick.put("a", Bytes::from_static(b"content")).unwrap();
    let range = Range { key: "a".into(), from: 0, to: 7, object_bytes: 7 };
    let ranges = vec![range; 3];
    let mut holds = Vec::new();
    let given_up = quick.download(&ranges, |_, bytes| {
        holds.push((bytes, held.load(Ordering::SeqCst)));
        Err(Error::internal("full"))
    });
    assert_eq!(given_up.unwrap_err().message(), "full");
    assert_eq!(holds, [(Bytes::from_static(b"content"), 3 * CHUNK_BYTES as isize)]);
    wait_until("what was asked for is counted no more", || held.load(Ordering::SeqCst) == 0);
}

/// Content that can't be read to its end.
struct Torn(usize);

impl Read for Torn {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = buffer.len().min(self.0);
        self.0 -= read;
        if read == 0 { Err(std::io::Error::other("torn")) } else { Ok(read) }
    }
}

#[test]
fn what_could_not_be_read_whole_does_not_appear() {
    let objects = throttled(Duration::ZERO, Permits::new(64 << 20, |_| ()));
    let mut upload = objects.upload();
    assert_eq!(upload.put("a", &mut Torn(2 * CHUNK_BYTES + 3)).unwrap_err().code().as_str(), "58030");
    assert!(upload.finish().is_err());
    assert_eq!(objects.list("").unwrap(), []);
}

#[test]
fn every_call_ends_by_its_timeout_or_when_calls_are_stopped() {
    let objects = throttled(Duration::from_secs(3600), Permits::new(8 << 20, |_| ()));
    objects.set_timeout(Duration::from_millis(50));
    let error = objects.get("a").unwrap_err();
    assert_eq!(error.code().as_str(), "58030");
    assert_eq!(error.message(), "could not read \"s3://bucket/a\"");
    assert_eq!(error.detail(), Some("There was no answer within 0.05 s."));

    objects.set_timeout(Duration::from_secs(3600));
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let put = || {
            let mut upload = objects.upload();
            let put = upload.put("a", &mut Cursor::new(vec![1; 100])).and_then(|()| upload.finish());
            assert_eq!(put.unwrap_err().code().as_str(), "57P01");
            ended.fetch_add(1, Ordering::SeqCst);
        };
        // One has the only permit, and the other waits for it.
        scope.spawn(put);
        scope.spawn(put);
        let list = || assert_eq!(objects.list("").unwrap_err().code().as_str(), "57P01");
        scope.spawn(list);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        let stopped = Instant::now();
        objects.stop();
        while ended.load(Ordering::SeqCst) < 2 {
            assert!(stopped.elapsed() < PATIENCE, "calls go on");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(objects.len("a").unwrap_err().code().as_str(), "57P01");
}

#[test]
fn objects_are_listed_copied_and_put_where_there_is_none() {
    let objects = throttled(Duration::ZERO, Permits::new(64 << 20, |_| ()));
    assert!(objects.put_if_absent("in/a", Bytes::from_static(b"one")).unwrap());
    assert!(!objects.put_if_absent("in/a", Bytes::from_static(b"two")).unwrap());
    assert!(objects.copy("in/a", "in/b").unwrap() && !objects.copy("in/none", "in/c").unwrap());
    objects.put("inside", Bytes::from_static(b"1234")).unwrap();
    let listed = |listed: Vec<Listed>| listed.into_iter().map(|object| (object.key, object.bytes)).collect::<Vec<_>>();
    assert_eq!(listed(objects.list("in").unwrap()), [("in/a".to_string(), 3), ("in/b".to_string(), 3)]);
    assert_eq!(listed(objects.list_behind("in", "in/a").unwrap()), [("in/b".to_string(), 3)]);
    assert_eq!(objects.get("in/b").unwrap().as_deref(), Some(b"one".as_slice()));
    assert_eq!((objects.len("inside").unwrap(), objects.len("none").unwrap(), objects.get("none").unwrap()), (Some(4), None, None));
    objects.remove(&["in/a".to_string(), "none".to_string(), "in/b".to_string()]).unwrap();
    assert_eq!(listed(objects.list("").unwrap()), [("inside".to_string(), 4)]);
    assert_eq!(objects.put("a//b", Bytes::new()).unwrap_err().code().as_str(), "22023");
}

#[test]
fn an_object_is_read_from_front_to_back_with_parts_left_out() {
    let (_, objects) = MemoryStore::bucket();
    let content: Vec<u8> = (0..(13 << 20) + 5usize).map(|at| (at / 997) as u8).collect();
    objects.put("a", Bytes::from(content.clone())).unwrap();
    let seen = Seen { key: "a".into(), bytes: content.len() as u64, tag: objects.head("a").unwrap().unwrap().tag };
    assert!(seen.tag.is_some());
    let mut all = Vec::new();
    objects.reader(seen.clone()).read_to_end(&mut all).unwrap();
    assert!(all == content);
    // Over what is held, over what is asked for, and far away.
    for skips in [[100, 5 << 20, 1], [9 << 20, 10, 3 << 20], [4 << 20, 4 << 20, 4 << 20], [12 << 20, 1, 1 << 30]] {
        let mut reader = objects.reader(seen.clone());
        let mut at = 0;
        for skip in skips {
            reader.skip(skip as u64);
            at = (at + skip).min(content.len());
            let mut buffer = vec![0; 1000.min(content.len() - at)];
            reader.read_exact(&mut buffer).unwrap();
            assert!(buffer == content[at..at + buffer.len()], "{skips:?}, from {at} on");
            at += buffer.len();
        }
    }
    let ranges = [3..10, 100..(9 << 20), (13 << 20)..content.len() as u64];
    for (range, read) in ranges.iter().zip(objects.read_ranges(&seen, &ranges).unwrap()) {
        assert!(read == content[range.start as usize..range.end as usize], "{range:?}");
    }
    assert_eq!(joined(&[0..10, 20..30, (1 << 20)..(2 << 20)]), [0..30, (1 << 20)..(2 << 20)]);
}

#[test]
fn an_object_that_changes_while_it_is_read_is_named() {
    let (_, objects) = MemoryStore::bucket();
    let content = vec![7; 14 << 20];
    objects.put("a", Bytes::from(content.clone())).unwrap();
    let tag = objects.head("a").unwrap().unwrap().tag;
    let seen = |tag: Option<u64>| Seen { key: "a".into(), bytes: content.len() as u64, tag };
    // Where the version was not known, that of the first piece counts.
    let mut readers = [objects.reader(seen(tag)), objects.reader(seen(None))];
    let mut buffer = vec![0; 1 << 20];
    readers.iter_mut().for_each(|reader| reader.read_exact(&mut buffer).unwrap());
    objects.put("a", Bytes::from(vec![8; 14 << 20])).unwrap();
    for mut reader in readers {
        let error = error_of(&reader.read_to_end(&mut Vec::new()).unwrap_err()).unwrap();
        assert_eq!((error.code().as_str(), error.message()), ("55000", "file \"s3://bucket/a\" has changed"));
    }
    let whole = 0..content.len() as u64;
    assert_eq!(objects.read_ranges(&seen(tag), std::slice::from_ref(&whole)).unwrap_err().code().as_str(), "55000");
    objects.put("a", Bytes::from_static(b"short")).unwrap();
    let error = objects.read_ranges(&seen(None), std::slice::from_ref(&((5 << 20)..(6 << 20)))).unwrap_err();
    assert!(error.code().as_str() == "55000" && error.detail().is_some_and(|detail| detail.contains("has 5 now")), "{error}");
    objects.remove(&["a".to_string()]).unwrap();
    let error = objects.read_ranges(&seen(tag), std::slice::from_ref(&whole)).unwrap_err();
    assert!(error.code().as_str() == "58030" && error.detail().is_some_and(|detail| detail.contains("no such object")), "{error}");
}

/// Waits until `done`, which something on another thread brings about.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn parts_are_kept_until_they_have_arrived_and_completing_twice_is_once() {
    let (store, objects) = MemoryStore::bucket();
    let kept = Arc::new(AtomicIsize::new(0));
    let uploads = {
        let kept = kept.clone();
        Uploads::new(objects.clone(), 10, move |bytes| {
            kept.fetch_add(bytes, Ordering::SeqCst);
        })
    };
    let upload = uploads.begin("out/a").unwrap();
    store.parts_fail.store(2, Ordering::SeqCst);
    for part in [&b"one "[..], b"two ", b"three"] {
        upload.push(part.to_vec()).unwrap();
    }
    let stored = loop {
        match upload.wait() {
            Ok(stored) => break stored,
            Err(error) => assert_eq!(error.code().as_str(), "58030"),
        }
    };
    assert_eq!((stored.bytes, stored.parts.len(), kept.load(Ordering::SeqCst)), (13, 3, 0));
    assert_eq!(upload.wait().unwrap(), stored, "told again");
    assert_eq!(objects.get("out/a").unwrap(), None, "no object before it is completed");
    drop(upload);

    store.completions_fail.store(true, Ordering::SeqCst);
    assert!(objects.complete(std::slice::from_ref(&stored)).is_err());
    store.completions_fail.store(false, Ordering::SeqCst);
    store.answers_lost.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(objects.complete(std::slice::from_ref(&stored)).unwrap(), [true]);
    }
    assert_eq!(objects.get("out/a").unwrap().as_deref(), Some(b"one two three".as_slice()));
    // Of another length: somebody else's.
    objects.put("out/a", Bytes::from_static(b"x")).unwrap();
    assert_eq!(objects.complete(std::slice::from_ref(&stored)).unwrap_err().code().as_str(), "XX001");
    objects.remove(&["out/a".to_string()]).unwrap();
    assert_eq!(objects.complete(std::slice::from_ref(&stored)).unwrap(), [false]);
}

#[test]
fn uploads_that_nobody_was_told_of_are_called_off() {
    let (store, objects) = MemoryStore::bucket();
    let uploads = Uploads::new(objects.clone(), 1 << 20, |_| ());
    let (told, untold) = (uploads.begin("told").unwrap(), uploads.begin("untold").unwrap());
    told.push(b"told".to_vec()).unwrap();
    untold.push(b"untold".to_vec()).unwrap();
    let stored = told.wait().unwrap();
    wait_until("both have begun", || store.uploads() == 2);
    drop((told, untold));
    wait_until("one is left", || store.uploads() == 1);
    objects.call_off(vec![(stored.key.clone(), stored.upload.clone()), ("other".into(), "99".into())]).unwrap();
    assert_eq!(store.uploads(), 0);
}

#[test]
fn an_upload_that_is_given_up_while_it_is_begun_is_called_off() {
    let (store, objects) = MemoryStore::bucket();
    let kept = Arc::new(AtomicIsize::new(0));
    let uploads = {
        let kept = kept.clone();
        Uploads::new(objects, 1 << 20, move |bytes| {
            kept.fetch_add(bytes, Ordering::SeqCst);
        })
    };
    store.beginnings_held.store(true, Ordering::SeqCst);
    let upload = uploads.begin("a").unwrap();
    for part in [b"one", b"two"] {
        upload.push(part.to_vec()).unwrap();
    }
    wait_until("it has begun", || store.uploads() == 1);
    drop(upload);
    assert_eq!(kept.load(Ordering::SeqCst), 0);
    store.beginnings_held.store(false, Ordering::SeqCst);
    wait_until("it is called off", || store.uploads() == 0);
}

#[test]
fn a_writer_waits_for_room_and_is_told_when_nothing_arrives() {
    let (store, objects) = MemoryStore::bucket();
    objects.set_timeout(Duration::from_millis(50));
    let uploads = Uploads::new(objects, 10, |_| ());
    let upload = uploads.begin("a").unwrap();
    store.parts_fail.store(usize::MAX, Ordering::SeqCst);
    upload.push(vec![0; 11]).unwrap();
    assert!(uploads.is_full());
    let error = runtime().unwrap().block_on(uploads.clone().room()).unwrap_err();
    assert!(error.message().contains("s3://bucket/a"), "{error}");
    assert!(uploads.is_full(), "what did not arrive is kept");
    store.parts_fail.store(2, Ordering::SeqCst);
    let began = Instant::now();
    while runtime().unwrap().block_on(uploads.clone().room()).is_err() {
        assert!(began.elapsed() < PATIENCE, "nothing arrives");
    }
    assert!(!uploads.is_full());
    assert_eq!(upload.wait().unwrap().bytes, 11);
}
