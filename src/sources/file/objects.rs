//! Files that are objects in a store: finding them, and reading them.
//!
//! A listing of a store is of one moment only as far as one answer goes. So where sinks' records say what may be seen, all is listed twice: of each sink, the
//! records up to the newest one of the first listing are all in the second, and so are the files that they name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_catalog::{Error, Result, SqlState};

use super::enumerator::Found;
use super::listing::{is_hidden, missing};
use crate::formats::options::{OptionReader, invalid};
use crate::formats::parquet::{FileParts, ParquetFile};
use crate::seams::hash::{HashMap, HashSet};
use crate::seams::objects::{Access, Listed, ObjectReader, ObjectUrl, Objects, Permits, Seen};
use crate::sinks::commit::{RECORDS, read_record};
use crate::sinks::file::place::{FolderRecords, Published, Records, SinkFileName, sink_of};

/// What is read of a Parquet file's end at first: mostly all of its footer.
const FOOTER_BYTES: u64 = 64 << 10;

/// A place in an object store, and how that is spoken to.
///
/// | option | means | default |
/// | --- | --- | --- |
/// | `s3.endpoint`, `s3.region` | the store | as `AWS_*` variables say |
/// | `s3.access_key_id`, `s3.secret_access_key`, `s3.session_token` | the credentials | as `AWS_*` variables say |
/// | `s3.allow_http` | whether an endpoint without encryption may be used | as `AWS_ALLOW_HTTP` says |
/// | `s3.timeout` | how long a request may take, with everything that is tried again | 60 s |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPlace {
    pub url: ObjectUrl,
    pub access: Access,
}

/// How long a request may take where a table does not say.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

impl ObjectPlace {
    /// The place that the option `path` names, and the options that go with it; `None` where that is no URL of objects.
    pub fn take(path: &str, options: &mut OptionReader<'_>) -> Result<Option<ObjectPlace>> {
        if !ObjectUrl::is_url(path) {
            return Ok(None);
        }
        let mut text = |names: &[&'static str]| -> Result<Option<String>> {
            let given = options.take(names)?.filter(|given| !given.value.trim().is_empty());
            Ok(given.map(|given| given.value.trim().to_string()))
        };
        let mut access = Access {
            endpoint: text(&["s3.endpoint"])?,
            region: text(&["s3.region", "s3.endpoint.region"])?,
            access_key_id: text(&["s3.access_key_id", "s3.access-key"])?,
            secret_access_key: text(&["s3.secret_access_key", "s3.secret-key"])?,
            session_token: text(&["s3.session_token"])?,
            ..Access::default()
        };
        if access.access_key_id.is_some() != access.secret_access_key.is_some() {
            return Err(invalid("options \"s3.access_key_id\" and \"s3.secret_access_key\" go together"));
        }
        if access.session_token.is_some() && access.access_key_id.is_none() {
            return Err(invalid("option \"s3.session_token\" goes with \"s3.access_key_id\" and \"s3.secret_access_key\""));
        }
        access.allow_http = options.take(&["s3.allow_http"])?.map(|given| given.boolean()).transpose()?;
        access.timeout = match options.take(&["s3.timeout"])? {
            None => Some(TIMEOUT),
            Some(given) => {
                Some(given.duration()?).filter(|timeout| !timeout.is_zero()).map(Some).ok_or_else(|| given.malformed("longer than 0"))?
            }
        };
        Ok(Some(ObjectPlace { url: ObjectUrl::parse(path)?, access }))
    }

    /// The bucket. Nothing is sent yet. Errors: `22023` where the options don't fit.
    pub fn open(&self) -> Result<Objects> {
        // Readers and writers bound what is on its way themselves.
        Objects::open_as(&self.url, &self.access, Permits::new(0, |_| ()))
    }
}

/// The files of a table that are objects.
#[derive(Debug)]
pub struct Remote {
    objects: Objects,
    url: ObjectUrl,
    /// What every key begins with, and a slash; empty for the whole bucket.
    folder: String,
    pattern: Option<glob::Pattern>,
    /// The files that records name: a record never changes.
    records: Mutex<HashMap<PathBuf, Arc<Vec<PathBuf>>>>,
}

impl Remote {
    /// Opens the place. Nothing is sent yet. Errors: `22023` where the options or the pattern don't fit.
    pub fn open(place: &ObjectPlace) -> Result<Remote> {
        Remote::new(place.open()?, place.url.clone())
    }

