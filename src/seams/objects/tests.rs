//! Transfers and time-outs over a store in memory.

use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicIsize, AtomicUsize};
use std::time::Instant;

use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::*;

fn throttled(wait: Duration, permits: Arc<Permits>) -> Objects {
    let config = ThrottleConfig { wait_get_per_call: wait, wait_put_per_call: wait, wait_list_per_call: wait, ..ThrottleConfig::default() };
    Objects::new(Arc::new(ThrottledStore::new(InMemory::new(), config)), "bucket", permits)
}

#[test]
fn chunks_on_their_way_are_bounded_and_counted_and_transfers_that_share_them_end() {
    let (held, most) = (Arc::new(AtomicIsize::new(0)), Arc::new(AtomicIsize::new(0)));
    let permits = {
        let (held, most) = (held.clone(), most.clone());
        Permits::new(3 * 8 * CHUNK_BYTES, move |bytes| {
            let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
            most.fetch_max(now, Ordering::SeqCst);
        })
    };
    let objects = throttled(Duration::from_millis(2), permits);
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
            assert!(stopped.elapsed() < Duration::from_secs(60), "calls go on");
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
