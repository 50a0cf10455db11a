//! A file system that loses at a crash what was not made durable: for tests of power loss.
//!
//! It works on a real folder, so that RocksDB can open files in it, and remembers beside it what a disk would hold: the content of each file as of its
//! last sync, and the entries of each folder as of its last [`Files::sync_dir`]. [`LossyFiles::crash`] puts the folder back to that.
//!
//! # Model
//! - Entries (a name made, renamed, linked, removed) are pending until their folder is synced. A crash keeps a prefix of a folder's pending entries,
//!   most often none of it. A rename is one entry, of the folder that it renames into.
//! - Bytes that were appended and not synced are lost, torn at some byte, or read as zeros from some byte on, maybe with right bytes behind the zeros.
//! - A file that someone else wrote (RocksDB) does not exist for the disk until [`Files::sync`] names it, and its entry until its folder is synced. A
//!   synced entry of such a file whose content was not synced leaves a file that is empty, cut, or zeros.
//! - The same seed and the same calls lose the same things.
//! - Nothing is really fsynced: the folder is a stand-in for a disk, not a safe place.
//!
//! Three faults can be planted: [`LossyFiles::power_off_after`] (every call after the n-th change fails, that one is done by half),
//! [`LossyFiles::set_free_bytes`] (the disk is full) and [`LossyFiles::fail_syncs`]. After the power went off there are two ways on: [`LossyFiles::crash`]
//! loses what was not durable, [`LossyFiles::kill`] loses nothing, as when the process alone died: what is not durable then may still be lost later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_catalog::{Error, Result, SqlState};

use super::local::{LocalFiles, parent, refused};
use super::{AppendFile, Files};
use crate::seams::random::Random;

type NodeId = u64;

/// A file, whatever its names.
#[derive(Debug, Default)]
struct Node {
    /// What the disk surely holds.
    durable: Vec<u8>,
    /// What was appended after that.
    pending: Vec<u8>,
    /// Someone else wrote the content, and it was never synced: nothing is known of it here.
    foreign: bool,
}

/// A change to a folder's entries that its sync makes durable.
#[derive(Clone, Debug)]
enum EntryChange {
    Add(PathBuf, NodeId),
    Remove(PathBuf),
    /// The node where it is a file; `None` for a folder with all that is in it.
    Rename(PathBuf, PathBuf, Option<NodeId>),
    /// A folder and all that is in it.
    RemoveDir(PathBuf),
}

#[derive(Debug)]
struct Disk {
    nodes: BTreeMap<NodeId, Node>,
    next_node: NodeId,
    /// Names as the running process sees them, as far as they are known here.
    live: BTreeMap<PathBuf, NodeId>,
    /// Names that the disk surely holds.
    durable: BTreeMap<PathBuf, NodeId>,
    /// Folders that the disk surely holds.
    folders: BTreeSet<PathBuf>,
    /// Per folder, in order.
    pending: BTreeMap<PathBuf, Vec<EntryChange>>,
    random: Random,
    /// Raised at a crash: handles from before are dead.
    generation: u64,
    operations: u64,
    power_off_after: Option<u64>,
    powered_off: bool,
    free_bytes: Option<u64>,
    /// How many more syncs fail.
    failing_syncs: u64,
}

/// See the module. Cheap to clone; clones are the same disk.
#[derive(Clone, Debug)]
pub struct LossyFiles {
    root: PathBuf,
    disk: Arc<Mutex<Disk>>,
}

fn power_lost(path: &Path) -> Error {
    Error::new(SqlState::IO_ERROR, format!("could not reach \"{}\": the power is off", path.display()))
}

/// Moves what stands at or below `from` to `to`.
fn moved(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let rest = path.strip_prefix(from).ok()?;
    Some(if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) })
}