    /// What `url` names in the bucket `objects`.
    pub fn new(objects: Objects, url: ObjectUrl) -> Result<Remote> {
        let (mut folder, mut pattern) = (url.prefix.clone(), None);
        if let Some(at) = url.prefix.find(['*', '?', '[']) {
            folder = url.prefix[..at].rsplit_once('/').map_or("", |(folder, _)| folder).to_string();
            pattern = Some(glob::Pattern::new(&url.prefix).map_err(|e| {
                Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("pattern \"{url}\" is malformed")).with_detail(e.to_string())
            })?);
        }
        Ok(Remote { objects, url, folder, pattern, records: Mutex::default() })
    }

    /// Ends every request.
    pub fn stop(&self) {
        self.objects.stop();
    }

    fn path(&self, key: &str) -> PathBuf {
        PathBuf::from(self.objects.url(key))
    }

    fn seen(&self, path: &Path, bytes: u64, tag: Option<u64>) -> Result<Seen> {
        let split = ObjectUrl::split(path).ok_or_else(|| Error::internal(format!("\"{}\" is no object", path.display())))?;
        Ok(Seen { key: split.1.to_string(), bytes, tag })
    }

    /// Everything that there is where files may be.
    fn list(&self) -> Result<Vec<Listed>> {
        let listed = self.objects.list(&self.folder)?;
        if listed.is_empty() && self.pattern.is_none() && !self.url.prefix.is_empty() {
            return Ok(self.objects.head(&self.url.prefix)?.into_iter().collect());
        }
        Ok(listed)
    }

    /// Those of `listed` that are files of the table. Without content are those that stand for folders.
    fn files(&self, listed: &[Listed]) -> Vec<Found> {
        let options =
            glob::MatchOptions { require_literal_separator: true, require_literal_leading_dot: true, ..glob::MatchOptions::default() };
        let is_shown = |below: &str| !below.split('/').any(|name| name.starts_with(['.', '_']));
        let is_file = |object: &&Listed| -> bool {
            let key = object.key.as_str();
            if let Some(pattern) = &self.pattern {
                let matches = |name: &str| pattern.matches_with(name, options) && !is_hidden(Path::new(name));
                // As of files, what stands below a folder that matches is read too.
                let is_below = || key.match_indices('/').any(|(at, _)| matches(&key[..at]) && is_shown(&key[at + 1..]));
                return object.bytes > 0 && (matches(key) || is_below());
            }
            let below =
                if self.folder.is_empty() { Some(key) } else { key.strip_prefix(&self.folder).and_then(|key| key.strip_prefix('/')) };
            match below {
                Some(below) => object.bytes > 0 && is_shown(below),
                None => key == self.url.prefix,
            }
        };
        let found = |object: &Listed| Found { path: self.path(&object.key), disk_length: object.bytes, tag: object.tag };
        listed.iter().filter(is_file).map(found).collect()
    }

    /// The files that there are now. Of a sink's, those of whole checkpoints. Waits for the store.
    ///
    /// Errors: `58P01` where there is nothing, unless `may_be_missing`; those of the store.
    pub fn find(&self, may_be_missing: bool) -> Result<Vec<Found>> {
        let first = self.list()?;
        if first.is_empty() && self.pattern.is_none() && !may_be_missing {
            return Err(missing(&self.url.to_string()));
        }
        let files = self.files(&first);
        if files.iter().all(|file| sink_of(&file.path).is_none()) {
            return Ok(files);
        }
        let second = self.list()?;
        let mut published = Published::default();
        let records = StoreRecords { remote: self, first: &first, second: &second };
        if !published.read_for(&records, files.iter().map(|file| file.path.as_path()))? {
            return Ok(files);
        }
        let mut files = self.files(&second);
        let named = self.path(&self.url.prefix);
        files.retain(|file| file.path == named || published.has(&file.path));
        Ok(files)
    }

    /// The version that the object at `path`, which had `bytes` bytes, is of now, where the store says. Waits for the store.
    pub fn version(&self, path: &Path, bytes: u64) -> Result<Option<u64>> {
        let seen = self.seen(path, bytes, None)?;
        match self.objects.head(&seen.key)? {
            Some(now) if now.bytes == bytes => Ok(now.tag),
            // Reading it says what is wrong.
            _ => Ok(None),
        }
    }

    /// Reads a file from its beginning.
    pub fn reader(&self, path: &Path, bytes: u64, tag: Option<u64>) -> Result<ObjectReader> {
        Ok(self.objects.reader(self.seen(path, bytes, tag)?))
    }

    /// Parts of a file, in memory. Waits for the store.
    pub fn parts(&self, path: &Path, bytes: u64, tag: Option<u64>, ranges: &[std::ops::Range<u64>]) -> Result<FileParts> {
        let read = self.objects.read_ranges(&self.seen(path, bytes, tag)?, ranges)?;
        Ok(FileParts::new(bytes, ranges.iter().map(|range| range.start).zip(read).collect()))
    }

    /// What a Parquet file says about itself. Waits for the store.
    pub fn parquet(&self, path: &Path, bytes: u64, tag: Option<u64>) -> Result<ParquetFile> {
        let mut footer_bytes = FOOTER_BYTES;
        loop {
            let from = bytes.saturating_sub(footer_bytes);
            let end = self.parts(path, bytes, tag, std::slice::from_ref(&(from..bytes)))?;
            match end.footer_bytes() {
                Some(needed) if needed > footer_bytes && from > 0 => footer_bytes = needed,
                _ => return ParquetFile::of_parts(path, &end),
            }
        }
    }
}

