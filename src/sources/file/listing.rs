//! Finding files of this machine.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use weir_catalog::{Error, Result, SqlState};

use super::config::FileConfig;
use super::enumerator::hash_of;
use crate::seams::files::not_regular;
use crate::seams::hash::HashSet;
use crate::sinks::file::place::{LocalRecords, Published};

/// The files that a path of this machine names now, with their lengths. Of a sink's, those of whole checkpoints: the records that say so are read first, and so
/// every file that they name is there when files are listed.
pub fn find_local(config: &FileConfig) -> Result<Vec<(PathBuf, u64)>> {
    let found = list_local(config)?;
    let mut published = Published::default();
    if !published.read_for(&LocalRecords, found.iter().map(|(path, _)| path.as_path()))? {
        return Ok(found);
    }
    let mut found = list_local(config)?;
    found.retain(|(path, _)| *path == config.path || published.has(path));
    Ok(found)
}

/// The files that the path names now, with their lengths.
fn list_local(config: &FileConfig) -> Result<Vec<(PathBuf, u64)>> {
    let path = &config.path;
    let mut listing = Listing::default();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => listing.take_folder(path)?,
        Ok(metadata) if metadata.is_file() => listing.files.push((path.clone(), metadata.len())),
        Ok(_) => return Err(not_regular(path)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let text = path.to_string_lossy();
            if text.contains(PATTERN) {
                listing.take_matching(&Steps::of(path)?)?;
            } else if config.watch.is_none() {
                return Err(missing(&text));
            } // Otherwise it may come.
        }
        Err(e) => return Err(failed(path, &e)),
    }
    Ok(listing.files)
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    Error::io(format!("read \"{}\"", path.display()), e)
}

const PATTERN: [char; 3] = ['*', '?', '['];

/// `22023` where `path`, of this machine, is a malformed pattern. What is there under the name is none.
pub fn check_pattern(path: &Path) -> Result<()> {
    if path.to_string_lossy().contains(PATTERN) && !path.exists() { Steps::of(path).map(drop) } else { Ok(()) }
}

/// Whether what is not there yet of `path`, of this machine, is a pattern.
pub fn is_pattern(path: &Path) -> bool {
    let there = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new(""));
    path.strip_prefix(there).is_ok_and(|missing| missing.to_string_lossy().contains(PATTERN))
}

/// A pattern, taken apart at its slashes.
struct Steps {
    steps: Vec<Step>,
    /// It ends with a slash.
    folders_only: bool,
}

enum Step {
    /// One name as it is.
    Name(OsString),
    /// One name that looks so.
    Like(glob::Pattern),
    /// Any number of folders: `**`.
    Folders,
}

impl Steps {
    /// `22023` where the pattern is malformed.
    fn of(path: &Path) -> Result<Steps> {
        let text = path.to_string_lossy();
        let malformed = |e: glob::PatternError| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("pattern \"{text}\" is malformed")).with_detail(e.to_string())
        };
        let mut steps = Vec::new();
        for component in path.components() {
            let name = component.as_os_str();
            let text = name.to_string_lossy();
            let step = if text == "**" {
                Step::Folders
            } else if text.contains(PATTERN) {
                Step::Like(glob::Pattern::new(&text).map_err(malformed)?)
            } else {
                Step::Name(name.to_os_string())
            };
            // Twice in a row it says the same as once.
            if !(matches!(step, Step::Folders) && matches!(steps.last(), Some(Step::Folders))) {
                steps.push(step);
            }
        }
        Ok(Steps { steps, folders_only: text.ends_with('/') })
    }
}

/// Files, each once, however many links to folders lead to it.
#[derive(Default)]
struct Listing {
    files: Vec<(PathBuf, u64)>,
    /// The hashes of the files that a pattern matched, by their folders without links. Links to files are files of their own.
    matched: HashSet<u128>,
    /// The folders without links that were taken whole.
    whole: HashSet<PathBuf>,
}