fn apply(entries: &mut BTreeMap<PathBuf, NodeId>, folders: &mut BTreeSet<PathBuf>, change: &EntryChange) {
    match change {
        EntryChange::Add(path, node) => {
            entries.insert(path.clone(), *node);
        }
        EntryChange::Remove(path) => {
            entries.remove(path);
        }
        EntryChange::Rename(from, to, node) => {
            let below: Vec<PathBuf> = entries.keys().filter(|path| path.starts_with(from)).cloned().collect();
            for path in below {
                if let (Some(new), Some(node)) = (moved(&path, from, to), entries.remove(&path)) {
                    entries.insert(new, node);
                }
            }
            if let Some(node) = node {
                entries.insert(to.clone(), *node);
            }
            let below: Vec<PathBuf> = folders.iter().filter(|path| path.starts_with(from)).cloned().collect();
            for path in below {
                folders.remove(&path);
                folders.extend(moved(&path, from, to));
            }
        }
        EntryChange::RemoveDir(dir) => {
            entries.retain(|path, _| !path.starts_with(dir));
            folders.retain(|path| !path.starts_with(dir));
        }
    }
}

impl EntryChange {
    fn moved(self, from: &Path, to: &Path) -> EntryChange {
        let at = |path: PathBuf| moved(&path, from, to).unwrap_or(path);
        match self {
            EntryChange::Add(path, node) => EntryChange::Add(at(path), node),
            EntryChange::Remove(path) => EntryChange::Remove(at(path)),
            EntryChange::Rename(old, new, node) => EntryChange::Rename(at(old), at(new), node),
            EntryChange::RemoveDir(dir) => EntryChange::RemoveDir(at(dir)),
        }
    }
}

impl Disk {
    fn new_node(&mut self, node: Node) -> NodeId {
        self.next_node += 1;
        self.nodes.insert(self.next_node, node);
        self.next_node
    }

    fn change(&mut self, change: EntryChange) {
        let owner = match &change {
            EntryChange::Add(path, _) | EntryChange::Remove(path) | EntryChange::Rename(_, path, _) | EntryChange::RemoveDir(path) => {
                parent(path).to_path_buf()
            }
        };
        apply(&mut self.live, &mut BTreeSet::new(), &change);
        self.pending.entry(owner).or_default().push(change);
    }

    /// The entries of `dir` are durable, also those of folders that someone else made.
    fn sync_entries(&mut self, dir: &Path) -> Result<()> {
        for change in self.pending.remove(dir).unwrap_or_default() {
            apply(&mut self.durable, &mut self.folders, &change);
        }
        for name in LocalFiles.list(dir)? {
            let path = dir.join(name);
            if path.is_dir() {
                self.folders.insert(path);
            }
        }
        Ok(())
    }

    /// Counts a change of the disk. `Ok(true)`: do it by half, the power goes off in it.
    fn begin(&mut self, path: &Path) -> Result<bool> {
        if self.powered_off {
            return Err(power_lost(path));
        }
        self.operations += 1;
        if self.power_off_after.is_some_and(|after| self.operations > after) {
            self.powered_off = true;
            return Ok(true);
        }
        Ok(false)
    }

    /// A new process begins.
    fn power_on(&mut self) {
        self.generation += 1;
        self.powered_off = false;
        self.power_off_after = None;
    }

    fn sync_fails(&mut self) -> bool {
        let fails = self.failing_syncs > 0;
        self.failing_syncs -= u64::from(fails);
        fails
    }

    /// How many of `wanted` bytes still fit, which are then taken.
    fn take_space(&mut self, wanted: usize) -> usize {
        match &mut self.free_bytes {
            None => wanted,
            Some(free) => {
                let taken = wanted.min(*free as usize);
                *free -= taken as u64;
                taken
            }
        }
    }