/// The records of sinks, between two listings.
struct StoreRecords<'a> {
    remote: &'a Remote,
    first: &'a [Listed],
    second: &'a [Listed],
}

impl Records for StoreRecords<'_> {
    fn read(&self, folder: &Path) -> Result<Option<FolderRecords>> {
        let Some((_, folder_key)) = ObjectUrl::split(folder) else { return Ok(None) };
        let remote = self.remote;
        let within = |listed: &[Listed]| -> Vec<PathBuf> {
            let name = |object: &Listed| {
                let name = object.key.strip_prefix(folder_key)?.strip_prefix('/')?;
                (!name.contains('/')).then(|| remote.path(&object.key))
            };
            listed.iter().filter_map(name).collect()
        };
        let above = folder_key.strip_suffix(RECORDS).unwrap_or(folder_key).trim_end_matches('/');
        let is_listed =
            remote.folder.is_empty() || above.strip_prefix(&remote.folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let (first, second) = if is_listed {
            (within(self.first), within(self.second))
        } else {
            let first = remote.objects.list(folder_key)?;
            if first.is_empty() {
                return Ok(None);
            }
            (within(&first), within(&remote.objects.list(folder_key)?))
        };
        let parsed = |path: &'_ Path| SinkFileName::parse(path.file_name()?.to_str()?).map(|name| (name.sink.to_string(), name.barrier));
        let mut newest: HashMap<String, u64> = HashMap::default();
        for (sink, barrier) in first.iter().filter_map(|path| parsed(path)) {
            let newest = newest.entry(sink).or_default();
            *newest = barrier.max(*newest);
        }
        let mut records = FolderRecords::default();
        let mut taken = Vec::new();
        for path in second {
            let Some((sink, barrier)) = parsed(&path) else { continue };
            let is_in_first = newest.get(&sink).is_some_and(|newest| barrier <= *newest);
            records.sinks.insert(sink);
            if is_in_first {
                taken.push(path);
            }
        }
        if records.sinks.is_empty() {
            return Ok(None);
        }
        for named in remote.read_records(folder, &taken)? {
            records.files.extend(named.iter().cloned());
        }
        Ok(Some(records))
    }
}

impl Remote {
    /// The files that each of `records`, those of `folder`, names. Those taken back meanwhile are left out.
    fn read_records(&self, folder: &Path, records: &[PathBuf]) -> Result<Vec<Arc<Vec<PathBuf>>>> {
        let mut known = self.records.lock();
        let present: HashSet<&Path> = records.iter().map(PathBuf::as_path).collect();
        known.retain(|path, _| path.parent() != Some(folder) || present.contains(path.as_path()));
        let unknown: Vec<&PathBuf> = records.iter().filter(|path| !known.contains_key(path.as_path())).collect();
        let keys: Vec<String> = unknown.iter().filter_map(|path| Some(ObjectUrl::split(path)?.1.to_string())).collect();
        for (path, content) in unknown.into_iter().zip(self.objects.get_all(&keys)?) {
            if let Some(content) = content {
                known.insert(path.clone(), Arc::new(read_record(path, &content)?));
            }
        }
        Ok(records.iter().filter_map(|path| known.get(path.as_path()).cloned()).collect())
    }
}

#[cfg(test)]
mod tests;
