//! What ends a statement from outside, a cancel request, its timeout or the end of the server, and where it may end it.
//!
//! # Invariants
//! - Who is told that a statement was ended from outside can rely on it: a commit that has been given to the log is waited for.
//! - What an ended statement leaves to be taken back is taken back before the client hears that it was ended.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use weir_catalog::{Error, SqlState};

use crate::seams::spawn::{JoinHandle, Spawner};

/// What was asked of a session from outside.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// How many cancel requests there were.
    cancels: u64,
    /// Whether it is to end.
    ends: bool,
}

/// Asks a session for the end of its statements, or for its own.
#[derive(Debug, Default)]
pub struct Asking(watch::Sender<Asked>);

impl Asking {
    /// Asks for the end of the statement under way.
    pub fn cancel(&self) {
        self.0.send_modify(|asked| asked.cancels += 1);
    }

    /// Asks for the end of the session.
    pub fn end(&self) {
        self.0.send_modify(|asked| asked.ends = true);
    }

    /// What is asked from now on.
    pub fn interruption(&self) -> Interruption {
        let asked = self.0.subscribe();
        let told = asked.borrow().cancels;
        Interruption { asked, told }
    }
}

/// What ends a session's statements from some moment on: cancel requests of after it, and the end of the session, whenever that was asked for.
#[derive(Debug)]
pub struct Interruption {
    asked: watch::Receiver<Asked>,
    /// How many cancel requests were told or came before.
    told: u64,
}

impl Interruption {
    /// Returns why a statement is to end, once it is. A cancel request is told once.
    pub async fn wanted(&mut self) -> Error {
        let told = self.told;
        // Who asks lives as long as the session: where it is gone, that is over.
        let asked = self.asked.wait_for(|asked| asked.ends || asked.cancels != told).await.map(|asked| *asked);
        match asked {
            Ok(Asked { ends: false, cancels }) => {
                self.told = cancels;
                Error::new(SqlState::QUERY_CANCELED, "canceling statement due to user request")
            }
            Ok(_) | Err(_) => terminated(),
        }
    }

    /// Returns when the session is to end.
    pub async fn session_ends(&mut self) {
        let _ = self.asked.wait_for(|asked| asked.ends).await;
    }
}

/// `57P01`: the server stops.
pub(super) fn terminated() -> Error {
    Error::new(SqlState::ADMIN_SHUTDOWN, "terminating connection due to administrator command")
}

/// A session's statement under way, as what may interrupt it sees it. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// How many holders want no interruption.
    held: AtomicUsize,
    /// Whether the statement under way would be interrupted if nobody held it off.
    is_wanted: AtomicBool,
    wanted: Notify,
    /// What takes back the work of statements that were ended.
    taking_back: Mutex<Vec<JoinHandle<()>>>,
}