    /// What a crash leaves of `node`, which the running process sees as `written`.
    fn surviving(&mut self, node: NodeId, written: Vec<u8>) -> Vec<u8> {
        let Some(node) = self.nodes.get(&node) else { return Vec::new() };
        if node.foreign && !written.is_empty() {
            return match self.random.below(3) {
                0 => Vec::new(),
                1 => written[..self.random.below(written.len() as u64) as usize].to_vec(),
                _ => vec![0; written.len()],
            };
        }
        let mut content = node.durable.clone();
        if !node.pending.is_empty() {
            let kept = match self.random.below(4) {
                0 => 0,
                1 => node.pending.len(),
                _ => self.random.below(node.pending.len() as u64 + 1) as usize,
            };
            content.extend_from_slice(&node.pending[..kept]);
            if kept < node.pending.len() && self.random.below(4) == 0 {
                // The length reached the disk and some of the bytes did not: at the end, or with more behind them.
                content.resize(content.len() + 1 + self.random.below((node.pending.len() - kept) as u64) as usize, 0);
                let pending = &node.pending[..content.len() - node.durable.len()];
                if self.random.below(2) == 0 {
                    let from = kept + self.random.below((pending.len() - kept) as u64) as usize;
                    content[node.durable.len() + from..].copy_from_slice(&pending[from..]);
                }
            }
        }
        content
    }
}

impl LossyFiles {
    /// A disk on the folder `root`, whose present content counts as durable. The paths that the methods take lie in it.
    pub fn new(root: &Path, seed: u64) -> Result<LossyFiles> {
        let disk = Disk {
            nodes: BTreeMap::new(),
            next_node: 0,
            live: BTreeMap::new(),
            durable: BTreeMap::new(),
            folders: BTreeSet::new(),
            pending: BTreeMap::new(),
            random: Random::seeded(seed),
            generation: 0,
            operations: 0,
            power_off_after: None,
            powered_off: false,
            free_bytes: None,
            failing_syncs: 0,
        };
        let files = LossyFiles { root: root.to_path_buf(), disk: Arc::new(Mutex::new(disk)) };
        files.adopt(root)?;
        Ok(files)
    }

    /// Takes what stands in `dir` as durable.
    fn adopt(&self, dir: &Path) -> Result<()> {
        for name in LocalFiles.list(dir)? {
            let path = dir.join(name);
            if path.is_dir() {
                self.disk.lock().folders.insert(path.clone());
                self.adopt(&path)?;
            } else {
                let durable = LocalFiles.read(&path)?;
                let mut disk = self.disk.lock();
                let node = disk.new_node(Node { durable, ..Node::default() });
                disk.live.insert(path.clone(), node);
                disk.durable.insert(path, node);
            }
        }
        Ok(())
    }

    /// The number of changes so far: appends, syncs, and changes of entries.
    pub fn operations(&self) -> u64 {
        self.disk.lock().operations
    }

    /// Lets `operations` more changes through. The one after is done by half and fails, and so does everything until [`LossyFiles::crash`].
    pub fn power_off_after(&self, operations: u64) {
        let mut disk = self.disk.lock();
        disk.power_off_after = Some(disk.operations + operations);
    }

    /// The power goes off now: everything fails until [`LossyFiles::crash`] or [`LossyFiles::kill`].
    pub fn power_off(&self) {
        self.disk.lock().powered_off = true;
    }

    /// The process died, and nothing else: the folder stays as it is, durable or not. Files opened before are dead.
    pub fn kill(&self) {
        self.disk.lock().power_on();
    }

    /// Whether the power went off.
    pub fn powered_off(&self) -> bool {
        self.disk.lock().powered_off
    }

    /// Bytes until the disk is full (53100); `None`: it never is.
    pub fn set_free_bytes(&self, bytes: Option<u64>) {
        self.disk.lock().free_bytes = bytes;
    }

    /// Makes the next `count` syncs fail, also those that are part of a write or a truncation. The disk then does not hold what was appended, and the
    /// sync after says nothing of it.
    pub fn fail_syncs(&self, count: u64) {
        self.disk.lock().failing_syncs = count;
    }