impl Listing {
    /// Takes what matches. A folder that does is read like one that is named by itself.
    ///
    /// Each folder is looked at once for each step, whatever links lead to it, so links that go round in a circle end. Folders that are there without links
    /// come first: what a file is called does not change when a link to its folder comes.
    fn take_matching(&mut self, pattern: &Steps) -> Result<()> {
        let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::default() };
        let steps = &pattern.steps;
        let mut seen: HashSet<(PathBuf, usize)> = HashSet::default();
        // What matches the steps before a number.
        let mut direct = VecDeque::from([(PathBuf::new(), 0)]);
        let mut through_links = VecDeque::new();
        while let Some((place, at)) = direct.pop_front().or_else(|| through_links.pop_front()) {
            let step = match steps.get(at) {
                None => {
                    self.take(&place, None, pattern.folders_only)?;
                    continue;
                }
                Some(Step::Name(name)) => {
                    if at + 1 == steps.len() && is_hidden(Path::new(name)) {
                        continue;
                    }
                    direct.push_back((place.join(name), at + 1));
                    continue;
                }
                Some(step) => step,
            };
            let Some(folder) = folder_without_links(&place)? else { continue };
            if !seen.insert((folder.clone(), at)) {
                continue;
            }
            let is_last = at + 1 == steps.len();
            if matches!(step, Step::Folders) {
                direct.push_back((place.clone(), at + 1));
            }
            for (path, is_link) in entries(&place)? {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let next = match step {
                    Step::Like(pattern) if !pattern.matches_with(&name, options) => continue,
                    Step::Like(_) => at + 1,
                    _ if is_hidden(&path) => continue,
                    _ => at,
                };
                // Files are of interest at the end only.
                let is_whole = is_last && next > at;
                if (is_whole && is_hidden(&path)) || (!is_whole && !path.is_dir()) {
                    continue;
                }
                if is_whole && !is_link {
                    self.take(&path, Some(&folder), pattern.folders_only)?;
                    continue;
                }
                let queue = if is_link { &mut through_links } else { &mut direct };
                queue.push_back((path, next));
            }
        }
        Ok(())
    }

    /// Takes what a pattern matched. `above` is the folder that it is in, without links, where that is known.
    fn take(&mut self, path: &Path, above: Option<&Path>, folders_only: bool) -> Result<()> {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => self.take_folder(path),
            Ok(metadata) if metadata.is_file() && !folders_only => {
                let above = match above {
                    Some(above) => Some(above.to_path_buf()),
                    None => path.parent().map_or(Ok(None), folder_without_links)?,
                };
                if let (Some(above), Some(name)) = (above, path.file_name())
                    && !self.whole.contains(&above)
                    && self.matched.insert(hash_of(&above.join(name)))
                {
                    self.files.push((path.to_path_buf(), metadata.len()));
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(e) => Err(failed(path, &e)),
        }
    }

    /// Takes all files in a folder and below it.
    fn take_folder(&mut self, path: &Path) -> Result<()> {
        let mut folders = vec![path.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let Some(without_links) = folder_without_links(&folder)? else { continue };
            if self.whole.contains(&without_links) {
                continue;
            }
            for (path, is_link) in entries(&folder)? {
                if is_hidden(&path) {
                    continue;
                }
                // Links to files count, those to folders don't; what has gone since it was listed is not there.
                match std::fs::metadata(&path) {
                    Ok(metadata) if metadata.is_dir() => {
                        if !is_link {
                            folders.push(path);
                        }
                    }
                    Ok(metadata) if metadata.is_file() => {
                        let name = path.file_name().unwrap_or_default();
                        if self.matched.is_empty() || !self.matched.contains(&hash_of(&without_links.join(name))) {
                            self.files.push((path, metadata.len()));
                        }
                    }
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    Err(e) => return Err(failed(&path, &e)),
                }
            }
            self.whole.insert(without_links);
        }
        Ok(())
    }
}

/// The name of a folder without links in it; `None` where there is no folder.
fn folder_without_links(path: &Path) -> Result<Option<PathBuf>> {
    if !path.is_dir() {
        return Ok(None);
    }
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(Some(path)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(path, &e)),
    }
}

/// What a folder holds, by name, and whether it is a link.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, bool)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| failed(folder, &e))? {
        let entry = entry.map_err(|e| failed(folder, &e))?;
        let path = entry.path();
        let is_link = entry.file_type().map_err(|e| failed(&path, &e))?.is_symlink();
        found.push((path, is_link));
    }
    found.sort();
    Ok(found)
}

/// The code of what names no file.
pub const MISSING: &str = "58P01";

/// `58P01`
pub fn missing(name: &str) -> Error {
    let code = SqlState::parse(MISSING).unwrap_or(SqlState::IO_ERROR);
    Error::new(code, format!("file \"{name}\" does not exist"))
}