/// Puts interruptions off until it is dropped.
#[derive(Debug)]
pub struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Interrupts {
    /// From now on the statement is not interrupted.
    pub fn hold(&self) -> Held {
        self.shared.held.fetch_add(1, Ordering::SeqCst);
        Held(self.shared.clone())
    }

    /// Returns when the statement under way is to end, for who holds it off and can end it in another way.
    pub async fn wanted(&self) {
        let mut wanted = pin!(self.shared.wanted.notified());
        wanted.as_mut().enable();
        if !self.shared.is_wanted.load(Ordering::SeqCst) {
            wanted.await;
        }
    }

    /// Does `work`, which takes back what an interrupted statement did, beside the caller.
    pub fn take_back(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shared.taking_back.lock().push(Spawner::current().spawn(work));
    }

    /// What `running` gives; `None` once `interrupt` is there and nobody holds it off: `running` has been dropped then, and what it did taken back.
    pub async fn run_until<T>(&self, running: impl Future<Output = T>, interrupt: impl Future<Output = ()>) -> Option<T> {
        {
            let (mut running, mut interrupt) = (pin!(running), pin!(interrupt));
            let mut is_interrupted = false;
            self.shared.is_wanted.store(false, Ordering::SeqCst);
            let ended = std::future::poll_fn(|context| {
                if !is_interrupted && interrupt.as_mut().poll(context).is_ready() {
                    is_interrupted = true;
                    self.shared.is_wanted.store(true, Ordering::SeqCst);
                    self.shared.wanted.notify_waiters();
                }
                if is_interrupted && !self.is_held() {
                    return Poll::Ready(None);
                }
                match running.as_mut().poll(context) {
                    Poll::Ready(value) => Poll::Ready(Some(value)),
                    // It may have let go of its hold meanwhile.
                    Poll::Pending if is_interrupted && !self.is_held() => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            if let Some(value) = ended.await {
                return Some(value);
            }
        }
        let taking_back = std::mem::take(&mut *self.shared.taking_back.lock());
        futures::future::join_all(taking_back).await;
        None
    }

    /// What `running` gives, or why `interruption` has ended it.
    pub async fn run<T>(
        &self,
        running: impl Future<Output = weir_catalog::Result<T>>,
        interruption: &mut Interruption,
    ) -> weir_catalog::Result<T> {
        let mut reason = None;
        let interrupt = async { reason = Some(interruption.wanted().await) };
        match self.run_until(running, interrupt).await {
            Some(result) => result,
            None => Err(reason.unwrap_or_else(terminated)),
        }
    }

    fn is_held(&self) -> bool {
        self.shared.held.load(Ordering::SeqCst) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct OnDrop(Interrupts, Arc<AtomicBool>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            let done = self.1.clone();
            self.0.take_back(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                done.store(true, Ordering::SeqCst);
            });
        }
    }

    #[tokio::test]
    async fn what_is_held_ends_first_and_what_was_done_is_taken_back() {
        let (interrupts, begun) = (Interrupts::default(), Notify::new());
        let (committed, taken_back) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let statement = async {
            let held = interrupts.hold();
            begun.notify_one();
            interrupts.wanted().await;
            // As a commit that is on its way to the disk.
            tokio::time::sleep(Duration::from_millis(5)).await;
            committed.store(true, Ordering::SeqCst);
            let _guard = OnDrop(interrupts.clone(), taken_back.clone());
            drop(held);
            std::future::pending::<()>().await;
        };
        let ended = interrupts.run_until(statement, begun.notified()).await;
        assert!(ended.is_none());
        assert!(committed.load(Ordering::SeqCst) && taken_back.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn who_holds_an_interrupt_off_can_end_the_statement_itself() {
        let (interrupts, begun) = (Interrupts::default(), Notify::new());
        let statement = async {
            let _held = interrupts.hold();
            begun.notify_one();
            interrupts.wanted().await;
            "ended"
        };
        let ended = interrupts.run_until(statement, begun.notified()).await;
        assert_eq!(ended, Some("ended"));
        // The next statement knows nothing of it.
        let statement = async { tokio::time::timeout(Duration::from_millis(5), interrupts.wanted()).await.is_err() };
        assert_eq!(interrupts.run_until(statement, std::future::pending()).await, Some(true));
    }

    #[tokio::test]
    async fn a_request_ends_one_statement_and_the_end_of_a_session_all() {
        let (asking, interrupts) = (Asking::default(), Interrupts::default());
        let code = |result: weir_catalog::Result<()>| result.map_or_else(|error| error.code().as_str().to_string(), |()| "00000".into());
        asking.cancel();
        let mut interruption = asking.interruption();
        assert_eq!(code(interrupts.run(async { Ok(()) }, &mut interruption).await), "00000");
        asking.cancel();
        assert_eq!(code(interrupts.run(async { Ok(()) }, &mut interruption).await), "57014");
        assert_eq!(code(interrupts.run(async { Ok(()) }, &mut interruption).await), "00000");
        asking.end();
        for mut interruption in [interruption, asking.interruption()] {
            for _ in 0..2 {
                assert_eq!(code(interrupts.run(std::future::pending(), &mut interruption).await), "57P01");
            }
            interruption.session_ends().await;
        }
    }

    #[tokio::test]
    async fn an_interrupt_from_before_ends_a_statement_that_has_not_begun() {
        let interrupts = Interrupts::default();
        assert_eq!(interrupts.run_until(async { 1 }, async {}).await, None);
        assert_eq!(interrupts.run_until(async { 1 }, std::future::pending()).await, Some(1));
    }
}