    /// The power is cut and comes back: the folder holds what was durable, and of the rest what the seed says. Files opened before are dead.
    ///
    /// Whatever else has files open in the folder (RocksDB) must be closed before.
    pub fn crash(&self) -> Result<()> {
        let mut disk = self.disk.lock();
        let pending = std::mem::take(&mut disk.pending);
        for changes in pending.into_values() {
            let kept = if disk.random.below(2) == 0 { 0 } else { disk.random.below(changes.len() as u64 + 1) as usize };
            let Disk { durable, folders, .. } = &mut *disk;
            for change in &changes[..kept] {
                apply(durable, folders, change);
            }
        }
        // A folder whose own entry, or that of one above it, did not reach the disk is gone with what is in it.
        let kept = |dir: &Path, folders: &BTreeSet<PathBuf>| {
            dir.ancestors().take_while(|at| *at != self.root).all(|at| at.starts_with(&self.root) && folders.contains(at))
        };
        let folders = disk.folders.clone();
        disk.folders.retain(|dir| kept(dir, &folders));
        let mut entries = std::mem::take(&mut disk.durable);
        entries.retain(|path, _| kept(parent(path), &disk.folders));
        let mut contents: BTreeMap<NodeId, Vec<u8>> = BTreeMap::new();
        let written: BTreeMap<NodeId, PathBuf> = disk.live.iter().map(|(path, node)| (*node, path.clone())).collect();
        for node in entries.values() {
            if !contents.contains_key(node) {
                let is_foreign = disk.nodes.get(node).is_some_and(|node| node.foreign);
                // Whoever wrote it may have removed it again.
                let seen = written.get(node).filter(|path| is_foreign && path.exists());
                let seen = seen.map_or(Ok(Vec::new()), |path| LocalFiles.read(path))?;
                let content = disk.surviving(*node, seen);
                contents.insert(*node, content);
            }
        }
        for name in LocalFiles.list(&self.root)? {
            let path = self.root.join(name);
            if path.is_dir() { LocalFiles.remove_dir(&path)? } else { LocalFiles.remove(&path)? }
        }
        for dir in &disk.folders {
            fs::create_dir_all(dir).map_err(|e| refused("create folder", dir, &e))?;
        }
        let mut first_names: BTreeMap<NodeId, &PathBuf> = BTreeMap::new();
        for (path, node) in &entries {
            if let Some(first) = first_names.get(node) {
                fs::hard_link(first, path).map_err(|e| refused("link", path, &e))?;
            } else {
                fs::write(path, &contents[node]).map_err(|e| refused("write", path, &e))?;
                first_names.insert(*node, path);
            }
        }
        disk.nodes = contents.into_iter().map(|(node, durable)| (node, Node { durable, ..Node::default() })).collect();
        disk.live = entries.clone();
        disk.durable = entries;
        disk.power_on();
        Ok(())
    }

    /// The node of `path`; a file that someone else wrote gets one that the disk holds nothing of.
    fn node_of(disk: &mut Disk, path: &Path) -> NodeId {
        match disk.live.get(path) {
            Some(node) => *node,
            None => {
                let node = disk.new_node(Node { foreign: true, ..Node::default() });
                disk.change(EntryChange::Add(path.to_path_buf(), node));
                node
            }
        }
    }
}

#[derive(Debug)]
struct LossyAppendFile {
    path: PathBuf,
    node: NodeId,
    generation: u64,
    disk: Arc<Mutex<Disk>>,
    file: File,
}

impl LossyAppendFile {
    fn check(&self, disk: &Disk) -> Result<()> {
        if disk.generation != self.generation { Err(power_lost(&self.path)) } else { Ok(()) }
    }
}