/// Files and folders whose names begin so are not for readers: open files of sinks, markers of other engines.
pub fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The files that `path` names below `root`, sorted.
    fn named(root: &Path, path: &str) -> Vec<String> {
        let path = format!("{}/{path}", root.display());
        let options = [("path", path.as_str()), ("format", "csv")];
        let options = options.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let found = find_local(&FileConfig::parse(&options).unwrap()).unwrap();
        let mut names: Vec<String> = found.iter().map(|(path, _)| path.strip_prefix(root).unwrap().display().to_string()).collect();
        names.sort();
        names
    }

    fn write(root: &Path, names: &[&str]) {
        for name in names {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "1\n").unwrap();
        }
    }

    #[test]
    fn a_file_is_there_once_whatever_links_lead_to_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root, &["v/one.csv", "v/sub/two.csv", "other/three.csv"]);
        symlink(root.join("v"), root.join("v/sub/loop")).unwrap();
        symlink(root.join("v"), root.join("v/sub/again")).unwrap();
        assert_eq!(named(root, "v/**/one.csv"), ["v/one.csv"]);
        assert_eq!(named(root, "v/**/*.csv"), ["v/one.csv", "v/sub/two.csv"]);
        assert_eq!(named(root, "v/sub/*/one.csv").len(), 1);
        assert_eq!(named(root, "v/**"), ["v/one.csv", "v/sub/two.csv"]);
        // Files behind a link that leads elsewhere are there, also under a name that sorts before their own.
        symlink(root.join("other"), root.join("v/a")).unwrap();
        assert_eq!(named(root, "v/*/three.csv"), ["v/a/three.csv"]);
        assert_eq!(named(root, "**/three.csv"), ["other/three.csv"]);
        // A link to a file is a file of its own, as in a folder.
        symlink(root.join("other/three.csv"), root.join("other/four.csv")).unwrap();
        assert_eq!(named(root, "other/*.csv"), named(root, "other"));
        assert_eq!(named(root, "other").len(), 2);
        // One that leads to itself is no folder.
        symlink(root.join("v/self"), root.join("v/self")).unwrap();
        assert_eq!(named(root, "v/**/one.csv"), ["v/one.csv"]);
    }

    #[test]
    fn a_folder_that_a_pattern_matches_is_read_like_one_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root, &["v=-1/a.csv", "v=-2/b.csv", "v=-2/deep/c.csv", "v=-2/.d.csv", "v=-4/e.csv", "v=-3", "_v/f.csv", "top.csv"]);
        assert_eq!(named(root, "v=-[12]"), ["v=-1/a.csv", "v=-2/b.csv", "v=-2/deep/c.csv"]);
        assert_eq!(named(root, "v=-[1-3]"), ["v=-1/a.csv", "v=-2/b.csv", "v=-2/deep/c.csv", "v=-3"]);
        assert_eq!(named(root, "v=-[1-3]/"), ["v=-1/a.csv", "v=-2/b.csv", "v=-2/deep/c.csv"]);
        assert_eq!(named(root, "**"), named(root, ""));
        assert_eq!(named(root, "**/*"), named(root, ""));
        assert_eq!(named(root, "*"), named(root, ""));
        assert_eq!(named(root, "*/deep"), ["v=-2/deep/c.csv"]);
        assert_eq!(named(root, "_v/**"), ["_v/f.csv"]);
        assert_eq!(named(root, "v=-[5-9]/"), [""; 0]);
        assert_eq!(named(root, "*.csv"), ["top.csv"]);
    }

    fn config(path: &Path) -> FileConfig {
        let options = [("path".to_string(), path.display().to_string()), ("format".to_string(), "csv".to_string())];
        FileConfig::parse(&options.into_iter().collect()).unwrap()
    }

    #[test]
    fn a_malformed_pattern_is_refused() {
        assert_eq!(find_local(&config(Path::new("/tmp/a**b"))).unwrap_err().code().as_str(), "22023");
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root, &["in/a.csv"]);
        let (pipe, socket) = (root.join("in/pipe.csv"), root.join("in/socket.csv"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(made.success());
        symlink("pipe.csv", root.join("in/link.csv")).unwrap();
        symlink("/dev/zero", root.join("in/device.csv")).unwrap();
        symlink("a.csv", root.join("in/good.csv")).unwrap();
        assert_eq!(named(root, "in"), ["in/a.csv", "in/good.csv"]);
        assert_eq!(named(root, "in/*.csv"), ["in/a.csv", "in/good.csv"]);
        // Named directly, and where one has come in a file's place since that was found.
        for name in ["pipe", "socket", "link", "device"] {
            let path = root.join(format!("in/{name}.csv"));
            for error in [find_local(&config(&path)).unwrap_err(), crate::seams::files::open_regular(&path).unwrap_err()] {
                assert_eq!(error.code().as_str(), "42809", "{name}");
                assert!(error.message().contains(&format!("{name}.csv\" is no regular file")), "{error:?}");
            }
        }
        assert_eq!(crate::seams::files::open_regular(&root.join("none")).unwrap_err().code().as_str(), "58030");
    }
}
