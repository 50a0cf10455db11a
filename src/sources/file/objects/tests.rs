//! Which objects are files of a table.

use bytes::Bytes;

use super::*;
use crate::seams::objects::memory::MemoryStore;
use crate::sinks::file::place::SinkPlace;

fn remote(objects: &Objects, path: &str) -> Remote {
    Remote::new(objects.clone(), ObjectUrl::parse(path).unwrap()).unwrap()
}

fn found(remote: &Remote) -> Vec<String> {
    let mut paths: Vec<String> = remote.find(true).unwrap().into_iter().map(|file| file.path.display().to_string()).collect();
    paths.sort();
    paths.iter().map(|path| path.strip_prefix("s3://bucket/").unwrap().to_string()).collect()
}

#[test]
fn a_path_names_an_object_a_folder_or_those_that_match() {
    let (_, objects) = MemoryStore::bucket();
    for key in ["in/a.csv", "in/b/c.csv", "in/b/c.json", "in/.hidden.csv", "in/_dir/d.csv", "inside.csv"] {
        objects.put(key, Bytes::from_static(b"1\n")).unwrap();
    }
    objects.put("in/empty", Bytes::new()).unwrap();
    let named = |path: &str| found(&remote(&objects, path));
    assert_eq!(named("s3://bucket/in"), ["in/a.csv", "in/b/c.csv", "in/b/c.json"]);
    assert_eq!(named("s3://bucket/in/"), named("s3a://bucket/in"));
    assert_eq!(named("s3://bucket"), ["in/a.csv", "in/b/c.csv", "in/b/c.json", "inside.csv"]);
    assert_eq!(named("s3://bucket/in/a.csv"), ["in/a.csv"]);
    assert_eq!(named("s3://bucket/in/_dir/d.csv"), ["in/_dir/d.csv"]);
    assert_eq!(named("s3://bucket/in/*.csv"), ["in/a.csv"]);
    assert_eq!(named("s3://bucket/**/*.csv"), ["in/_dir/d.csv", "in/a.csv", "in/b/c.csv", "inside.csv"]);
    assert_eq!(named("s3://bucket/in/[b-c]/?.csv"), ["in/b/c.csv"]);
    assert_eq!(named("s3://bucket/in/[b-c]/"), ["in/b/c.csv", "in/b/c.json"]);
    assert_eq!(named("s3://bucket/in/*"), named("s3://bucket/in"));
    assert_eq!(named("s3://bucket/i?"), named("s3://bucket/in"));
    assert_eq!(named("s3://bucket/nowhere"), Vec::<String>::new());
    let file = remote(&objects, "s3://bucket/in/a.csv").find(false).unwrap().remove(0);
    assert!(file.disk_length == 2 && file.tag.is_some());
    assert_eq!(remote(&objects, "s3://bucket/nowhere").find(false).unwrap_err().code().as_str(), "58P01");
    assert_eq!(remote(&objects, "s3://bucket/nowhere/*").find(false).unwrap(), []);
    let malformed = Remote::new(objects.clone(), ObjectUrl::parse("s3://bucket/a[").unwrap()).unwrap_err();
    assert_eq!(malformed.code().as_str(), "22023");
}

#[test]
fn of_a_sink_those_are_files_that_records_name() {
    let (_, objects) = MemoryStore::bucket();
    let root = PathBuf::from("s3://bucket/out");
    let place = SinkPlace::new(root.clone(), 1, 7, 20_000, "s", 1);
    place.prepare_objects(&objects, Some(None)).unwrap();
    let put = |folder: &str, barrier: u64| -> String {
        let path = place.visible(&root.join(folder), &place.tail(0, 1, "csv"), barrier);
        let key = ObjectUrl::split(&path).unwrap().1.to_string();
        objects.put(&key, Bytes::from_static(b"1\n")).unwrap();
        key
    };
    let record = |barrier: u64, keys: &[&String]| {
        let record = place.record(barrier);
        let paths: Vec<PathBuf> = keys.iter().map(|key| PathBuf::from(objects.url(key))).collect();
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let content = crate::sinks::commit::encode_record(&record, &paths).unwrap();
        objects.put(ObjectUrl::split(&record).unwrap().1, Bytes::from(content)).unwrap();
    };
    let (named, unnamed) = (put("k=1", 5), put("k=1", 6));
    record(5, &[&named]);
    objects.put("out/plain.csv", Bytes::from_static(b"1\n")).unwrap();
    let (whole, part) = (remote(&objects, "s3://bucket/out"), remote(&objects, "s3://bucket/out/k=1"));
    assert_eq!(found(&whole), [named.clone(), "out/plain.csv".to_string()]);
    assert_eq!(found(&part), std::slice::from_ref(&named), "the records stand above");
    record(6, &[&unnamed]);
    let mut both = vec![named.clone(), unnamed];
    both.sort();
    assert_eq!(found(&part), both);
    // What is taken back is not there any more, and named directly an object is a file whatever records say.
    objects.remove(&[ObjectUrl::split(&place.record(6)).unwrap().1.to_string()]).unwrap();
    assert_eq!(found(&part), [named]);
    let other = put("k=2", 9);
    assert_eq!(found(&remote(&objects, &format!("s3://bucket/{other}"))), [other]);
}

#[test]
fn options_go_together_and_secrets_stay_inside() {
    let parse = |options: &[(&str, &str)]| {
        let all = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let mut reader = OptionReader::new("file", &all).unwrap();
        let place = ObjectPlace::take("s3://bucket/in", &mut reader)?;
        reader.finish()?;
        Ok::<_, Error>(place.unwrap())
    };
    let place = parse(&[("s3.access-key", "id"), ("s3.secret-key", "hush"), ("s3.allow_http", "on"), ("s3.timeout", "3 s")]).unwrap();
    assert_eq!((place.access.secret_access_key.as_deref(), place.access.allow_http), (Some("hush"), Some(true)));
    assert_eq!(place.access.timeout, Some(std::time::Duration::from_secs(3)));
    assert!(!format!("{place:?}").contains("hush"));
    for wrong in [
        &[("s3.access_key_id", "id")][..],
        &[("s3.session_token", "hush")],
        &[("s3.secret_access_key", "hush")],
        &[("s3.timeout", "0 s")],
        &[("s3.allow_http", "perhaps")],
        &[("s3.colour", "red")],
    ] {
        let error = parse(wrong).unwrap_err();
        assert!(error.code().as_str() == "22023" && !error.to_string().contains("hush"), "{wrong:?}: {error}");
    }
}