impl AppendFile for LossyAppendFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut disk = self.disk.lock();
        self.check(&disk)?;
        let half = disk.begin(&self.path)?;
        let wanted = if half { disk.random.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        let written = disk.take_space(wanted);
        self.file.write_all(&bytes[..written]).map_err(|e| refused("write", &self.path, &e))?;
        if let Some(node) = disk.nodes.get_mut(&self.node) {
            node.pending.extend_from_slice(&bytes[..written]);
        }
        match (half, written < wanted) {
            (true, _) => Err(power_lost(&self.path)),
            (false, true) => Err(refused("write", &self.path, &io::Error::from(io::ErrorKind::StorageFull))),
            (false, false) => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<()> {
        let mut disk = self.disk.lock();
        self.check(&disk)?;
        if disk.begin(&self.path)? {
            return Err(power_lost(&self.path));
        }
        let fails = disk.sync_fails();
        if let Some(node) = disk.nodes.get_mut(&self.node) {
            let pending = std::mem::take(&mut node.pending);
            if fails {
                // As Linux does: the pages that could not be written count as clean, and the next sync says nothing of them.
                node.durable.resize(node.durable.len() + pending.len(), 0);
            } else {
                node.durable.extend_from_slice(&pending);
            }
        }
        if fails { Err(refused("fsync", &self.path, &io::Error::other("input/output error"))) } else { Ok(()) }
    }

    fn truncate(&mut self, len: u64) -> Result<()> {
        let mut disk = self.disk.lock();
        self.check(&disk)?;
        if disk.begin(&self.path)? {
            return Err(power_lost(&self.path));
        }
        if disk.sync_fails() {
            return Err(refused("fsync", &self.path, &io::Error::other("input/output error")));
        }
        self.file.set_len(len).map_err(|e| refused("truncate", &self.path, &e))?;
        if let Some(node) = disk.nodes.get_mut(&self.node) {
            let pending = std::mem::take(&mut node.pending);
            node.durable.extend_from_slice(&pending);
            node.durable.resize(len as usize, 0);
        }
        Ok(())
    }
}

impl Files for LossyFiles {
    fn append(&self, path: &Path) -> Result<Box<dyn AppendFile>> {
        let mut disk = self.disk.lock();
        if disk.begin(path)? {
            return Err(power_lost(path));
        }
        let existed = path.exists();
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(|e| refused("open", path, &e))?;
        let node = Self::node_of(&mut disk, path);
        let content = if existed { LocalFiles.read(path)? } else { Vec::new() };
        if let Some(node) = disk.nodes.get_mut(&node).filter(|node| node.foreign) {
            // From now on it is written here.
            *node = Node { pending: content, ..Node::default() };
        }
        Ok(Box::new(LossyAppendFile { path: path.to_path_buf(), node, generation: disk.generation, disk: self.disk.clone(), file }))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.remove(path)?;
        let mut disk = self.disk.lock();
        let half = disk.begin(path)?;
        let wanted = if half { disk.random.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        let written = disk.take_space(wanted);
        LocalFiles.remove(path)?;
        fs::write(path, &bytes[..written]).map_err(|e| refused("write", path, &e))?;
        let sync_fails = !half && written == wanted && disk.sync_fails();
        let fails = half || written < wanted || sync_fails;
        let (durable, pending) = if fails { (Vec::new(), bytes[..written].to_vec()) } else { (bytes.to_vec(), Vec::new()) };
        let node = disk.new_node(Node { durable, pending, foreign: false });
        disk.change(EntryChange::Add(path.to_path_buf(), node));
        if half {
            Err(power_lost(path))
        } else if written < wanted {
            Err(refused("write", path, &io::Error::from(io::ErrorKind::StorageFull)))
        } else if sync_fails {
            Err(refused("fsync", path, &io::Error::other("input/output error")))
        } else {
            Ok(())
        }
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        if self.powered_off() { Err(power_lost(path)) } else { LocalFiles.read(path) }
    }

    fn reader(&self, path: &Path) -> Result<Box<dyn Read + Send>> {
        if self.powered_off() { Err(power_lost(path)) } else { LocalFiles.reader(path) }
    }

    fn exists(&self, path: &Path) -> bool {
        LocalFiles.exists(path)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        if self.powered_off() { Err(power_lost(path)) } else { LocalFiles.len(path) }
    }

    fn sync(&self, path: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        if disk.begin(path)? {
            return Err(power_lost(path));
        }
        if disk.sync_fails() {
            return Err(refused("fsync", path, &io::Error::other("input/output error")));
        }
        let durable = LocalFiles.read(path)?;
        let node = Self::node_of(&mut disk, path);
        disk.nodes.insert(node, Node { durable, ..Node::default() });
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        if disk.begin(dir)? {
            return Err(power_lost(dir));
        }
        if disk.sync_fails() {
            return Err(refused("fsync", dir, &io::Error::other("input/output error")));
        }
        if !dir.is_dir() {
            return Err(refused("fsync", dir, &io::Error::from(io::ErrorKind::NotFound)));
        }
        disk.sync_entries(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        let half = disk.begin(from)?;
        LocalFiles.rename(from, to)?;
        if to.is_dir() {
            // What is pending inside the folder moves with it.
            let inside: Vec<PathBuf> = disk.pending.keys().filter(|path| path.starts_with(from)).cloned().collect();
            for folder in inside {
                if let (Some(new), Some(changes)) = (moved(&folder, from, to), disk.pending.remove(&folder)) {
                    disk.pending.insert(new, changes.into_iter().map(|change| change.moved(from, to)).collect());
                }
            }
            disk.change(EntryChange::Rename(from.to_path_buf(), to.to_path_buf(), None));
        } else {
            let node = Self::node_of(&mut disk, from);
            disk.change(EntryChange::Rename(from.to_path_buf(), to.to_path_buf(), Some(node)));
        }
        if half { Err(power_lost(from)) } else { Ok(()) }
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        let half = disk.begin(from)?;
        LocalFiles.hard_link(from, to)?;
        let node = match disk.live.get(from) {
            Some(node) => *node,
            None => disk.new_node(Node { foreign: true, ..Node::default() }),
        };
        disk.change(EntryChange::Add(to.to_path_buf(), node));
        if half { Err(power_lost(from)) } else { Ok(()) }
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        let half = disk.begin(from)?;
        let bytes = LocalFiles.read(from)?;
        let wanted = if half { disk.random.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        let written = disk.take_space(wanted);
        let mut file = OpenOptions::new().write(true).create_new(true).open(to).map_err(|e| refused("create", to, &e))?;
        file.write_all(&bytes[..written]).map_err(|e| refused("write", to, &e))?;
        let node = disk.new_node(Node { pending: bytes[..written].to_vec(), ..Node::default() });
        disk.change(EntryChange::Add(to.to_path_buf(), node));
        match (half, written < wanted) {
            (true, _) => Err(power_lost(from)),
            (false, true) => Err(refused("write", to, &io::Error::from(io::ErrorKind::StorageFull))),
            (false, false) => Ok(()),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        let half = disk.begin(path)?;
        LocalFiles.remove(path)?;
        if disk.live.contains_key(path) {
            disk.change(EntryChange::Remove(path.to_path_buf()));
        }
        if half { Err(power_lost(path)) } else { Ok(()) }
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        if disk.begin(dir)? {
            return Err(power_lost(dir));
        }
        let mut missing = Vec::new();
        let mut at = dir;
        while !at.is_dir() && at != parent(at) {
            missing.push(at);
            at = parent(at);
        }
        fs::create_dir_all(dir).map_err(|e| refused("create folder", dir, &e))?;
        missing.into_iter().rev().try_for_each(|dir| disk.sync_entries(parent(dir)))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        let half = disk.begin(dir)?;
        LocalFiles.remove_dir(dir)?;
        disk.pending.retain(|folder, _| !folder.starts_with(dir));
        disk.change(EntryChange::RemoveDir(dir.to_path_buf()));
        if half { Err(power_lost(dir)) } else { Ok(()) }
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        if self.powered_off() { Err(power_lost(dir)) } else { LocalFiles.list(dir) }
    }
}
