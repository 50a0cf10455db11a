//! Task spawning. The engine has two runtimes: one for subtasks, one for everything that serves clients; blocking work has threads of its own.

use std::future::Future;

pub use tokio::task::{JoinError, JoinHandle};

/// Where subtasks and the tasks that steer them run.
#[derive(Clone, Debug)]
pub struct Spawner(tokio::runtime::Handle);

impl Spawner {
    /// Spawns on the runtime of `handle`.
    pub fn new(handle: tokio::runtime::Handle) -> Spawner {
        Spawner(handle)
    }

    /// Spawns on the runtime that the caller runs on. Panics outside one.
    pub fn current() -> Spawner {
        Spawner(tokio::runtime::Handle::current())
    }

    /// Runs `task` beside the caller.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.0.spawn(task)
    }

    /// Runs `work`, which waits for disk or computes for long, on a thread for such work.
    pub fn spawn_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.0.spawn_blocking(work)
    }
}

/// Runs `work`, which waits for disk, in place: other tasks of this worker thread go on elsewhere meanwhile. On a runtime of one thread it just runs.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(tokio::runtime::RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
