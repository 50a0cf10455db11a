//! A real S3 server of the test's own: `s3s-fs`, which `scripts/setup.sh` installs. It keeps each object in a file, so that a test can look at them as they are.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use tempfile::TempDir;

use crate::run;
use crate::server::{PATIENCE, Settings, die_with_parent, settings};

/// The bucket that every server has.
pub const BUCKET: &str = "weir";
const KEY: &str = "test-key";
const SECRET: &str = "test-secret";

/// The server's process, and the folder of its buckets.
pub struct Store {
    process: Child,
    root: TempDir,
    address: SocketAddr,
}

/// Where `scripts/setup.sh` puts the server.
fn binary() -> Option<PathBuf> {
    let cache = match std::env::var_os("WEIR_CACHE_DIR") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache/weir"),
    };
    Some(cache.join("tools/bin/s3s-fs")).filter(|path| path.is_file())
}

impl Store {
    /// Starts one on a free port; `None`, with a word, where the machine has no such server.
    pub fn start(test: &str) -> Option<Store> {
        let Some(binary) = binary() else {
            run::skip(test, "there is no S3 server: scripts/setup.sh installs s3s-fs");
            return None;
        };
        let root = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(root.path().join(BUCKET)).expect("a bucket");
        let mut command = Command::new(binary);
        command.args(["--host", "127.0.0.1", "--port", "0", "--access-key", KEY, "--secret-key", SECRET]).arg(root.path());
        command.env("RUST_LOG", "s3s_fs=info").env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        die_with_parent(&mut command, libc::SIGKILL);
        let mut process = command.spawn().expect("the S3 server starts");
        let stdout = process.stdout.take().expect("stdout is piped");
        let (sender, receiver) = mpsc::channel();
        // Goes on reading, so that the server never blocks on a full pipe. Ends with the process.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("server is running at http://") {
                    let address = address.split(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ':'))).next();
                    // Who waited may have given up.
                    let _ = sender.send(address.and_then(|address| address.parse().ok()));
                }
            }
        });
        let address = receiver.recv_timeout(PATIENCE).expect("the S3 server starts").expect("an address");
        Some(Store { process, root, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file of the object `key`, or the folder of those that begin with it.
    pub fn path(&self, key: &str) -> PathBuf {
        self.root.path().join(BUCKET).join(key)
    }

    /// The names of the objects below `prefix`, sorted.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(prefix)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Everything in the bucket goes, and the bucket too.
    pub fn remove_bucket(&self) {
        std::fs::remove_dir_all(self.root.path().join(BUCKET)).expect("the bucket goes");
    }

    /// The folder of its buckets.
    pub fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // It is this test's own.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Settings of a server whose object store is at `address`, with `pairs`.
pub fn settings_for(address: SocketAddr, pairs: &[(&str, &str)]) -> Settings {
    let endpoint = format!("http://{address}");
    let mut all = settings(&[
        ("AWS_ENDPOINT_URL", &endpoint),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ALLOW_HTTP", "true"),
    ]);
    all.extend(settings(pairs));
    all
}
